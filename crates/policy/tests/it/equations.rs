//! The equations of section 3 and Appendix E of the paper, in closed form.

use inertiakv_policy::{EvictionPlan, PolicyState, Shape};

use crate::support::{close, method, noise, observe_all, state, step, utility_of};

const LAYERS: usize = 5;

/// Layer ℓ (from 0) sees position ℓ alone.
fn one_position_per_layer(layer: usize, _: usize, position: u32) -> f32 {
    f32::from(u8::from(position as usize == layer))
}

fn nothing(_: usize, _: usize, _: u32) -> f32 {
    0.0
}

#[test]
fn equation_1_is_the_mean_over_query_heads() {
    // 2 KV heads of 3 query heads each: the masses are sums over the group.
    let mut state = state("single-step:tokens=100", &Shape::uniform(1, 2, 3), 4);
    step(&mut state, 1, &|_, head, position| {
        if head == 0 { position as f32 } else { 1.0 }
    });
    for position in 0..5 {
        close(utility_of(&state, 0, 0, position), (position as f32 + 1.0) / 6.0);
    }
}

#[test]
fn equation_2_keeps_the_last_layer_only() {
    let mut state = state("single-step:tokens=100", &Shape::uniform(LAYERS, 1, 1), 10);
    for _ in 0..3 {
        step(&mut state, 1, &one_position_per_layer);
    }
    for position in 0..10 {
        close(
            utility_of(&state, 0, 0, position),
            f32::from(u8::from(position as usize == LAYERS - 1)),
        );
    }
}

#[test]
fn equation_2_needs_the_last_layer_only() {
    let mut state = state("single-step:tokens=100", &Shape::uniform(LAYERS, 1, 1), 10);
    assert_eq!(state.begin_step(1).layers, [false, false, false, false, true]);
    // The layers not asked for may be shown all the same.
    observe_all(&mut state, &[true; LAYERS], 1, &one_position_per_layer).unwrap();
    state.finish_step().unwrap();
    close(utility_of(&state, 0, 0, LAYERS as u32 - 1), 1.0);
}

#[test]
fn alpha_zero_is_single_step() {
    let shape = Shape::uniform(LAYERS, 2, 2);
    let mut zero = state("inertia:alpha=0,tokens=20", &shape, 60);
    let mut single = state("single-step:tokens=20", &shape, 60);
    for t in 0..20 {
        let mass = move |layer: usize, head: usize, position: u32| noise(t, [layer, head, position as usize, 0]);
        step(&mut zero, 1, &mass);
        step(&mut single, 1, &mass);
        assert_eq!(zero.retained(0, 0), single.retained(0, 0));
        assert_eq!(zero.utility(0, 0), single.utility(0, 0));
    }
}

#[test]
fn equation_3_sums_over_layers_and_steps() {
    let mut state = state("h2o:tokens=100", &Shape::uniform(LAYERS, 1, 1), 10);
    let mut expected = [0.0f32; 10];
    for t in 0..7 {
        let mass = move |layer: usize, _: usize, position: u32| noise(t, [layer, position as usize, 0, 0]);
        step(&mut state, 1, &mass);
        for (position, sum) in expected.iter_mut().enumerate() {
            *sum += (0..LAYERS).map(|layer| mass(layer, 0, position as u32)).sum::<f32>();
        }
    }
    for (position, sum) in expected.into_iter().enumerate() {
        close(utility_of(&state, 0, 0, position as u32), sum);
    }
}

#[test]
fn equation_4_weighs_layers_and_steps() {
    for alpha in [0.3f32, 0.8, 0.95] {
        let mut state = state(
            &format!("inertia:tokens=100,alpha={alpha}"),
            &Shape::uniform(LAYERS, 1, 1),
            10,
        );
        step(&mut state, 1, &one_position_per_layer);
        let weight = |layer: usize| (1.0 - alpha) * alpha.powi((LAYERS - 1 - layer) as i32);
        for layer in 0..LAYERS {
            close(utility_of(&state, 0, 0, layer as u32), weight(layer));
        }
        // Without any mass, a step leaves α^K of what was.
        for t in 1..4 {
            step(&mut state, 1, &nothing);
            for layer in 0..LAYERS {
                close(
                    utility_of(&state, 0, 0, layer as u32),
                    weight(layer) * alpha.powi((LAYERS * t) as i32),
                );
            }
        }
    }
}

