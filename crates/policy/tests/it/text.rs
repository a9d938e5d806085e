//! The textual form of methods.

use inertiakv_policy::{
    Across, Aggregation, Budget, Coupling, HeadPooling, LayerRange, Method, Policy, PolicyError, Preset, Protect,
    Refresh, Rule, Scorer, Share, Smoothing, Stage,
};

use crate::support::method;

#[test]
fn presets_are_the_papers_methods() {
    let inertia = Policy::default();
    assert_eq!(method("inertia").decode.policy, inertia);
    assert_eq!(
        method("inertia-lazy").decode.policy,
        Policy {
            refresh: Refresh::Every(4),
            ..inertia.clone()
        }
    );
    assert_eq!(
        method("score-free").decode.policy,
        Policy {
            refresh: Refresh::Once,
            ..inertia.clone()
        }
    );
    assert_eq!(
        method("single-step").decode.policy,
        Policy {
            aggregation: Aggregation::SingleStep,
            ..inertia.clone()
        }
    );
    // The cumulative rule in the same framework: no recent half, as in the paper's comparison.
    assert_eq!(
        method("h2o").decode.policy,
        Policy {
            aggregation: Aggregation::Cumulative,
            ..inertia.clone()
        }
    );
    assert_eq!(method("streaming-llm").decode.policy.protect.sinks, 4);
    let aux = method("inertia-aux").decode.policy;
    assert_eq!(
        Policy {
            protect: Protect::NONE,
            ..aux.clone()
        },
        inertia
    );
    assert!(aux.protect.rescue && aux.protect.reserve == Protect::STANDARD_RESERVE);
    assert_eq!(method("full"), Method::full());
}

#[test]
fn presets_are_listed_and_print_as_their_name() {
    let listed: Vec<_> = Method::presets().collect();
    assert_eq!(listed.len(), Preset::ALL.len());
    for (name, summary) in listed {
        assert_eq!(method(name).to_string(), name);
        assert_eq!(Method::from(name.parse::<Preset>().unwrap()), method(name));
        assert!(!summary.is_empty() && !summary.contains('\n'));
    }
    assert_eq!(Method::keys().count(), 24);
}

#[test]
fn every_key_sets_its_axis() {
    let policy = method(
        "inertia:ratio=0.75,alpha=0.95,refresh=8,coupling=per-head,scorer=value-norm,interval=16,sinks=4,recent=32,\
         reserve=high,rescue=true,window=8,pool=max,kernel=avg5,safeguard=0.2",
    )
    .decode
    .policy;
    let expected = Policy {
        scorer: Scorer::ValueNorm,
        head_pooling: HeadPooling::Max,
        smoothing: Smoothing::Average(5),
        window: 8,
        aggregation: Aggregation::Ema("0.95".parse().unwrap()),
        coupling: Coupling::PerHead,
        refresh: Refresh::Every(8),
        budget: Budget::Ratio("0.75".parse().unwrap()),
        share: Share::Adaptive {
            across: Across::Layer,
            safeguard: "0.2".parse().unwrap(),
        },
        interval: 16,
        protect: Protect {
            sinks: 4,
            recent: 32,
            reserve: Protect::HIGH_RESERVE,
            rescue: true,
        },
        layers: None,
        masked: false,
    };
    assert_eq!(policy, expected);
    let policy = method("random:seed=18446744073709551615,seen_ratio=.5,aggregation=cumulative")
        .decode
        .policy;
    assert_eq!(policy.scorer, Scorer::Random(u64::MAX));
    assert_eq!(policy.budget, Budget::SeenRatio("0.5".parse().unwrap()));
    assert_eq!(policy.aggregation, Aggregation::Cumulative);
    assert_eq!(
        method("h2o:layers=4-11").decode.policy.layers,
        Some(LayerRange { first: 4, last: 11 })
    );
    assert_eq!(
        method("h2o:layers=4").decode.policy.layers,
        Some(LayerRange { first: 4, last: 4 })
    );
}

#[test]
fn printing_gives_what_differs() {
    for (written, printed) in [
        ("inertia:ratio=0.9,alpha=0.9,refresh=4", "inertia:alpha=0.9,refresh=4"),
        (" inertia : refresh = 4 , alpha = 0.90 ", "inertia:alpha=0.9,refresh=4"),
        (
            "inertia:ratio=0.9,alpha=0.8,refresh=1,scorer=attention,layers=all,safeguard=none",
            "inertia",
        ),
        ("inertia-lazy:refresh=1", "inertia-lazy:refresh=1"),
        ("inertia:tokens=512", "inertia:tokens=512"),
        ("h2o:aggregation=ema", "h2o:alpha=0.8,aggregation=ema"),
        ("inertia:scorer=random", "inertia:scorer=random,seed=0"),
        ("inertia:scorer=random,seed=5", "inertia:scorer=random,seed=5"),
        ("random:scorer=random", "random"),
        (
            "inertia:reserve=standard,rescue=true",
            "inertia:reserve=0.15,rescue=true",
        ),
        ("inertia:", "inertia"),
    ] {
        assert_eq!(method(written).to_string(), printed);
        assert_eq!(method(printed), method(written));
    }
}

