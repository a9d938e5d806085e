//! What is refused, and in which words.

use inertiakv_policy::{HeadObservation, PolicyError, PolicyState, Shape};

use crate::support::{method, observe_all, state};

#[test]
fn nan_and_infinity_name_the_layer_and_head() {
    for (text, bad) in [
        ("inertia", f32::NAN),
        ("inertia:pool=max", f32::NAN),
        ("inertia:pool=power2", f32::NAN),
        ("inertia:coupling=per-head", f32::NAN),
        ("inertia:coupling=layer-mean", f32::INFINITY),
        ("inertia:scorer=value-norm", f32::INFINITY),
        ("inertia:scorer=entropy", f32::NAN),
        ("h2o", f32::NEG_INFINITY),
    ] {
        let mut state = state(text, &Shape::uniform(3, 2, 1), 20);
        let needs = state.begin_step(1);
        let error = observe_all(&mut state, &needs.layers, 1, &|layer, head, position| {
            if (layer, head, position) == (1, 1, 17) {
                bad
            } else {
                0.1
            }
        })
        .unwrap_err();
        assert_eq!(error, PolicyError::NotFinite { layer: 1, head: 1 }, "{text}");
        assert!(error.to_string().contains("layer 1, KV head 1"));
        assert!(state.finish_step().is_err(), "{text}: a step with NaN was finished");
    }
}

#[test]
fn nan_norms_are_seen() {
    for (text, observation) in [
        (
            "inertia:scorer=value-norm",
            HeadObservation {
                mass: &[0.5; 2],
                value_norm: &[1.0, f32::NAN],
                ..Default::default()
            },
        ),
        (
            "inertia:scorer=key-norm",
            HeadObservation {
                key_norm: &[1.0, f32::NAN],
                ..Default::default()
            },
        ),
        (
            "inertia:scorer=key-diff",
            HeadObservation {
                key_similarity: &[1.0, f32::NAN],
                ..Default::default()
            },
        ),
    ] {
        let mut state = state(text, &Shape::uniform(1, 1, 1), 1);
        state.begin_step(1);
        assert_eq!(
            state.observe(0, 1, &[observation]),
            Err(PolicyError::NotFinite { layer: 0, head: 0 }),
            "{text}"
        );
    }
}

#[test]
fn observations_must_fit_the_rows() {
    let mut state = state("inertia:scorer=value-norm", &Shape::uniform(1, 2, 1), 3);
    state.begin_step(1);
    let whole = HeadObservation {
        mass: &[0.25; 4],
        value_norm: &[1.0; 4],
        ..Default::default()
    };
    let short = HeadObservation {
        mass: &[0.25; 3],
        ..whole
    };
    let absent = HeadObservation {
        value_norm: &[],
        ..whole
    };
    assert_eq!(
        state.observe(0, 1, &[whole]),
        Err(PolicyError::HeadCount {
            layer: 0,
            expected: 2,
            found: 1
        })
    );
    assert_eq!(
        state.observe(0, 0, &[whole, whole]),
        Err(PolicyError::NoQueries { layer: 0 })
    );
    let rows = |feature, found| PolicyError::RowCount {
        layer: 0,
        head: 1,
        feature,
        expected: 4,
        found,
    };
    assert_eq!(state.observe(0, 1, &[whole, short]), Err(rows("mass", 3)));
    assert_eq!(state.observe(0, 1, &[whole, absent]), Err(rows("value_norm", 0)));
    // A refused observation changes nothing, so the right one still goes through.
    assert_eq!(state.observe(0, 1, &[whole, whole]), Ok(()));
    assert!(state.finish_step().is_ok());
}