#[test]
fn equation_4_forgets_the_initial_state() {
    // The same score at every step: m = (1 − α^(Kt)) s.
    let mut state = state("inertia:tokens=100", &Shape::uniform(2, 1, 1), 3);
    for t in 1..12 {
        step(&mut state, 1, &|_, _, position| position as f32);
        close(utility_of(&state, 0, 0, 2), 2.0 * (1.0 - 0.8f32.powi(2 * t)));
    }
}

#[test]
fn a_newcomer_has_no_past_at_a_refresh() {
    let mut state = state("inertia:tokens=100", &Shape::uniform(2, 1, 1), 3);
    for _ in 0..5 {
        step(&mut state, 1, &|_, _, _| 1.0);
    }
    let newest = state.seen_tokens() as u32 - 1;
    close(utility_of(&state, 0, 0, newest), 1.0 - 0.8f32.powi(2));
    state.begin_step(1);
    assert_eq!(utility_of(&state, 0, 0, newest + 1).to_bits(), 0.0f32.to_bits());
}

#[test]
fn a_newcomer_has_the_mean_between_refreshes() {
    let mut state = state("inertia-lazy:tokens=100", &Shape::uniform(2, 1, 1), 3);
    step(&mut state, 1, &|_, _, position| position as f32);
    let mean = state.utility(0, 0).iter().sum::<f32>() / 4.0;
    // All newcomers of a step get the mean of those before it.
    let needs = state.begin_step(2);
    assert!(!needs.refresh && !needs.any());
    close(utility_of(&state, 0, 0, 4), mean);
    close(utility_of(&state, 0, 0, 5), mean);
    state.finish_step().unwrap();
    // And the mean of all stays what it was.
    state.begin_step(1);
    close(utility_of(&state, 0, 0, 6), mean);
}

#[test]
fn equation_6_freezes_utilities_between_refreshes() {
    let mut state = state("inertia:refresh=3,tokens=100", &Shape::uniform(2, 1, 1), 3);
    for t in 1..20 {
        let before = state.utility(0, 0).to_vec();
        let needs = state.begin_step(1);
        assert_eq!(needs.refresh, (t - 1) % 3 == 0, "step {t}");
        assert_eq!(needs.layers, [needs.refresh; 2]);
        assert_eq!(needs.features.mass, needs.refresh);
        observe_all(&mut state, &needs.layers, 1, &|_, _, position| {
            1.0 + t as f32 + position as f32
        })
        .unwrap();
        state.finish_step().unwrap();
        assert_eq!(
            state.utility(0, 0)[..before.len()] == before,
            !needs.refresh,
            "step {t}"
        );
    }
}

#[test]
fn eviction_goes_on_between_refreshes() {
    let mut state = state("inertia-lazy:tokens=10", &Shape::uniform(2, 1, 1), 30);
    for t in 0..12 {
        step(&mut state, 1, &move |_, _, position| {
            noise(t, [position as usize, 0, 0, 0])
        });
        assert_eq!(state.rows(1, 0), 10);
    }
}