#[test]
fn unknown_names_list_the_valid_ones() {
    let error = "inertial".parse::<Method>().unwrap_err();
    assert!(matches!(&error, PolicyError::UnknownMethod { name } if name == "inertial"));
    assert!(
        Preset::ALL
            .iter()
            .all(|preset| error.to_string().contains(preset.name()))
    );
    let error = "inertia:ration=0.9".parse::<Method>().unwrap_err();
    assert!(matches!(&error, PolicyError::UnknownKey { key } if key == "ration"));
    assert!(Method::keys().all(|(key, ..)| error.to_string().contains(key)));
}

#[test]
fn values_out_of_range_name_the_range() {
    for (text, range) in [
        ("inertia:ratio=1", "from 0 to below 1"),
        ("inertia:ratio=1.5", "from 0 to below 1"),
        ("inertia:ratio=-0.1", "from 0 to below 1"),
        ("inertia:ratio=nan", "from 0 to below 1"),
        ("inertia:seen_ratio=1", "from 0 to below 1"),
        ("inertia:tokens=0", "at least 1"),
        ("inertia:tokens=1.5", "at least 1"),
        ("inertia:tokens=99999999999999999999", "at least 1"),
        ("inertia:alpha=1", "from 0 to below 1"),
        ("inertia:refresh=0", "at least 1"),
        ("inertia:refresh=never", "`once`"),
        ("inertia:interval=0", "at least 1"),
        ("inertia:window=0", "at least 1"),
        ("inertia:sinks=-1", "a whole number"),
        ("inertia:sinks=+1", "a whole number"),
        ("inertia:recent=many", "a whole number"),
        ("inertia:reserve=1.1", "from 0 to 1"),
        ("inertia:rescue=yes", "`true` or `false`"),
        ("inertia:layers=5-4", "such as `4-11`"),
        ("inertia:layers=a", "such as `4-11`"),
        ("random:seed=x", "a whole number"),
        ("inertia:pool=power1", "`power2` to `power16`"),
        ("inertia:pool=power17", "`power2` to `power16`"),
        ("inertia:kernel=max4", "odd width from 3 to 255"),
        ("inertia:coupling=per-head,safeguard=2", "from 0 to 1"),
        ("inertia:coupling=global", "`sequential`"),
        ("inertia:scorer=magic", "`attention`"),
        ("inertia:aggregation=mean", "`ema`"),
        ("snapkv:aggregation=mean0,at=decode", "`ema`"),
        ("snapkv:at=both", "`prefill` or `decode`"),
        ("kvzip:share=head", "`uniform`, `layer` or `model`"),
        ("kvzip:masked=1", "`true` or `false`"),
        ("kvzip:chunk=15", "from 16 to 65536"),
        ("expected-attention:future=0", "from 1 to 65536"),
        ("expected-attention:future=65537", "from 1 to 65536"),
        ("expected-attention:future=4294967809", "from 1 to 65536"),
    ] {
        let error = text.parse::<Method>().unwrap_err();
        assert!(matches!(error, PolicyError::BadValue { .. }), "{text}: {error}");
        assert!(error.to_string().contains(range), "{error}");
    }
}

#[test]
fn contradictions_are_refused() {
    for text in [
        "full:ratio=0.9",
        "inertia:ratio=0.9,tokens=5",
        "inertia:tokens=5,seen_ratio=0.5",
        "h2o:alpha=0.9",
        "inertia:seed=4",
        "inertia:safeguard=0.2",
        "inertia:coupling=per-layer,layers=1-2",
        "inertia:coupling=per-head,layers=1-2",
        "inertia:coupling=per-head,pool=power2",
        "inertia:scorer=key-norm,pool=max",
        "inertia:scorer=key-diff,window=4",
        "recency:layers=1",
    ] {
        let error = text.parse::<Method>().unwrap_err();
        assert!(matches!(error, PolicyError::Conflict { .. }), "{text}: {error}");
    }
    assert!(matches!(
        "inertia:ratio=0.9,ratio=0.8".parse::<Method>(),
        Err(PolicyError::DuplicateKey { key: "ratio" })
    ));
    for text in ["inertia:ratio", "inertia:ratio=", "inertia:,", "inertia:ratio=0.9,"] {
        assert!(
            matches!(text.parse::<Method>(), Err(PolicyError::MalformedPair { .. })),
            "{text}"
        );
    }
    for text in ["", ":", ":ratio=0.9", "INERTIA"] {
        assert!(
            matches!(text.parse::<Method>(), Err(PolicyError::UnknownMethod { .. })),
            "{text}"
        );
    }
}

#[test]
fn a_budget_can_be_put_over_a_method() {
    let budget: Budget = "tokens=128".parse().unwrap();
    assert_eq!(
        method("inertia:ratio=0.5,refresh=4").with_budget(budget).to_string(),
        "inertia:tokens=128,refresh=4"
    );
    assert_eq!(method("full").with_budget(budget), Method::full());
}

#[test]
fn methods_made_by_hand_print_what_they_do() {
    let made = |name, policy| Method {
        prefill: None,
        decode: Rule { name, policy },
    };
    let unbounded = made(
        Preset::H2o,
        Policy {
            budget: Budget::Full,
            ..Preset::H2o.policy(Stage::Decode)
        },
    );
    assert_eq!(unbounded.to_string(), "full");
    let bounded = made(Preset::Full, method("inertia:tokens=7").decode.policy);
    assert_eq!(bounded.to_string(), "inertia:tokens=7");
    assert_eq!(format!("[{:>8}]", Method::full()), "[    full]");
}