#[test]
fn calls_out_of_order_are_errors() {
    let fresh = state("inertia", &Shape::uniform(3, 1, 1), 3);
    let heads = [HeadObservation {
        mass: &[0.25; 4],
        ..Default::default()
    }];

    let mut early = fresh.clone();
    assert!(matches!(
        early.finish_step(),
        Err(PolicyError::OutOfOrder {
            call: "finish_step",
            ..
        })
    ));
    assert!(matches!(
        early.observe(0, 1, &heads),
        Err(PolicyError::OutOfOrder { call: "observe", .. })
    ));

    let mut twice = fresh.clone();
    twice.begin_step(1);
    twice.begin_step(1);
    assert!(matches!(
        twice.finish_step(),
        Err(PolicyError::OutOfOrder { call: "begin_step", .. })
    ));

    let mut skipping = fresh.clone();
    skipping.begin_step(1);
    assert_eq!(
        skipping.observe(1, 1, &heads),
        Err(PolicyError::LayerOrder { expected: 0, found: 1 })
    );
    skipping.observe(0, 1, &heads).unwrap();
    assert_eq!(
        skipping.observe(0, 1, &heads),
        Err(PolicyError::LayerOrder { expected: 1, found: 0 })
    );
    assert_eq!(skipping.finish_step(), Err(PolicyError::MissingLayer { layer: 1 }));
    for layer in 1..3 {
        skipping.observe(layer, 1, &heads).unwrap();
    }
    assert!(skipping.observe(2, 1, &heads).is_err(), "a layer was observed twice");
    assert!(skipping.finish_step().is_ok());
}

#[test]
fn shapes_and_layers_must_fit() {
    let policy = method("inertia").decode.policy;
    let refused = |shape: Shape| PolicyState::new(&policy, &shape, 5).unwrap_err();
    assert!(matches!(refused(Shape::uniform(0, 1, 1)), PolicyError::BadShape { .. }));
    assert!(matches!(refused(Shape::uniform(1, 0, 1)), PolicyError::BadShape { .. }));
    assert!(matches!(refused(Shape::uniform(1, 1, 0)), PolicyError::BadShape { .. }));
    assert!(matches!(
        refused(Shape {
            evictable: vec![true],
            ..Shape::uniform(2, 1, 1)
        }),
        PolicyError::BadShape { .. }
    ));
    let sliding = Shape {
        evictable: vec![false; 2],
        ..Shape::uniform(2, 1, 1)
    };
    assert_eq!(refused(sliding.clone()), PolicyError::NoEvictableLayer);
    assert!(PolicyState::new(&method("full").decode.policy, &sliding, 5).is_ok());

    let mixed = Shape {
        evictable: vec![false, true, true],
        ..Shape::uniform(3, 1, 1)
    };
    let with_layers = |text: &str| PolicyState::new(&method(text).decode.policy, &mixed, 5);
    assert!(with_layers("inertia:layers=0-2").is_ok());
    for text in ["inertia:layers=0", "inertia:layers=1-3", "inertia:layers=7"] {
        assert!(
            matches!(with_layers(text), Err(PolicyError::BadLayers { layers: 3, .. })),
            "{text}"
        );
    }
}

#[test]
fn sequences_end_at_32_bits() {
    let policy = method("inertia").decode.policy;
    let shape = Shape::uniform(1, 1, 1);
    assert_eq!(
        PolicyState::new(&policy, &shape, usize::MAX).unwrap_err(),
        PolicyError::TooManyTokens
    );
    let mut state = PolicyState::new(&policy, &shape, 5).unwrap();
    state.add_prompt_tokens(usize::MAX);
    state.begin_step(usize::MAX);
    assert_eq!(state.finish_step(), Err(PolicyError::TooManyTokens));
}

#[test]
fn heads_and_layers_that_do_not_exist_hold_nothing() {
    let state = state("inertia", &Shape::uniform(1, 1, 1), 5);
    for (layer, head) in [(0, 1), (1, 0), (usize::MAX, usize::MAX)] {
        assert_eq!(state.rows(layer, head), 0);
        assert!(state.positions(layer, head).is_empty() && state.utility(layer, head).is_empty());
    }
}