#[test]
fn score_free_ranks_the_prompt_once() {
    let mut state = state("score-free:tokens=20", &Shape::uniform(3, 1, 1), 50);
    step(&mut state, 1, &|layer, _, position| {
        noise(1, [layer, position as usize, 0, 0])
    });
    let mut ranked: Vec<(u32, f32)> = state
        .positions(0, 0)
        .iter()
        .copied()
        .zip(state.utility(0, 0).iter().copied())
        .collect();
    let mut previous = state.retained(0, 0);
    for _ in 0..60 {
        let needs = state.begin_step(1);
        assert!(!needs.any());
        let mean = ranked.iter().map(|&(_, utility)| utility).sum::<f32>() / ranked.len() as f32;
        close(utility_of(&state, 0, 0, state.seen_tokens() as u32 - 1), mean);
        ranked.push((
            state.seen_tokens() as u32 - 1,
            utility_of(&state, 0, 0, state.seen_tokens() as u32 - 1),
        ));
        state.finish_step().unwrap();
        // The lowest leaves, the earliest of equals; nobody's utility changes.
        let lowest = ranked
            .iter()
            .copied()
            .min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
            .unwrap();
        ranked.retain(|entry| *entry != lowest);
        for &(position, utility) in &ranked {
            assert_eq!(utility_of(&state, 0, 0, position).to_bits(), utility.to_bits());
        }
        let retained = state.retained(0, 0);
        let newest = state.seen_tokens() as u32 - 1;
        assert!(
            retained
                .iter()
                .all(|position| previous.contains(position) || *position == newest)
        );
        previous = retained;
    }
}

#[test]
fn budgets_are_exact() {
    let shape = Shape::uniform(1, 1, 1);
    let budget = |text: &str, prompt: usize| state(text, &shape, prompt).budget();
    assert_eq!(budget("inertia:ratio=0.9", 1000), Some(100));
    assert_eq!(budget("inertia:ratio=0.9", 1009), Some(100));
    assert_eq!(budget("inertia:ratio=0.9", 1010), Some(101));
    assert_eq!(budget("inertia:ratio=0.9", 9), Some(1));
    assert_eq!(budget("inertia:ratio=0", 77), Some(77));
    assert_eq!(budget("inertia:ratio=0.999", 77), Some(1));
    assert_eq!(budget("inertia:tokens=512", 77), Some(512));
    assert_eq!(budget("full", 77), None);
    // Every ratio of two decimals against whole numbers.
    for percent in 0..100usize {
        for prompt in [1, 7, 100, 999, 1000, 4096, 16_384, 130_001] {
            let expected = ((100 - percent) * prompt / 100).max(1);
            assert_eq!(
                budget(&format!("inertia:ratio=0.{percent:02}"), prompt),
                Some(expected),
                "{percent} {prompt}"
            );
        }
    }
}

#[test]
fn floats_would_get_budgets_wrong() {
    // The reason for decimals, kept as a test so that nobody simplifies them away.
    let wrong = (0..100u32).filter(|&percent| {
        let exact = (100 - percent) * 1000 / 100;
        let float = ((1.0 - f64::from(percent) / 100.0) * 1000.0).floor() as u32;
        exact != float
    });
    assert!(wrong.count() > 0);
}

#[test]
fn a_follow_up_prompt_raises_ratio_budgets() {
    let shape = Shape::uniform(1, 1, 1);
    let mut ratio = state("inertia:ratio=0.9", &shape, 1005);
    assert_eq!(ratio.budget(), Some(100));
    // 1005 + 5 tokens: the floor is taken of the total, not of each part.
    ratio.add_prompt_tokens(5);
    assert_eq!(
        (ratio.budget(), ratio.prompt_tokens(), ratio.seen_tokens()),
        (Some(101), 1010, 1005)
    );
    step(&mut ratio, 5, &nothing);
    assert_eq!(ratio.rows(0, 0), 101);
    let mut tokens = state("inertia:tokens=100", &shape, 1005);
    tokens.add_prompt_tokens(500);
    assert_eq!(tokens.budget(), Some(100));
}

#[test]
fn a_ratio_of_all_seen_grows_with_the_answer() {
    let mut state = state("inertia:seen_ratio=0.5", &Shape::uniform(1, 1, 1), 10);
    for t in 1..40 {
        step(&mut state, 1, &nothing);
        let half = usize::midpoint(10, t);
        assert_eq!((state.budget(), state.rows(0, 0)), (Some(half), half));
    }
}

