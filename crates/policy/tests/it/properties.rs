//! What holds for every method, on random methods, shapes and observations.

use inertiakv_policy::{
    Aggregation, Budget, Coupling, EvictionPlan, HeadPooling, LayerRange, Method, Policy, PolicyState, Preset, Protect,
    Ratio, Refresh, Scorer, Shape, Share, Smoothing,
};
use proptest::prelude::*;

use crate::support::{CacheModel, noise, step};

const LAYERS: usize = 4;

fn ratio() -> impl Strategy<Value = Ratio> {
    prop_oneof![
        (0..100u64).prop_map(|hundredths| Ratio::new(hundredths, 2).expect("below 1")),
        (0..10_000u64).prop_map(|parts| Ratio::new(parts, 4).expect("below 1")),
    ]
}

fn scorer() -> impl Strategy<Value = Scorer> {
    prop_oneof![
        3 => Just(Scorer::Attention),
        1 => Just(Scorer::ValueNorm),
        1 => Just(Scorer::Entropy),
        1 => Just(Scorer::KeyDiff),
        1 => Just(Scorer::KeyNorm),
        1 => Just(Scorer::Recency),
        1 => any::<u64>().prop_map(Scorer::Random),
    ]
}

fn aggregation() -> impl Strategy<Value = Aggregation> {
    prop_oneof![
        2 => ratio().prop_map(Aggregation::Ema),
        1 => Just(Aggregation::SingleStep),
        1 => Just(Aggregation::Cumulative),
    ]
}

fn coupling() -> impl Strategy<Value = (Coupling, Share)> {
    prop_oneof![
        Just((Coupling::Sequential, Share::Uniform)),
        Just((Coupling::LayerMean, Share::Uniform)),
        Just((Coupling::PerLayer, Share::Uniform)),
        Just((Coupling::PerHead, Share::Uniform)),
        ratio().prop_map(|safeguard| (Coupling::PerHead, Share::Adaptive { safeguard })),
    ]
}

fn budget() -> impl Strategy<Value = Budget> {
    prop_oneof![
        ratio().prop_map(Budget::Ratio),
        (1..200usize).prop_map(Budget::Tokens),
        ratio().prop_map(Budget::SeenRatio),
    ]
}

fn protect() -> impl Strategy<Value = Protect> {
    prop_oneof![
        Just(Protect::NONE),
        (
            0..12usize,
            0..12usize,
            prop_oneof![Just(Ratio::ZERO), ratio()],
            any::<bool>()
        )
            .prop_map(|(sinks, recent, reserve, rescue)| Protect {
                sinks,
                recent,
                reserve,
                rescue
            }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let pooling = prop_oneof![
        Just(HeadPooling::Mean),
        Just(HeadPooling::Max),
        (2..=16u32).prop_map(HeadPooling::Power)
    ];
    let smoothing = prop_oneof![
        2 => Just(Smoothing::None),
        1 => (1..9u32).prop_map(|half| Smoothing::Max(2 * half + 1)),
        1 => (1..9u32).prop_map(|half| Smoothing::Average(2 * half + 1)),
    ];
    let refresh = prop_oneof![3 => (1..6usize).prop_map(Refresh::Every), 1 => Just(Refresh::Once)];
    let layers = prop::option::of((0..LAYERS, 0..LAYERS).prop_map(|(a, b)| LayerRange {
        first: a.min(b),
        last: a.max(b),
    }));
    let axes = (
        scorer(),
        pooling,
        smoothing,
        1..4usize,
        aggregation(),
        coupling(),
        refresh,
        budget(),
        1..12usize,
        protect(),
    );
    (axes, layers).prop_map(|(axes, layers)| {
        let (
            scorer,
            mut head_pooling,
            smoothing,
            mut window,
            aggregation,
            (coupling, share),
            refresh,
            budget,
            interval,
            protect,
        ) = axes;
        let by_mass = scorer.features().mass;
        if !by_mass || (coupling == Coupling::PerHead && matches!(head_pooling, HeadPooling::Power(_))) {
            head_pooling = HeadPooling::Mean;
        }
        if !by_mass {
            window = 1;
        }
        let layers = layers.filter(|_| coupling.is_shared() && !scorer.is_positional());
        Policy {
            scorer,
            head_pooling,
            smoothing,
            window,
            aggregation,
            coupling,
            refresh,
            budget,
            share,
            interval,
            protect,
            layers,
        }
    })
}

fn preset() -> impl Strategy<Value = Preset> {
    prop::sample::select(Preset::ALL.to_vec()).prop_filter("full has no settings", |&preset| preset != Preset::Full)
}

/// New tokens per step; a longer chunk now and then.
fn steps() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![8 => Just(1usize), 1 => 0..3usize, 1 => 2..20usize], 1..40)
}

