//! Prompts that are compressed: what is left of them, with which budgets.

use inertiakv_policy::{EvictionPlan, HeadObservation, PolicyError, PolicyState, Shape};

use crate::support::{CacheModel, close, compressed, method, noise, observe_all, state, step};

const LAYERS: usize = 3;
const HEADS: usize = 2;

fn shape() -> Shape {
    Shape::uniform(LAYERS, HEADS, 2)
}

/// Heads differ in scale, so that those that compete get unequal shares.
fn uneven(layer: usize, head: usize, position: u32) -> f32 {
    noise(3, [layer, head, position as usize, 0]) * (1 + layer + 2 * head) as f32
}

fn rows(state: &PolicyState) -> Vec<usize> {
    (0..LAYERS)
        .flat_map(|layer| (0..HEADS).map(move |head| (layer, head)))
        .map(|(layer, head)| state.rows(layer, head))
        .collect()
}

#[test]
fn every_head_keeps_the_budget() {
    for (text, protected) in [
        ("tova:tokens=50", vec![199]),
        ("snapkv:tokens=50,window=8,recent=8", (192..200).collect()),
        ("snapkv:tokens=50", vec![199]),
        ("keydiff:tokens=50", vec![]),
        ("knorm:ratio=0.75", vec![]),
        ("expected-attention:ratio=0.75", vec![0, 1, 2, 3]),
        ("kvzip:ratio=0.75,share=uniform", vec![0, 1, 2, 3]),
        ("streaming-llm:at=prefill,tokens=50", (0..4).chain(154..200).collect()),
        ("recency:at=prefill,tokens=50", (150..200).collect()),
        ("random:at=prefill,tokens=50", vec![]),
        ("tova:scorer=learned,tokens=50", vec![199]),
    ] {
        let (state, _) = compressed(text, &shape(), 200, 200, &uneven);
        assert_eq!((state.budget(), state.evictions()), (Some(50), 150), "{text}");
        for layer in 0..LAYERS {
            for head in 0..HEADS {
                let retained = state.retained(layer, head);
                assert_eq!(retained.len(), 50, "{text}");
                assert!(protected.iter().all(|position| retained.contains(position)), "{text}");
            }
        }
    }
}

#[test]
fn heads_of_a_layer_compete_for_its_entries() {
    for (text, least) in [
        ("adakv-ea:tokens=50", 10),
        ("adakv-ea:tokens=50,safeguard=0", 4),
        ("snapkv:tokens=80,share=layer,recent=6,window=8", 6),
    ] {
        let (state, _) = compressed(text, &shape(), 200, 200, &uneven);
        let budget = state.budget().unwrap();
        for layer in rows(&state).chunks(HEADS) {
            assert_eq!(layer.iter().sum::<usize>(), budget * HEADS, "{text}");
            assert!(layer.iter().all(|&rows| rows >= least), "{text}: {layer:?}");
        }
        assert!(
            rows(&state).iter().any(|&rows| rows != budget),
            "{text}: nothing was shared"
        );
    }
}

#[test]
fn heads_of_the_model_compete_for_all_entries() {
    let mut best = (0..LAYERS * HEADS)
        .flat_map(|place| (4..200).map(move |position| (place, position)))
        .collect::<Vec<_>>();
    let relevance = |place: usize, position: u32| noise(9, [place / HEADS, place % HEADS, position as usize, 4]);
    best.sort_by(|a, b| relevance(b.0, b.1).total_cmp(&relevance(a.0, a.1)));
    let (state, _) = compressed("kvzip:tokens=50", &shape(), 200, 200, &uneven);
    assert_eq!(rows(&state).iter().sum::<usize>(), 50 * LAYERS * HEADS);
    assert_eq!(state.evictions(), 150);
    for place in 0..LAYERS * HEADS {
        // Four sinks in each head; the rest of the budget goes to the best of all heads.
        let kept = best[..46 * LAYERS * HEADS].iter().filter(|entry| entry.0 == place);
        let mut expected: Vec<u32> = (0..4).chain(kept.map(|entry| entry.1)).collect();
        expected.sort_unstable();
        assert_eq!(state.retained(place / HEADS, place % HEADS), expected);
    }
}

#[test]
fn a_safeguard_holds_across_the_model() {
    let drowned = |layer: usize, _: usize, position: u32| if layer == 0 { 0.0 } else { 1.0 + position as f32 };
    let text = |safeguard| format!("tova:coupling=per-head,tokens=20,share=model,safeguard={safeguard}");
    for (safeguard, least) in [("0", 1), ("0.25", 5), ("1", 20)] {
        let (state, _) = compressed(&text(safeguard), &shape(), 100, 100, &drowned);
        assert_eq!(rows(&state)[..HEADS], [least; HEADS], "safeguard {safeguard}");
        assert_eq!(rows(&state).iter().sum::<usize>(), 20 * LAYERS * HEADS);
    }
}