#[test]
fn the_peak_within_a_step_is_the_budget_and_the_new_tokens() {
    let mut state = state("inertia:ratio=0.9", &Shape::uniform(1, 1, 1), 1000);
    let mut peaks = Vec::new();
    for new_tokens in [7, 1, 1, 3] {
        let needs = state.begin_step(new_tokens);
        peaks.push(state.rows(0, 0));
        observe_all(&mut state, &needs.layers, 1, &nothing).unwrap();
        state.finish_step().unwrap();
        assert_eq!(state.rows(0, 0), 100);
    }
    assert_eq!(peaks, [1007, 101, 101, 103]);
    assert_eq!((state.evictions(), state.seen_tokens()), (1012 - 100, 1012));
}

#[test]
fn a_new_entry_may_leave_in_its_own_step() {
    let mut state = state("inertia:tokens=4", &Shape::uniform(1, 1, 1), 4);
    step(&mut state, 1, &|_, _, position| if position < 4 { 1.0 } else { 0.0 });
    assert_eq!(state.retained(0, 0), [0, 1, 2, 3]);
}

#[test]
fn among_equals_the_later_position_stays() {
    let mut state = state("inertia:tokens=4", &Shape::uniform(1, 1, 1), 10);
    for seen in 11..20 {
        // A newcomer at a refresh has less than the others unless the scores are all 0.
        step(&mut state, 1, &nothing);
        assert_eq!(state.retained(0, 0), (seen - 4..seen).collect::<Vec<u32>>());
    }
}

#[test]
fn nothing_is_evicted_or_asked_for_by_full() {
    let mut state = state("full", &Shape::uniform(2, 2, 1), 5);
    for seen in 6..20 {
        let needs = state.begin_step(1);
        assert!(!needs.refresh && !needs.any());
        assert_eq!(state.finish_step(), Ok(EvictionPlan::Nothing));
        assert_eq!((state.rows(1, 1), state.evictions(), state.budget()), (seen, 0, None));
    }
    assert!(!method("full").evicts());
}

#[test]
fn a_budget_beyond_the_length_evicts_nothing() {
    let mut state = state("inertia:tokens=1000", &Shape::uniform(2, 1, 1), 10);
    for _ in 0..50 {
        assert_eq!(step(&mut state, 1, &nothing), EvictionPlan::Nothing);
    }
}

/// The method once more, written as plainly as possible and independent of the crate's code.
#[test]
fn agrees_with_a_plain_reference() {
    const PROMPT: usize = 120;
    const BUDGET: usize = 24;
    for (text, alpha, refresh) in [
        ("inertia:ratio=0.8", Some(0.8f64), 1),
        ("inertia-lazy:ratio=0.8,alpha=0.5", Some(0.5), 4),
        ("score-free:ratio=0.8", Some(0.8), usize::MAX),
        ("h2o:ratio=0.8", None, 1),
    ] {
        let mut state: PolicyState = state(text, &Shape::uniform(LAYERS, 2, 3), PROMPT);
        let mut held: Vec<(usize, f64)> = (0..PROMPT).map(|position| (position, 0.0)).collect();
        let mut seen = PROMPT;
        for t in 1..=60usize {
            let new_tokens = if t == 1 { 9 } else { 1 };
            let mass = move |layer: usize, head: usize, position: u32| {
                noise(t as u64, [layer, head, position as usize, 0]).powi(4)
            };
            let refreshed = (t - 1) % refresh == 0;
            let mean = held.iter().map(|entry| entry.1).sum::<f64>() / held.len() as f64;
            held.extend((seen..seen + new_tokens).map(|position| (position, if refreshed { 0.0 } else { mean })));
            seen += new_tokens;
            for layer in (0..LAYERS).filter(|_| refreshed) {
                for (position, m) in &mut held {
                    let score = (0..2)
                        .map(|head| f64::from(mass(layer, head, *position as u32)))
                        .sum::<f64>()
                        / 6.0;
                    *m = alpha.map_or(*m + score, |alpha| alpha * *m + (1.0 - alpha) * score);
                }
            }
            held.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
            held.truncate(BUDGET);
            held.sort_by_key(|entry| entry.0);
            step(&mut state, new_tokens, &mass);
            let expected: Vec<u32> = held.iter().map(|entry| entry.0 as u32).collect();
            assert_eq!(state.retained(3, 1), expected, "{text}, step {t}");
        }
    }
}
