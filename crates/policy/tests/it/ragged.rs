//! Decoding from a compressed prompt, of which heads and layers hold different entries.

use std::collections::BTreeMap;

use inertiakv_policy::{Coupling, EvictionPlan, PolicyState, Shape};
use proptest::prelude::*;

use crate::random::{after_prompt, prompt_policy, run};
use crate::support::{CacheModel, close, compressed, method, noise, state, step, utility_of};

const LAYERS: usize = 3;
const HEADS: usize = 4;

fn shape() -> Shape {
    Shape::uniform(LAYERS, HEADS, 2)
}

fn noisy(t: u64) -> impl Fn(usize, usize, u32) -> f32 {
    move |layer, head, position| noise(t, [layer, head, position as usize, 0]) * (1 + layer + 2 * head) as f32
}

fn decoding(prompt: &PolicyState, text: &str) -> PolicyState {
    prompt
        .clone()
        .decode(&method(text).decode.policy)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

const PROMPTS: [&str; 6] = [
    "kvzip:ratio=0.5",
    "adakv-ea:ratio=0.5",
    "snapkv:ratio=0.5,window=8,recent=8",
    "tova:ratio=0.5",
    "random:at=prefill,ratio=0.5",
    // Little is left, so decoding fills the cache before it evicts.
    "kvzip:ratio=0.95",
];

#[test]
fn budgets_hold_whoever_shares_a_ranking() {
    for prompt in PROMPTS {
        let (after_prompt, cache) = compressed(prompt, &shape(), 120, 120, &noisy(0));
        for (text, sharing) in [
            ("inertia:ratio=0.8", LAYERS * HEADS),
            ("h2o:ratio=0.8,coupling=layer-mean", LAYERS * HEADS),
            ("inertia:ratio=0.8,coupling=per-layer,pool=power3", HEADS),
            ("inertia:ratio=0.8,coupling=per-head", 1),
            ("streaming-llm:ratio=0.8", LAYERS * HEADS),
            ("score-free:ratio=0.8,sinks=2,recent=3", LAYERS * HEADS),
            ("single-step:ratio=0.8,interval=5,pool=max", LAYERS * HEADS),
        ] {
            let mut state = decoding(&after_prompt, text);
            let mut cache = cache.clone();
            cache.assert_mirrors(&state);
            let (budget, interval) = (24, state.policy().interval);
            assert_eq!(state.budget(), Some(budget));
            for t in 1..40 {
                let new_tokens = if t == 1 { 7 } else { 1 };
                let held = |cache: &CacheModel| -> Vec<usize> {
                    let rows: Vec<usize> = cache.rows.iter().flatten().map(Vec::len).collect();
                    rows.chunks(sharing).map(|rows| rows.iter().sum()).collect()
                };
                let before = held(&cache);
                cache.step(&mut state, new_tokens, &noisy(t));
                for (before, after) in before.into_iter().zip(held(&cache)) {
                    let grown = before + new_tokens * sharing;
                    if grown > (budget + interval - 1) * sharing {
                        assert!(after <= budget * sharing, "{prompt}+{text}, step {t}: {after} entries");
                        assert!(
                            after > (budget - 1) * sharing,
                            "{prompt}+{text}, step {t}: {after} entries"
                        );
                    } else {
                        assert_eq!(after, grown, "{prompt}+{text}, step {t}");
                    }
                }
                let entries: usize = held(&cache).iter().sum();
                let heads = LAYERS * HEADS;
                assert_eq!(state.evictions(), (state.seen_tokens() * heads - entries) / heads);
            }
        }
    }
}

#[test]
fn full_keeps_what_the_prompt_left() {
    for prompt in PROMPTS {
        let (after_prompt, mut cache) = compressed(prompt, &shape(), 120, 120, &noisy(0));
        let mut state = decoding(&after_prompt, "full");
        let evictions = state.evictions();
        for t in 1..10 {
            assert!(!state.clone().begin_step(1).any());
            assert_eq!(cache.step(&mut state, 1, &noisy(t)), EvictionPlan::Nothing);
        }
        assert_eq!(
            (state.evictions(), state.seen_tokens(), state.step()),
            (evictions, 129, 9)
        );
        for layer in 0..LAYERS {
            for head in 0..HEADS {
                assert_eq!(state.rows(layer, head), after_prompt.rows(layer, head) + 9);
            }
        }
    }
}

/// Two layers of one head that keep even and odd positions of ten.
fn even_and_odd() -> PolicyState {
    let parity = |layer: usize, _: usize, position: u32| f32::from(u8::from(position as usize % 2 == layer));
    let (prompt, _) = compressed("tova:tokens=5,recent=0", &Shape::uniform(2, 1, 1), 10, 10, &parity);
    assert_eq!(prompt.retained(0, 0), [0, 2, 4, 6, 8]);
    assert_eq!(prompt.retained(1, 0), [1, 3, 5, 7, 9]);
    prompt
}

#[test]
fn a_position_no_head_of_a_layer_holds_keeps_its_utility() {
    let mut state = decoding(&even_and_odd(), "inertia:tokens=50");
    let mass = |layer: usize, _: usize, position: u32| match (layer, position) {
        (0, 10..) => 3.0,
        (0, _) => 1.0,
        _ => 2.0,
    };
    step(&mut state, 1, &mass);
    // Only one of the layers moves the average of an entry that only it holds.
    for position in [0, 2, 8] {
        close(utility_of(&state, 0, 0, position), 0.2);
    }
    for position in [1, 3, 9] {
        close(utility_of(&state, 1, 0, position), 0.4);
    }
    close(utility_of(&state, 0, 0, 10), 0.8 * 0.6 + 0.2 * 2.0);
    close(utility_of(&state, 1, 0, 10), 0.8 * 0.6 + 0.2 * 2.0);
    // The mean over layers is over those that hold the entry.
    let mut state = decoding(&even_and_odd(), "single-step:coupling=layer-mean,tokens=50");
    step(&mut state, 1, &mass);
    close(utility_of(&state, 0, 0, 4), 1.0);
    close(utility_of(&state, 1, 0, 5), 2.0);
    close(utility_of(&state, 0, 0, 10), 2.5);
}

#[test]
fn single_step_asks_every_layer_that_may_hold_an_entry_alone() {
    let mut state = decoding(&even_and_odd(), "single-step:tokens=50");
    assert_eq!(state.begin_step(1).layers, [true, true]);
    // Of what both hold the last layer decides, as without a compressed prompt.
    let mut state = decoding(&even_and_odd(), "single-step:tokens=50");
    step(&mut state, 1, &|layer, _, position| {
        (layer + 1) as f32 * position as f32
    });
    close(utility_of(&state, 0, 0, 4), 4.0);
    close(utility_of(&state, 1, 0, 5), 10.0);
    close(utility_of(&state, 1, 0, 10), 20.0);
}

/// The pooled score over heads that hold an entry, for every pooling, against a plain twin.
#[test]
fn scores_are_pooled_over_the_heads_that_hold_an_entry() {
    let shape = Shape::uniform(1, 4, 1);
    let (prompt, _) = compressed("kvzip:ratio=0.5", &shape, 60, 60, &noisy(0));
    for (pool, power) in [("mean", 1.0), ("power3", 3.0), ("max", f64::INFINITY)] {
        let mut state = decoding(&prompt, &format!("single-step:tokens=500,pool={pool}"));
        step(&mut state, 1, &noisy(1));
        let mut scores: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for head in 0..4 {
            for &position in state.positions(0, head) {
                scores
                    .entry(position)
                    .or_default()
                    .push(f64::from(noisy(1)(0, head, position)));
            }
        }
        assert!(scores.values().any(|scores| scores.len() == 1) && scores.values().any(|scores| scores.len() == 3));
        for head in 0..4 {
            for (&position, &found) in state.positions(0, head).iter().zip(state.utility(0, head).iter()) {
                let scores = &scores[&position];
                let expected = if power.is_infinite() {
                    scores.iter().copied().fold(0.0, f64::max)
                } else {
                    let mean = scores.iter().map(|score| score.powf(power)).sum::<f64>() / scores.len() as f64;
                    mean.powf(1.0 / power)
                };
                assert!(
                    (f64::from(found) - expected).abs() < 1e-5,
                    "{pool}: {found} is not {expected}"
                );
            }
        }
    }
}

#[test]
fn the_same_set_in_all_heads_is_a_plain_cache() {
    // Positions 0 to 3 and 64 to 99 are left of the prompt: decoding must go on as from a prompt of those 40.
    let renamed = |position: u32| if position < 4 { position } else { position + 60 };
    for text in [
        "inertia:tokens=20",
        "inertia-lazy:tokens=20",
        "h2o:tokens=20,coupling=layer-mean",
        "inertia:tokens=20,coupling=per-layer",
        "inertia:tokens=20,coupling=per-head,share=model,safeguard=0.3",
        "single-step:tokens=20,interval=4,recent=3",
    ] {
        let (prompt, mut cache) = compressed("streaming-llm:at=prefill,tokens=40", &shape(), 100, 100, &noisy(0));
        let mut after_prompt = decoding(&prompt, text);
        let mut plain = state(text, &shape(), 40);
        for t in 1..30 {
            let mass = noisy(t);
            let plan = cache.step(&mut after_prompt, 1, &mass);
            let expected = step(&mut plain, 1, &|layer, head, position| {
                mass(layer, head, renamed(position))
            });
            assert_eq!(plan, expected, "{text}, step {t}");
            assert_eq!(after_prompt.utility(2, 3), plain.utility(2, 3));
        }
        assert_eq!(after_prompt.evictions(), plain.evictions() + 60, "{text}");
    }
}

/// Decoding under a mean of scores, against a history kept by position.
#[test]
fn a_mean_of_scores_is_over_the_last_of_them() {
    for (text, most, refresh) in [
        ("inertia:aggregation=mean3,coupling=layer-mean,tokens=20", 3, 1),
        ("inertia:aggregation=mean4,coupling=per-layer,tokens=20,refresh=2", 4, 2),
        (
            "snapkv:at=decode,aggregation=mean5,kernel=none,recent=0,tokens=20",
            5,
            1,
        ),
    ] {
        let mut state = state(text, &shape(), 50);
        // A score is of a layer, a head or all layers, whatever the coupling; this one is the same for all of them.
        let score = |t: u64, position: u32| noise(t, [position as usize, 0, 0, 0]);
        let mut scored = Vec::new();
        for t in 1..=40 {
            if (t - 1) % refresh == 0 {
                scored.push((t, state.seen_tokens() as u32 + 1));
            }
            // Sums over the query group of two.
            step(&mut state, 1, &|_, _, position| 2.0 * score(t, position));
            let last = &scored[scored.len().saturating_sub(most)..];
            for &position in state.positions(1, 1) {
                // Between scorings a newcomer has the mean of the others.
                if position >= scored.last().unwrap().1 {
                    continue;
                }
                // A score from before the entry counts as 0.
                let sum: f32 = last
                    .iter()
                    .filter(|&&(_, seen)| position < seen)
                    .map(|&(t, _)| score(t, position))
                    .sum();
                close(utility_of(&state, 1, 1, position), sum / last.len() as f32);
            }
            assert_eq!(state.rows(1, 1), 20, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, failure_persistence: None, ..ProptestConfig::default() })]

    /// A random prompt compressed at random, then decoded at random: the cache is mirrored, budgets hold, nothing comes
    /// back and nothing protected goes.
    #[test]
    fn decoding_goes_on_from_any_prompt(run in run(), prompt in prompt_policy()) {
        let mut run = run;
        run.policy = after_prompt(&run.policy);
        let Ok(mut state) = PolicyState::of_prompt(&prompt, &run.shape, run.prompt) else { return Ok(()) };
        let mut cache = CacheModel::new(&run.shape, 0);
        let heads: Vec<_> = run.heads().collect();
        while state.seen_tokens() < run.prompt {
            let new_tokens = prompt.interval.min(run.prompt - state.seen_tokens());
            cache.step(&mut state, new_tokens, &run.mass(1000));
            let held: usize = heads.iter().map(|&(layer, head)| state.rows(layer, head)).sum();
            let budget = state.budget().expect("every policy here has one");
            prop_assert_eq!(held, budget.min(state.seen_tokens()) * heads.len(), "after {} tokens", state.seen_tokens());
        }
        let mut state = state.decode(&run.policy).expect("checked by the strategy");
        cache.assert_mirrors(&state);
        let mut previous: Vec<Vec<u32>> = heads.iter().map(|&(layer, head)| state.retained(layer, head)).collect();
        for (t, &new_tokens) in run.steps.iter().enumerate() {
            let seen_before = state.seen_tokens() as u32;
            let before: Vec<usize> = previous.iter().map(|positions| positions.len() + new_tokens).collect();
            cache.step(&mut state, new_tokens, &run.mass(t));
            let budget = state.budget().expect("every policy here has one");
            for group in run.groups() {
                let of_group = || heads.iter().zip(&before).filter(|(head, _)| group.contains(head));
                let grown: usize = of_group().map(|(_, before)| before).sum();
                let held: usize = of_group().map(|(&(layer, head), _)| state.rows(layer, head)).sum();
                if grown <= (budget + run.policy.interval - 1) * group.len() {
                    prop_assert_eq!(held, grown);
                } else if run.policy.coupling == Coupling::PerHead {
                    prop_assert_eq!(held, budget * group.len());
                } else {
                    prop_assert!(held <= budget * group.len() && held > (budget - 1) * group.len());
                }
            }
            for (index, &(layer, head)) in heads.iter().enumerate() {
                let retained = state.retained(layer, head);
                prop_assert!(retained.windows(2).all(|pair| pair[0] < pair[1]), "positions repeat");
                prop_assert!(retained.iter().all(|position| *position >= seen_before || previous[index].binary_search(position).is_ok()));
                let lost = previous[index].iter().copied().chain(seen_before..state.seen_tokens() as u32);
                for position in lost.filter(|position| retained.binary_search(position).is_err()) {
                    prop_assert!(!run.is_protected(position, budget, state.seen_tokens()), "{} was protected", position);
                }
                if run.policy.coupling.is_shared() {
                    // One ranking: an entry has the same utility wherever it is held.
                    let (first, first_head) = heads[0];
                    let held = state.retained(first, first_head);
                    for &position in retained.iter().filter(|position| held.binary_search(position).is_ok()) {
                        prop_assert_eq!(utility_of(&state, layer, head, position).to_bits(), utility_of(&state, first, first_head, position).to_bits());
                    }
                }
                previous[index] = retained;
            }
        }
    }
}