#[test]
fn snapkv_is_as_published() {
    // Once more, plainly: mean attention, average pooling with zeros beyond the ends and no window, then the best.
    const TOKENS: usize = 150;
    const WINDOW: usize = 8;
    const BUDGET: usize = 40;
    let text = format!("snapkv:tokens={BUDGET},window={WINDOW},recent={WINDOW}");
    let (state, _) = compressed(&text, &shape(), TOKENS, TOKENS, &uneven);
    for layer in 0..LAYERS {
        for head in 0..HEADS {
            let score = |position: isize| {
                let counts = (0..(TOKENS - WINDOW) as isize).contains(&position);
                if counts {
                    f64::from(uneven(layer, head, position as u32))
                } else {
                    0.0
                }
            };
            let pooled = |position: usize| (-2..=2).map(|offset| score(position as isize + offset)).sum::<f64>() / 5.0;
            let mut order: Vec<usize> = (0..TOKENS - WINDOW).collect();
            order.sort_by(|&a, &b| pooled(b).total_cmp(&pooled(a)));
            let mut expected: Vec<u32> = order[..BUDGET - WINDOW]
                .iter()
                .map(|&position| position as u32)
                .collect();
            expected.extend((TOKENS - WINDOW..TOKENS).map(|position| position as u32));
            expected.sort_unstable();
            assert_eq!(state.retained(layer, head), expected);
        }
    }
}

#[test]
fn a_prompt_asks_for_what_its_scorer_reads() {
    for (text, features, window) in [
        ("snapkv", [true, false, false], 64),
        ("tova", [true, false, false], 1),
        ("adakv-ea", [false, true, true], 1),
        ("kvzip", [false, false, true], 1),
        ("random:at=prefill", [false; 3], 1),
    ] {
        let policy = method(text).prefill.unwrap().policy;
        let mut state = PolicyState::of_prompt(&policy, &shape(), 500).unwrap();
        assert_eq!(
            (state.rows(0, 0), state.seen_tokens(), state.prompt_tokens()),
            (0, 0, 500)
        );
        let needs = state.begin_step(500);
        let found = [needs.features.mass, needs.features.value_norm, needs.features.relevance];
        assert_eq!((found, needs.window, needs.refresh), (features, window, true), "{text}");
        assert_eq!(needs.layers, [features != [false; 3]; LAYERS], "{text}");
    }
}

#[test]
fn a_prompt_within_the_budget_is_not_scored() {
    for text in ["kvzip:tokens=30", "tova:tokens=30", "random:at=prefill,tokens=30"] {
        let policy = method(text).prefill.unwrap().policy;
        let mut state = PolicyState::of_prompt(&policy, &shape(), 30).unwrap();
        let needs = state.begin_step(30);
        assert!(!needs.any() && !needs.refresh, "{text}");
        assert_eq!(state.finish_step(), Ok(EvictionPlan::Nothing));
        assert_eq!((state.rows(2, 1), state.evictions()), (30, 0));
    }
}

#[test]
fn an_interval_bounds_the_memory_of_a_prompt() {
    for text in [
        "tova:tokens=30,interval=16",
        "snapkv:tokens=30,interval=16,recent=5,window=5",
        "snapkv:tokens=30,interval=16,recent=5,window=5,share=layer",
        "adakv-ea:tokens=30,interval=16,share=model",
        "recency:at=prefill,tokens=30,interval=16",
        "tova:coupling=sequential,tokens=30,interval=16",
    ] {
        let policy = method(text).prefill.unwrap().policy;
        let mut state = PolicyState::of_prompt(&policy, &shape(), 201).unwrap();
        let mut cache = CacheModel::new(&shape(), 0);
        while state.seen_tokens() < 201 {
            let new_tokens = policy.interval.min(201 - state.seen_tokens());
            let seen = state.seen_tokens() + new_tokens;
            cache.append(new_tokens);
            let held: usize = cache.rows.iter().flatten().map(Vec::len).sum();
            assert!(held <= (30 + 16) * LAYERS * HEADS, "{text}: {held} entries");
            let plan = step(&mut state, new_tokens, &uneven);
            cache.apply(&plan);
            cache.assert_mirrors(&state);
            let kept = rows(&state).iter().sum::<usize>();
            assert_eq!(kept, seen.min(30) * LAYERS * HEADS, "{text}, {seen} tokens");
            assert!(
                (0..LAYERS).all(|layer| state.positions(layer, 0).contains(&(seen as u32 - 1)))
                    || policy.protect.recent == 0
            );
        }
        assert_eq!(state.evictions(), 171);
    }
}

