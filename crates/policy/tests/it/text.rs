//! The textual form of methods.

use inertiakv_policy::{
    Across, Aggregation, Budget, Coupling, HeadPooling, LayerRange, Method, Policy, PolicyError, Preset, Protect,
    Ratio, Refresh, Rule, Scorer, Share, Smoothing, Stage,
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
    assert_eq!(
        method("inertia-adaptive").decode.policy,
        Policy {
            aggregation: Aggregation::Adaptive,
            ..inertia.clone()
        }
    );
    assert_eq!(
        method("inertia-reactive"),
        method("inertia-reactive:alpha=0.8,reactive=true")
    );
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
    assert_eq!(Method::keys().count(), 25);
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
        reactive: false,
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
        ("inertia:window=0", "from 1 to 1024"),
        ("inertia:window=1025", "from 1 to 1024"),
        ("snapkv:at=decode,aggregation=mean257", "up to 256"),
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
        ("inertia:pool=power+2", "`power2` to `power16`"),
        ("inertia:kernel=max+3", "odd width from 3 to 255"),
        ("inertia:kernel=max4", "odd width from 3 to 255"),
        ("inertia:coupling=per-head,safeguard=2", "from 0 to 1"),
        ("inertia:coupling=global", "`sequential`"),
        ("inertia:scorer=magic", "`attention`"),
        ("inertia:aggregation=mean", "`ema`"),
        ("snapkv:aggregation=mean0,at=decode", "`ema`"),
        ("snapkv:at=both", "`prefill` or `decode`"),
        ("kvzip:share=head", "`uniform`, `layer` or `model`"),
        ("inertia:reactive=on", "`true` or `false`"),
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
fn every_preset_works_at_each_of_its_stages() {
    for name in Preset::ALL {
        assert!(!name.stages().is_empty() && !name.ranks().is_empty() && !name.source().is_empty());
        for &stage in name.stages() {
            let rule = Rule {
                name,
                policy: name.policy(stage),
            };
            assert_eq!(rule.policy.validate(stage), Ok(()), "{name} at {stage}");
            let alone = match stage {
                Stage::Prefill => Method {
                    prefill: Some(rule),
                    decode: Rule::full(),
                },
                Stage::Decode => Method {
                    prefill: None,
                    decode: rule,
                },
            };
            let text = alone.to_string();
            assert_eq!(method(&text), alone, "{text}");
            assert_eq!(text.contains("at="), stage != name.stages()[0], "{text}");
            // Joined, the place says the stage.
            let text = match stage {
                Stage::Prefill => format!("{name}:tokens=9+inertia:tokens=7"),
                Stage::Decode if name == Preset::Full => "snapkv".to_owned(),
                Stage::Decode => format!("snapkv:tokens=9+{name}:tokens=7"),
            };
            let of_whole_prompts = [Preset::InertiaAux, Preset::InertiaAdaptive, Preset::InertiaReactive];
            if !of_whole_prompts.contains(&name) {
                assert_eq!(method(&text).to_string(), text);
            }
        }
    }
}

#[test]
fn every_row_of_appendix_b_has_a_text() {
    let protect = |text: &str| method(text).decode.policy.protect;
    let reserve = |reserve| Protect {
        reserve,
        ..Protect::NONE
    };
    assert_eq!(protect("inertia:reserve=standard"), reserve(Protect::STANDARD_RESERVE));
    assert_eq!(protect("inertia:reserve=high"), reserve(Protect::HIGH_RESERVE));
    assert_eq!(protect("inertia-aux"), protect("inertia:reserve=standard,rescue=true"));
    let no_momentum = method("single-step:reserve=standard").decode.policy;
    assert_eq!(no_momentum.aggregation, Aggregation::SingleStep);
    assert_eq!(no_momentum.protect, reserve(Protect::STANDARD_RESERVE));
}

#[test]
fn prefill_presets_are_as_published() {
    let of = |text: &str| method(text).prefill.map(|rule| rule.policy).unwrap();
    for (text, scorer, coupling) in [
        ("tova", Scorer::Attention, Coupling::PerLayer),
        ("snapkv", Scorer::Attention, Coupling::PerHead),
        ("keydiff", Scorer::KeyDiff, Coupling::PerHead),
        ("knorm", Scorer::KeyNorm, Coupling::PerHead),
        ("expected-attention", Scorer::ExpectedAttention(512), Coupling::PerHead),
        ("adakv-ea", Scorer::ExpectedAttention(512), Coupling::PerHead),
        ("kvzip", Scorer::Reconstruction(2048), Coupling::PerHead),
    ] {
        let policy = of(text);
        assert_eq!((policy.scorer, policy.coupling), (scorer, coupling), "{text}");
        assert_eq!(
            (policy.interval, policy.masked),
            (Policy::WHOLE_PROMPT, false),
            "{text}"
        );
        assert_eq!(method(text).decode, Rule::full(), "{text}");
    }
    let snapkv = of("snapkv");
    assert_eq!(
        (snapkv.window, snapkv.protect.recent, snapkv.smoothing),
        (64, 64, Smoothing::Padded(5))
    );
    // While decoding, the window is of steps.
    let snapkv = method("snapkv:at=decode").decode.policy;
    assert_eq!((snapkv.window, snapkv.aggregation), (1, Aggregation::Mean(64)));
    let share = |across, hundredths| Share::Adaptive {
        across,
        safeguard: Ratio::percent(hundredths),
    };
    assert_eq!(of("adakv-ea").share, share(Across::Layer, 20));
    assert_eq!(of("kvzip").share, share(Across::Model, 0));
    for text in ["expected-attention", "adakv-ea", "kvzip", "streaming-llm:at=prefill"] {
        assert_eq!(of(text).protect.sinks, 4, "{text}");
    }
    assert_eq!(of("tova").protect.recent, 1);
}

#[test]
fn two_methods_are_joined_by_a_plus() {
    let joined = method("snapkv:ratio=0.5+inertia:ratio=0.9,alpha=0.9");
    assert_eq!(joined.to_string(), "snapkv:ratio=0.5+inertia:alpha=0.9");
    assert_eq!(joined.prefill, method("snapkv:ratio=0.5").prefill);
    assert_eq!(joined.decode, method("inertia:alpha=0.9").decode);
    assert_eq!(
        method(" snapkv : ratio = 0.5 + inertia "),
        method("snapkv:ratio=0.5+inertia")
    );
    // `full` on either side is what a method alone has there.
    assert_eq!(method("full+inertia"), method("inertia"));
    assert_eq!(method("snapkv+full"), method("snapkv"));
    assert_eq!(method("full+full"), Method::full());
    assert_eq!(method("snapkv+snapkv").to_string(), "snapkv+snapkv");
    // The budget that bounds the cache in the end.
    let budget: Budget = "tokens=5".parse().unwrap();
    for (text, bounded) in [
        ("snapkv:ratio=0.5+inertia", "snapkv:ratio=0.5+inertia:tokens=5"),
        ("snapkv:ratio=0.5", "snapkv:tokens=5"),
    ] {
        assert_eq!(method(text).with_budget(budget).to_string(), bounded);
        assert_eq!(method(text).with_budget(budget).last_policy().budget, budget);
    }
    assert!(method("snapkv").evicts() && !method("full+full").evicts());
    for (text, own) in [("snapkv", false), ("snapkv:interval=512", true), ("inertia", false)] {
        assert_eq!(method(text).needs_own_prefill(), own, "{text}");
    }
}

#[test]
fn stages_are_checked() {
    for (text, name, stage) in [
        ("inertia:at=prefill", Preset::Inertia, Stage::Prefill),
        ("inertia+inertia", Preset::Inertia, Stage::Prefill),
        ("kvzip:at=decode", Preset::KvZip, Stage::Decode),
        ("snapkv+kvzip", Preset::KvZip, Stage::Decode),
    ] {
        let error = text.parse::<Method>().unwrap_err();
        assert_eq!(error, PolicyError::WrongStage { name, stage });
        assert!(
            error.to_string().contains(&format!("use it at {}", name.stages()[0])),
            "{error}"
        );
    }
    for text in ["snapkv+inertia+inertia", "snapkv + recency + full"] {
        assert!(
            matches!(text.parse::<Method>(), Err(PolicyError::TooManyStages { .. })),
            "{text}"
        );
    }
    for text in ["snapkv+", "+inertia", "snapkv++inertia"] {
        assert!(
            matches!(text.parse::<Method>(), Err(PolicyError::UnknownMethod { .. })),
            "{text}"
        );
    }
}

/// The key an error is about.
fn conflict(text: &str) -> &'static str {
    match text.parse::<Method>() {
        Err(PolicyError::Conflict { key, .. }) => key,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn contradictions_of_stages_name_the_key() {
    for (text, key) in [
        ("recency:at=prefill+inertia", "at"),
        ("snapkv+recency:at=decode", "at"),
        ("full:at=prefill", "at"),
        ("tova:aggregation=ema", "aggregation"),
        ("tova:refresh=4", "refresh"),
        ("tova:refresh=once", "refresh"),
        ("tova:reserve=high", "reserve"),
        ("tova:rescue=true", "rescue"),
        ("snapkv+inertia-aux", "rescue"),
        ("kvzip:interval=512", "interval"),
        ("adakv-ea:interval=512,masked=true", "interval"),
        ("inertia:interval=prompt", "interval"),
        ("inertia:masked=true", "masked"),
        ("kvzip:masked=true+inertia", "masked"),
        ("inertia:scorer=reconstruction", "scorer"),
        ("snapkv+inertia:scorer=expected-attention", "scorer"),
        ("learned:coupling=per-head", "scorer"),
        ("snapkv:future=9", "future"),
        ("kvzip:future=9", "future"),
        ("adakv-ea:chunk=512", "chunk"),
        ("kvzip:scorer=attention,chunk=512", "chunk"),
        ("inertia:aggregation=mean8", "aggregation"),
        ("tova:share=model", "share"),
        ("snapkv:coupling=per-layer,share=layer", "share"),
        ("kvzip:safeguard=none,share=model", "safeguard"),
        ("kvzip:share=uniform,safeguard=0.2", "safeguard"),
        ("kvzip:window=4", "window"),
    ] {
        assert_eq!(conflict(text), key, "{text}");
    }
}

#[test]
fn share_and_safeguard_go_together() {
    let share = |text: &str| method(text).prefill.unwrap().policy.share;
    let adaptive = |across, hundredths| Share::Adaptive {
        across,
        safeguard: Ratio::percent(hundredths),
    };
    for (text, expected) in [
        ("snapkv", Share::Uniform),
        ("snapkv:share=layer", adaptive(Across::Layer, 0)),
        ("snapkv:share=model,safeguard=0.5", adaptive(Across::Model, 50)),
        ("snapkv:safeguard=0.2", adaptive(Across::Layer, 20)),
        ("snapkv:safeguard=none", Share::Uniform),
        ("adakv-ea", adaptive(Across::Layer, 20)),
        ("adakv-ea:share=model", adaptive(Across::Model, 20)),
        ("adakv-ea:share=uniform", Share::Uniform),
        ("adakv-ea:safeguard=none", Share::Uniform),
        ("kvzip:safeguard=0.1", adaptive(Across::Model, 10)),
        ("kvzip:share=layer", adaptive(Across::Layer, 0)),
    ] {
        assert_eq!(share(text), expected, "{text}");
        assert_eq!(share(&method(text).to_string()), expected, "{text}");
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
    // Nor does a name count where it has no such stage, or a prefill that keeps everything.
    let misnamed = Method {
        prefill: Some(Rule {
            name: Preset::Inertia,
            policy: method("tova:tokens=7").prefill.unwrap().policy,
        }),
        decode: Rule::full(),
    };
    assert_eq!(misnamed.to_string(), "tova:tokens=7");
    let idle = Method {
        prefill: Some(Rule {
            name: Preset::Tova,
            policy: Policy {
                budget: Budget::Full,
                ..Preset::Tova.policy(Stage::Prefill)
            },
        }),
        decode: Rule::full(),
    };
    assert_eq!((idle.to_string().as_str(), idle.evicts()), ("full", false));
    assert_eq!(format!("[{:>8}]", Method::full()), "[    full]");
}
