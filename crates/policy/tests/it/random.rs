//! Random methods, shapes and observations.

use inertiakv_policy::{
    Across, Aggregation, Budget, Coupling, HeadPooling, LayerRange, Policy, PolicyState, Preset, Protect, Ratio,
    Refresh, Rule, Scorer, Shape, Share, Smoothing, Stage,
};
use proptest::prelude::*;

use crate::support::noise;

pub(crate) const LAYERS: usize = 4;

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
        1 => Just(Scorer::Learned),
    ]
}

fn aggregation() -> impl Strategy<Value = Aggregation> {
    prop_oneof![
        2 => ratio().prop_map(Aggregation::Ema),
        1 => Just(Aggregation::SingleStep),
        1 => Just(Aggregation::Cumulative),
        1 => (1..20usize).prop_map(Aggregation::Mean),
        1 => Just(Aggregation::Adaptive),
    ]
}

fn coupling() -> impl Strategy<Value = (Coupling, Share)> {
    prop_oneof![
        Just((Coupling::Sequential, Share::Uniform)),
        Just((Coupling::LayerMean, Share::Uniform)),
        Just((Coupling::PerLayer, Share::Uniform)),
        Just((Coupling::PerHead, Share::Uniform)),
        (prop::sample::select(vec![Across::Layer, Across::Model]), ratio())
            .prop_map(|(across, safeguard)| (Coupling::PerHead, Share::Adaptive { across, safeguard })),
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

/// A policy of decoding.
pub(crate) fn policy() -> impl Strategy<Value = Policy> {
    let pooling = prop_oneof![
        Just(HeadPooling::Mean),
        Just(HeadPooling::Max),
        (2..=16u32).prop_map(HeadPooling::Power)
    ];
    let smoothing = prop_oneof![
        2 => Just(Smoothing::None),
        1 => (1..9u32).prop_map(|half| Smoothing::Max(2 * half + 1)),
        1 => (1..9u32).prop_map(|half| Smoothing::Average(2 * half + 1)),
        1 => (1..9u32).prop_map(|half| Smoothing::Padded(2 * half + 1)),
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
    (axes, layers, any::<bool>()).prop_map(|(axes, layers, reactive)| {
        let (
            mut scorer,
            mut head_pooling,
            smoothing,
            mut window,
            mut aggregation,
            (coupling, share),
            refresh,
            budget,
            interval,
            protect,
        ) = axes;
        if scorer == Scorer::Learned && coupling == Coupling::PerHead {
            scorer = Scorer::Attention;
        }
        if matches!(aggregation, Aggregation::Mean(_)) && coupling == Coupling::Sequential {
            aggregation = Aggregation::Cumulative;
        }
        let can_adapt = coupling.is_shared() && !scorer.is_positional() && refresh != Refresh::Once;
        let is_signed = matches!(scorer, Scorer::KeyDiff | Scorer::KeyNorm);
        if aggregation == Aggregation::Adaptive && (!can_adapt || is_signed) {
            aggregation = Aggregation::Cumulative;
        }
        let can_react = match aggregation {
            Aggregation::Adaptive => true,
            Aggregation::Ema(alpha) => alpha.as_f64() > 0.3,
            _ => false,
        };
        let reactive = reactive && can_adapt && can_react;
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
            reactive,
            masked: false,
        }
    })
}

/// The policy without what needs a whole prompt.
pub(crate) fn after_prompt(policy: &Policy) -> Policy {
    Policy {
        aggregation: match policy.aggregation {
            Aggregation::Adaptive => Aggregation::Ema(Policy::ALPHA),
            aggregation => aggregation,
        },
        reactive: false,
        protect: Protect {
            rescue: false,
            ..policy.protect
        },
        ..policy.clone()
    }
}

/// A policy of a prompt.
pub(crate) fn prompt_policy() -> impl Strategy<Value = Policy> {
    let scorer = prop_oneof![
        4 => Just(None),
        1 => (1..65536u32).prop_map(Scorer::ExpectedAttention).prop_map(Some),
        1 => (16..65536u32).prop_map(Scorer::Reconstruction).prop_map(Some),
    ];
    let interval = prop_oneof![2 => Just(Policy::WHOLE_PROMPT), 1 => 1..64usize];
    (policy(), scorer, interval, any::<bool>()).prop_map(|(policy, scorer, interval, masked)| {
        let policy = Policy {
            aggregation: Aggregation::SingleStep,
            reactive: false,
            refresh: Refresh::Every(1),
            protect: Protect {
                reserve: Ratio::ZERO,
                rescue: false,
                ..policy.protect
            },
            interval,
            masked: masked && interval == Policy::WHOLE_PROMPT,
            ..policy
        };
        match scorer {
            None => policy,
            Some(scorer) => Policy {
                interval: if matches!(scorer, Scorer::Reconstruction(_)) {
                    Policy::WHOLE_PROMPT
                } else {
                    interval
                },
                scorer,
                head_pooling: HeadPooling::Mean,
                window: 1,
                ..policy
            },
        }
    })
}

/// A policy under the name of any preset that has the stage.
pub(crate) fn rule(stage: Stage) -> impl Strategy<Value = Rule> {
    let names: Vec<Preset> = Preset::ALL
        .into_iter()
        .filter(|name| *name != Preset::Full && name.stages().contains(&stage))
        .collect();
    let policy = match stage {
        Stage::Prefill => prompt_policy().boxed(),
        Stage::Decode => policy().boxed(),
    };
    (prop::sample::select(names), policy).prop_map(|(name, policy)| Rule { name, policy })
}

/// New tokens per step; a longer chunk now and then.
fn steps() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![8 => Just(1usize), 1 => 0..3usize, 1 => 2..20usize], 1..40)
}

#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) policy: Policy,
    pub(crate) shape: Shape,
    pub(crate) prompt: usize,
    pub(crate) steps: Vec<usize>,
    seed: u64,
    /// Scores from few distinct values, or from one, make ties.
    levels: u32,
}

pub(crate) fn run() -> impl Strategy<Value = Run> {
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
    pub(crate) fn start(&self) -> PolicyState {
        PolicyState::new(&self.policy, &self.shape, self.prompt).expect("checked by the strategy")
    }

    pub(crate) fn mass(&self, t: usize) -> impl Fn(usize, usize, u32) -> f32 {
        let (seed, levels) = (self.seed, self.levels);
        move |layer, head, position| {
            (noise(seed, [t, layer, head, position as usize]) * levels as f32).floor() / levels as f32
        }
    }

    pub(crate) fn heads(&self) -> impl Iterator<Item = (usize, usize)> {
        let kv_heads = self.shape.kv_heads;
        let layers: Vec<usize> = (0..LAYERS).filter(|&layer| self.shape.is_evictable(layer)).collect();
        layers
            .into_iter()
            .flat_map(move |layer| (0..kv_heads).map(move |head| (layer, head)))
    }

    /// The heads whose entries have one budget together.
    pub(crate) fn groups(&self) -> Vec<Vec<(usize, usize)>> {
        let heads: Vec<_> = self.heads().collect();
        let size = match (self.policy.coupling, self.policy.share.across()) {
            (Coupling::Sequential | Coupling::LayerMean, _) | (_, Some(Across::Model)) => heads.len(),
            (Coupling::PerLayer, _) | (_, Some(Across::Layer)) => self.shape.kv_heads,
            (Coupling::PerHead, None) => 1,
        };
        heads.chunks(size).map(<[_]>::to_vec).collect()
    }

    /// Sinks and recent positions that must be there, served in that order within the budget.
    pub(crate) fn is_protected(&self, position: u32, budget: usize, seen: usize) -> bool {
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