#[test]
fn a_prompt_in_steps_forgets_what_it_scored_before() {
    // Whatever a step scores, the last one decides about what is left by then.
    let text = "tova:tokens=10,interval=20,recent=0";
    let policy = method(text).prefill.unwrap().policy;
    let mut state = PolicyState::of_prompt(&policy, &shape(), 40).unwrap();
    step(&mut state, 20, &|_, _, position| if position < 10 { 1.0 } else { 0.0 });
    assert_eq!(state.retained(1, 1), (0..10).collect::<Vec<u32>>());
    step(&mut state, 20, &|_, _, position| if position < 10 { 0.0 } else { 1.0 });
    assert_eq!(state.retained(1, 1), (30..40).collect::<Vec<u32>>());
}

#[test]
fn sliding_layers_keep_the_whole_prompt() {
    let shape = Shape {
        evictable: vec![true, false, true],
        ..shape()
    };
    for text in [
        "kvzip:tokens=20",
        "tova:tokens=20",
        "tova:coupling=sequential,tokens=20",
    ] {
        let (prompt, mut cache) = compressed(text, &shape, 100, 100, &uneven);
        assert_eq!(prompt.rows(1, 1), 100, "{text}");
        let total: usize = [0, 2]
            .iter()
            .map(|&layer| prompt.rows(layer, 0) + prompt.rows(layer, 1))
            .sum();
        assert_eq!((total, prompt.evictions()), (20 * 4, 80), "{text}");
        let mut state = prompt.decode(&method("inertia:tokens=15").decode.policy).unwrap();
        for _ in 0..5 {
            cache.step(&mut state, 1, &uneven);
        }
        assert_eq!(state.rows(1, 1), 105, "{text}");
    }
}

#[test]
fn observations_of_a_prompt_are_checked() {
    let policy = method("adakv-ea:tokens=5").prefill.unwrap().policy;
    let fresh = PolicyState::of_prompt(&policy, &Shape::uniform(1, 1, 1), 8).unwrap();
    let (numbers, mut bad) = ([0.5; 8], [0.5; 8]);
    bad[3] = f32::NAN;
    let observed = |relevance: &[f32]| {
        let mut state = fresh.clone();
        state.begin_step(8);
        let head = HeadObservation {
            value_norm: &numbers,
            relevance,
            ..Default::default()
        };
        state.observe(0, 1, &[head])
    };
    assert_eq!(observed(&numbers), Ok(()));
    assert_eq!(observed(&bad), Err(PolicyError::NotFinite { layer: 0, head: 0 }));
    for relevance in [&numbers[..7], &[]] {
        assert_eq!(
            observed(relevance),
            Err(PolicyError::RowCount {
                layer: 0,
                head: 0,
                feature: "relevance",
                expected: 8,
                found: relevance.len()
            })
        );
    }
}

#[test]
fn states_belong_to_their_stage() {
    let conflict = |result: Result<PolicyState, PolicyError>| match result {
        Err(PolicyError::Conflict { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    let of = |text: &str| method(text).decode.policy;
    assert_eq!(
        conflict(PolicyState::of_prompt(&of("inertia"), &shape(), 50)),
        "aggregation"
    );
    let tova = method("tova").prefill.unwrap().policy;
    assert_eq!(conflict(PolicyState::new(&tova, &shape(), 50)), "interval");
    let (prompt, _) = compressed("tova", &shape(), 50, 50, &uneven);
    assert_eq!(conflict(prompt.clone().decode(&tova)), "interval");
    // A rescue looks at a whole prompt, which `Method` refuses too.
    assert_eq!(conflict(prompt.clone().decode(&of("inertia-aux"))), "rescue");
    let mut open = prompt;
    let needs = open.begin_step(1);
    assert!(matches!(
        open.clone().decode(&of("inertia")),
        Err(PolicyError::OutOfOrder { call: "decode", .. })
    ));
    observe_all(&mut open, &needs.layers, 1, &uneven).unwrap();
    open.finish_step().unwrap();
    assert!(open.decode(&of("inertia")).is_ok());
}

#[test]
fn a_learned_score_is_a_softmax_over_the_layer() {
    // The relevance of two heads is averaged, then made probabilities.
    let shape = Shape::uniform(1, 2, 3);
    let mut state = state("learned:tokens=9", &shape, 2);
    let needs = state.begin_step(1);
    assert!(needs.features.relevance && !needs.features.mass);
    let logits = [[1.0f32, -2.0, 0.5], [3.0, 0.0, -0.5]];
    let heads = logits.each_ref().map(|relevance| HeadObservation {
        relevance,
        ..Default::default()
    });
    state.observe(0, 1, &heads).unwrap();
    state.finish_step().unwrap();
    let weights = [2.0f32, -1.0, 0.0].map(f32::exp);
    for (row, weight) in weights.iter().enumerate() {
        let expected = 0.2 * weight / weights.iter().sum::<f32>();
        close(state.utility(0, 0)[row], expected);
    }
}
