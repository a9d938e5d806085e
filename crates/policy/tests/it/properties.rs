//! What holds for every method, on random methods, shapes and observations.

use inertiakv_policy::{Budget, EvictionPlan, Method, Ratio, Rule, Share, Stage};
use proptest::prelude::*;

use crate::random::{after_prompt, rule, run};
use crate::support::{CacheModel, step};

/// Whether the rows of a plan keep their order: only a removal of few may fill holes from the tail.
fn is_compaction(rows_before: usize, rows_after: usize) -> bool {
    rows_before - rows_after > (rows_before / 64).max(8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_round_trips(
        prefill in prop::option::of(rule(Stage::Prefill)),
        decode in prop_oneof![1 => Just(Rule::full()), 3 => rule(Stage::Decode)],
    ) {
        let mut method = Method { prefill, decode };
        if let Some(prefill) = &mut method.prefill {
            prefill.policy.masked &= !method.decode.policy.evicts();
            method.decode.policy = after_prompt(&method.decode.policy);
        } else if !method.decode.policy.evicts() {
            method = Method::full();
        }
        prop_assert_eq!(method.validate(), Ok(()));
        let text = method.to_string();
        let parsed: Method = text.parse().map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        prop_assert_eq!(&parsed, &method, "{}", text);
        prop_assert_eq!(parsed.to_string(), text);
    }

    #[test]
    fn arbitrary_text_is_parsed_or_refused(text in "\\PC{0,40}", name in rule(Stage::Decode).prop_map(|rule| rule.name), key in "[a-z_]{1,9}", value in "[-a-z0-9.]{0,9}") {
        let _ = text.parse::<Method>();
        let _ = text.parse::<Budget>();
        if let Ok(method) = format!("{name}:{key}={value}").parse::<Method>() {
            prop_assert!(method.validate().is_ok());
        }
    }

    #[test]
    fn ratios_are_exact(digits in 0..=1_000_000u64, count in 0..10_000_000usize) {
        let ratio = Ratio::new(digits, 6).expect("at most 1");
        let product = digits as u128 * count as u128;
        prop_assert_eq!(ratio.share_of(count) as u128, product / 1_000_000);
        prop_assert_eq!(ratio.rest_of(count) as u128, (1_000_000 - digits) as u128 * count as u128 / 1_000_000);
        prop_assert_eq!(ratio.to_string().parse::<Ratio>(), Ok(ratio));
    }

    #[test]
    fn plans_mirror_the_state_and_budgets_hold(run in run()) {
        let mut state = run.start();
        let mut cache = CacheModel::new(&run.shape, run.prompt);
        let heads: Vec<_> = run.heads().collect();
        let mut previous: Vec<Vec<u32>> = heads.iter().map(|&(layer, head)| state.retained(layer, head)).collect();
        for (t, &new_tokens) in run.steps.iter().enumerate() {
            let seen_before = state.seen_tokens() as u32;
            cache.append(new_tokens);
            let before: Vec<usize> = heads.iter().map(|&(layer, head)| cache.rows[layer][head].len()).collect();
            let plan = step(&mut state, new_tokens, &run.mass(t));
            cache.apply(&plan);
            cache.assert_mirrors(&state);
            let budget = state.budget().expect("every policy here has one");
            for group in run.groups() {
                let rows = |of: &dyn Fn(usize) -> usize| -> usize {
                    heads.iter().enumerate().filter(|(_, head)| group.contains(head)).map(|(index, _)| of(index)).sum()
                };
                let total = rows(&|index| before[index]);
                let kept = if total >= (budget + run.policy.interval) * group.len() { budget * group.len() } else { total };
                let held = rows(&|index| state.rows(heads[index].0, heads[index].1));
                prop_assert_eq!(held, kept, "heads {:?}, step {}", group, t + 1);
            }
            for (index, &(layer, head)) in heads.iter().enumerate() {
                let retained = state.retained(layer, head);
                prop_assert!(retained.windows(2).all(|pair| pair[0] < pair[1]), "positions repeat");
                if run.policy.share == Share::Uniform && !plan.is_nothing() {
                    prop_assert_eq!(retained.len(), budget);
                }
                if let Some(safeguard) = run.policy.share.safeguard() {
                    prop_assert!(retained.len() >= safeguard.share_of(budget).min(before[index]));
                }
                // Nothing comes back.
                prop_assert!(retained.iter().all(|position| *position >= seen_before || previous[index].binary_search(position).is_ok()));
                // Nothing protected goes, whatever the scores and ties.
                let lost = previous[index].iter().copied().chain(seen_before..state.seen_tokens() as u32);
                for position in lost.filter(|position| retained.binary_search(position).is_err()) {
                    prop_assert!(!run.is_protected(position, budget, state.seen_tokens()), "{} was protected", position);
                }
                previous[index] = retained;
            }
        }
    }

    #[test]
    fn compaction_keeps_the_order(run in run()) {
        let mut state = run.start();
        for (t, &new_tokens) in run.steps.iter().enumerate() {
            let heads: Vec<_> = run.heads().collect();
            let before: Vec<Vec<u32>> = heads.iter().map(|&(layer, head)| state.positions(layer, head).to_vec()).collect();
            let plan = step(&mut state, new_tokens, &run.mass(t));
            for (&(layer, head), mut before) in heads.iter().zip(before) {
                before.extend(state.seen_tokens() as u32 - new_tokens as u32..state.seen_tokens() as u32);
                let after = state.positions(layer, head);
                let moves = plan.for_head(layer, head).map_or(0, |plan| plan.moves.len());
                if is_compaction(before.len(), after.len()) {
                    let kept: Vec<u32> = before.iter().copied().filter(|position| after.contains(position)).collect();
                    prop_assert_eq!(after, kept);
                } else {
                    prop_assert!(moves <= before.len() - after.len(), "more moves than holes");
                }
            }
        }
    }

    #[test]
    fn the_same_run_gives_the_same_plans(run in run()) {
        let (mut first, mut second) = (run.start(), run.start());
        for (t, &new_tokens) in run.steps.iter().enumerate() {
            // A fork in the middle changes nothing, on either side.
            let mut fork = second.clone();
            let plan = step(&mut first, new_tokens, &run.mass(t));
            prop_assert_eq!(&plan, &step(&mut fork, new_tokens, &run.mass(t)));
            prop_assert_eq!(&plan, &step(&mut second, new_tokens, &run.mass(t)));
        }
    }

    #[test]
    fn shared_rankings_hold_the_same_everywhere(run in run()) {
        prop_assume!(run.policy.coupling.is_shared());
        let mut state = run.start();
        for (t, &new_tokens) in run.steps.iter().enumerate() {
            let plan = step(&mut state, new_tokens, &run.mass(t));
            let shared = matches!(plan, EvictionPlan::Nothing | EvictionPlan::Shared { .. });
            prop_assert!(shared, "a plan that is not shared");
            let mut heads = run.heads();
            let (layer, head) = heads.next().expect("some layer may lose entries");
            for (other_layer, other_head) in heads {
                prop_assert_eq!(state.positions(layer, head), state.positions(other_layer, other_head));
            }
            let evicted = state.seen_tokens() - state.rows(layer, head);
            prop_assert_eq!(state.evictions(), evicted);
        }
    }
}