#[derive(Debug, Clone)]
struct Run {
    policy: Policy,
    shape: Shape,
    prompt: usize,
    steps: Vec<usize>,
    seed: u64,
    /// Scores from few distinct values, or from one, make ties.
    levels: u32,
}

fn run() -> impl Strategy<Value = Run> {
    let evictable = prop::collection::vec(prop::bool::weighted(0.8), LAYERS);
    let levels = prop_oneof![Just(1u32), Just(3), Just(1 << 20)];
    (
        policy(),
        evictable,
        1..4usize,
        1..4usize,
        0..300usize,
        steps(),
        any::<u64>(),
        levels,
    )
        .prop_map(|(policy, evictable, kv_heads, group, prompt, steps, seed, levels)| {
            let shape = Shape {
                evictable,
                ..Shape::uniform(LAYERS, kv_heads, group)
            };
            Run {
                policy,
                shape,
                prompt,
                steps,
                seed,
                levels,
            }
        })
        .prop_filter("some scored layer may lose entries", |run| {
            PolicyState::new(&run.policy, &run.shape, 1).is_ok()
        })
}

impl Run {
    fn start(&self) -> PolicyState {
        PolicyState::new(&self.policy, &self.shape, self.prompt).expect("checked by the strategy")
    }

    fn mass(&self, t: usize) -> impl Fn(usize, usize, u32) -> f32 {
        let (seed, levels) = (self.seed, self.levels);
        move |layer, head, position| {
            (noise(seed, [t, layer, head, position as usize]) * levels as f32).floor() / levels as f32
        }
    }

    fn heads(&self) -> impl Iterator<Item = (usize, usize)> {
        let kv_heads = self.shape.kv_heads;
        let layers: Vec<usize> = (0..LAYERS).filter(|&layer| self.shape.is_evictable(layer)).collect();
        layers
            .into_iter()
            .flat_map(move |layer| (0..kv_heads).map(move |head| (layer, head)))
    }

    /// Sinks and recent positions that must be there, served in that order within the budget.
    fn is_protected(&self, position: u32, budget: usize, seen: usize) -> bool {
        let sinks = self.policy.protect.sinks.min(budget);
        // The reserve may have raised the sinks, so only what fits beside a full third is certain.
        let third = self
            .policy
            .protect
            .reserve
            .share_of(self.policy.budget.entries(self.prompt, self.prompt).unwrap_or(0))
            / 3;
        let recent = self
            .policy
            .protect
            .recent
            .min(budget - self.policy.protect.sinks.max(third).min(budget));
        let position = position as usize;
        position < sinks || position + recent >= seen
    }
}

/// Whether the rows of a plan keep their order: only a removal of few may fill holes from the tail.
fn is_compaction(rows_before: usize, rows_after: usize) -> bool {
    rows_before - rows_after > (rows_before / 64).max(8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_round_trips(name in preset(), policy in policy()) {
        let method = Method { prefill: None, decode: Rule { name, policy } };
        prop_assert!(method.validate().is_ok());
        let text = method.to_string();
        let parsed: Method = text.parse().map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        prop_assert_eq!(&parsed, &method, "{}", text);
        prop_assert_eq!(parsed.to_string(), text);
    }

    #[test]
    fn arbitrary_text_is_parsed_or_refused(text in "\\PC{0,40}", name in preset(), key in "[a-z_]{1,9}", value in "[-a-z0-9.]{0,9}") {
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
            let kv_heads = run.shape.kv_heads;
            for (layer, total) in before.chunks(kv_heads).enumerate().map(|(slot, rows)| (heads[slot * kv_heads].0, rows.iter().sum::<usize>())) {
                let expected = if total >= (budget + run.policy.interval) * kv_heads { budget * kv_heads } else { total };
                let held: usize = (0..kv_heads).map(|head| state.rows(layer, head)).sum();
                prop_assert_eq!(held, expected, "layer {}, step {}", layer, t + 1);
            }
            for (index, &(layer, head)) in heads.iter().enumerate() {
                let retained = state.retained(layer, head);
                prop_assert!(retained.windows(2).all(|pair| pair[0] < pair[1]), "positions repeat");
                if run.policy.share == Share::Uniform && !plan.is_nothing() {
                    prop_assert_eq!(retained.len(), budget);
                }
                if let Share::Adaptive { safeguard } = run.policy.share {
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
