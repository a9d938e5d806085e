//! The state of one sequence: what it holds, how useful it is, and what leaves.

mod eviction;
mod prompt;
mod scoring;

use std::borrow::Cow;
use std::sync::Arc;

use crate::adaptive::{Adaptation, AdaptiveReport};
use crate::aggregation::Aggregation;
use crate::coupling::Coupling;
use crate::error::PolicyError;
use crate::method::Stage;
use crate::plan::EvictionPlan;
use crate::policy::Policy;
use crate::pooling::GroupPooling;
use crate::protect::Protection;
use crate::ranking::Ranking;
use crate::scorer::{Features, HeadObservation};
use crate::selection::Selector;
use crate::shape::Shape;
use crate::smoothing::SmoothingScratch;

use scoring::RaggedScratch;

/// What the engine has to observe in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepNeeds {
    /// Whether scores are computed in this step.
    pub refresh: bool,
    /// One flag per layer: true where [`PolicyState::observe`] must be called.
    pub layers: Vec<bool>,
    /// What must be observed there.
    pub features: Features,
    /// How the query heads of a KV head are pooled in the mass.
    pub group_pooling: GroupPooling,
    /// The mass is over this many last queries of the step.
    pub window: usize,
}

impl StepNeeds {
    /// Whether `layer` must be observed.
    #[must_use]
    pub fn needs(&self, layer: usize) -> bool {
        self.layers.get(layer).copied().unwrap_or(false)
    }

    /// Whether any layer must be observed.
    #[must_use]
    pub fn any(&self) -> bool {
        self.layers.contains(&true)
    }
}

/// The policy's side of one sequence: a mirror of which position each cached row holds, and the utilities.
///
/// Made when the prompt is in the cache; then, for every decode step: [`begin_step`](Self::begin_step),
/// [`observe`](Self::observe) for each layer it asks for, [`finish_step`](Self::finish_step), and the plan applied to
/// the cache. After an error the step is incomplete: drop the state, or go on from a clone made before.
#[derive(Debug, Clone)]
pub struct PolicyState {
    policy: Policy,
    stage: Stage,
    shape: Shape,
    protection: Protection,
    /// Who shares a ranking.
    layout: Layout,
    /// One for all, or one per evictable layer, or one per evictable layer and KV head.
    rankings: Vec<Ranking>,
    /// For each layer, its number among the evictable ones.
    slots: Vec<Option<usize>>,
    evictable: Arc<[bool]>,
    /// The layers that are scored, ascending.
    scored: Vec<usize>,
    /// Positions of the layers that never lose any; empty where there is no such layer.
    everything: Vec<u32>,
    prompt_tokens: usize,
    seen: usize,
    step: usize,
    /// Entries of all heads together.
    evicted: u64,
    rescue_pending: bool,
    /// Where α is not what the policy says.
    adaptation: Option<Adaptation>,
    phase: Phase,
    fault: Option<PolicyError>,
    buffers: Buffers,
}

/// Which heads share a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Model,
    Layer,
    Head,
}

impl Layout {
    fn of(policy: &Policy) -> Layout {
        match policy.coupling {
            // Without a bound one ranking serves all, whatever the coupling.
            _ if !policy.evicts() => Layout::Model,
            Coupling::Sequential | Coupling::LayerMean => Layout::Model,
            Coupling::PerLayer => Layout::Layer,
            Coupling::PerHead => Layout::Head,
        }
    }
}

/// Where a state is between `begin_step` and `finish_step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Between,
    /// Within a step; the needed layers are `scored[due..]`, and those before `due` are done or not needed.
    Open {
        refresh: bool,
        due: usize,
        noting: bool,
    },
}

#[derive(Debug, Clone, Default)]
struct Buffers {
    score: Vec<f32>,
    layer_mean: Vec<f32>,
    ragged: RaggedScratch,
    smoothing: Vec<SmoothingScratch>,
    selector: Selector,
}

impl PolicyState {
    /// The state after a prefill of `prompt_tokens` of which all are held: rows hold positions 0 to `prompt_tokens`, all
    /// utilities are 0. After a compressed prefill, see [`PolicyState::decode`].
    pub fn new(policy: &Policy, shape: &Shape, prompt_tokens: usize) -> Result<Self, PolicyError> {
        Self::build(policy, Stage::Decode, shape, prompt_tokens, prompt_tokens)
    }

    /// A state with one row for each of the first `held` of `prompt_tokens` tokens.
    fn build(
        policy: &Policy,
        stage: Stage,
        shape: &Shape,
        prompt_tokens: usize,
        held: usize,
    ) -> Result<Self, PolicyError> {
        policy.validate(stage)?;
        shape.validate()?;
        let end = u32::try_from(held).map_err(|_| PolicyError::TooManyTokens)?;
        let mut evictable = 0;
        let slots: Vec<Option<usize>> = shape
            .evictable
            .iter()
            .map(|&flag| {
                evictable += usize::from(flag);
                flag.then(|| evictable - 1)
            })
            .collect();
        if evictable == 0 && policy.evicts() {
            return Err(PolicyError::NoEvictableLayer);
        }
        let layout = Layout::of(policy);
        let rankings = match layout {
            Layout::Model => evictable.min(1),
            Layout::Layer => evictable,
            Layout::Head => evictable * shape.kv_heads,
        };
        let first_budget = policy
            .budget
            .entries(prompt_tokens, prompt_tokens)
            .unwrap_or(usize::MAX);
        Ok(PolicyState {
            protection: Protection::new(&policy.protect, first_budget, prompt_tokens),
            layout,
            rankings: (0..rankings).map(|_| Ranking::of_prompt(end)).collect(),
            slots,
            evictable: shape.evictable.as_slice().into(),
            scored: scored_layers(policy, shape)?,
            everything: if shape.evictable.contains(&false) {
                (0..end).collect()
            } else {
                Vec::new()
            },
            prompt_tokens,
            seen: held,
            step: 0,
            evicted: 0,
            rescue_pending: policy.protect.rescue,
            adaptation: Adaptation::of(policy).filter(|_| policy.evicts()),
            phase: Phase::Between,
            fault: None,
            buffers: Buffers::default(),
            policy: policy.clone(),
            stage,
            shape: shape.clone(),
        })
    }

    /// Counts the `tokens` of a follow-up prompt towards ratio budgets. The tokens themselves enter through
    /// [`begin_step`](Self::begin_step), like all that come after the prefill.
    pub fn add_prompt_tokens(&mut self, tokens: usize) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(tokens);
    }

    /// Opens the next decode step: `new_tokens` rows are appended to every head. A new entry's utility is 0 where scores
    /// are computed in this step, and the mean of the others otherwise (Appendix E). A step of a prompt computes scores
    /// only where something has to leave.
    ///
    /// A call that comes too early or too late is reported by the next call that returns a `Result`.
    pub fn begin_step(&mut self, new_tokens: usize) -> StepNeeds {
        if self.phase != Phase::Between {
            self.fault = Some(PolicyError::OutOfOrder {
                call: "begin_step",
                when: "within a step",
            });
        }
        let end = self
            .seen
            .checked_add(new_tokens)
            .and_then(|end| u32::try_from(end).ok());
        if end.is_none() {
            self.fault = Some(PolicyError::TooManyTokens);
        }
        self.step += 1;
        let refresh = self.policy.evicts() && self.policy.refresh.is_due(self.step);
        if let (Some(end), None) = (end, &self.fault) {
            let positions = self.seen as u32..end;
            for ranking in &mut self.rankings {
                let utility = if refresh || !self.policy.evicts() {
                    0.0
                } else {
                    ranking.mean_utility()
                };
                ranking.append(positions.clone(), utility);
            }
            if self.evictable.contains(&false) {
                self.everything.extend(positions);
            }
            self.seen = end as usize;
        }
        // The scores of a prompt count in their step alone, so where nothing leaves there is nothing to rank.
        let refresh =
            refresh && (self.stage == Stage::Decode || self.budget().is_some_and(|budget| self.is_due(budget)));
        let noting = refresh && self.rescue_pending && self.is_large_eviction_due();
        let due = self.first_due(noting);
        self.phase = Phase::Open { refresh, due, noting };
        self.buffers.layer_mean.clear();
        self.buffers.ragged.means.clear();
        self.needs(refresh, due, new_tokens)
    }

    /// Takes what one layer shows of its entries after `queries` queries; layers come in ascending order. A layer that
    /// was not asked for is ignored.
    pub fn observe(&mut self, layer: usize, queries: usize, heads: &[HeadObservation<'_>]) -> Result<(), PolicyError> {
        self.check_fault()?;
        let Phase::Open { refresh, due, noting } = self.phase else {
            return Err(PolicyError::OutOfOrder {
                call: "observe",
                when: "outside a step",
            });
        };
        if !refresh || self.policy.scorer.is_positional() || !self.scored[self.first_due(noting)..].contains(&layer) {
            return Ok(());
        }
        match self.scored.get(due) {
            Some(&expected) if expected == layer => {}
            Some(&expected) => return Err(PolicyError::LayerOrder { expected, found: layer }),
            None => {
                return Err(PolicyError::OutOfOrder {
                    call: "observe",
                    when: "for a layer that is done",
                });
            }
        }
        self.check_observation(layer, queries, heads)?;
        self.score(layer, queries, heads, noting)?;
        self.phase = Phase::Open {
            refresh,
            due: due + 1,
            noting,
        };
        Ok(())
    }

    /// Closes the step: decides what leaves, removes it here, and says what the cache has to do.
    pub fn finish_step(&mut self) -> Result<EvictionPlan, PolicyError> {
        self.check_fault()?;
        let Phase::Open { refresh, due, noting } = self.phase else {
            return Err(PolicyError::OutOfOrder {
                call: "finish_step",
                when: "outside a step",
            });
        };
        if refresh {
            if self.policy.scorer.is_positional() {
                self.score_positions(noting);
            } else if let Some(&layer) = self.scored.get(due) {
                return Err(PolicyError::MissingLayer { layer });
            } else if self.policy.coupling == Coupling::LayerMean {
                self.score_layer_mean();
            }
        }
        self.phase = Phase::Between;
        if !refresh {
            return Ok(self.evict());
        }
        self.see_step();
        let plan = self.evict();
        if let (Some(adaptation), [ranking]) = (&mut self.adaptation, &*self.rankings) {
            adaptation.finish_step(&ranking.positions, &ranking.utility);
        }
        Ok(plan)
    }

    /// Decode steps begun, from 1; 0 before the first.
    #[must_use]
    pub fn step(&self) -> usize {
        self.step
    }

    /// The budget B now, in entries per layer and KV head; `None` where nothing is ever evicted.
    #[must_use]
    pub fn budget(&self) -> Option<usize> {
        self.policy.budget.entries(self.prompt_tokens, self.seen)
    }

    /// Entries evicted so far from each KV head of each evictable layer, those of a compressed prompt included; the mean
    /// over heads where they differ.
    #[must_use]
    pub fn evictions(&self) -> usize {
        (self.evicted / self.heads().max(1) as u64) as usize
    }

    /// What [`Aggregation::Adaptive`] measured and chose; `None` under another rule, or before the choice.
    #[must_use]
    pub fn adaptive(&self) -> Option<AdaptiveReport> {
        self.adaptation.as_ref().and_then(Adaptation::report)
    }

    /// Tokens seen so far: the position of the next one.
    #[must_use]
    pub fn seen_tokens(&self) -> usize {
        self.seen
    }

    /// Tokens that came from prompts.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The policy followed.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The shape of the model.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Rows held by a head; 0 for a head that does not exist.
    #[must_use]
    pub fn rows(&self, layer: usize, head: usize) -> usize {
        self.positions(layer, head).len()
    }

    /// The position each row of a head holds, in row order.
    #[must_use]
    pub fn positions(&self, layer: usize, head: usize) -> &[u32] {
        if layer >= self.shape.layers || head >= self.shape.kv_heads {
            return &[];
        }
        match self.ranking(layer, head) {
            None => &self.everything,
            Some((ranking, place)) => match &ranking.ragged {
                None => &ranking.positions,
                Some(ragged) => &ragged.heads[place].positions,
            },
        }
    }

    /// The positions a head holds, ascending.
    #[must_use]
    pub fn retained(&self, layer: usize, head: usize) -> Vec<u32> {
        let mut positions = self.positions(layer, head).to_vec();
        positions.sort_unstable();
        positions
    }

    /// The utility of each row of a head, in row order; empty for a layer that is never evicted.
    #[must_use]
    pub fn utility(&self, layer: usize, head: usize) -> Cow<'_, [f32]> {
        match self.ranking(layer, head) {
            None => Cow::Borrowed(&[]),
            Some((ranking, place)) => match &ranking.ragged {
                None => Cow::Borrowed(&ranking.utility),
                Some(ragged) => {
                    let rows = &ragged.heads[place].rows;
                    rows.iter().map(|&row| ranking.utility[row as usize]).collect()
                }
            },
        }
    }

    /// The ranking of a head, and the head's place among those that share it.
    fn ranking(&self, layer: usize, head: usize) -> Option<(&Ranking, usize)> {
        if head >= self.shape.kv_heads {
            return None;
        }
        let (index, place) = self.place(layer, head)?;
        Some((&self.rankings[index], place))
    }

    fn place(&self, layer: usize, head: usize) -> Option<(usize, usize)> {
        let slot = self.slots.get(layer).copied().flatten()?;
        Some(match self.layout {
            Layout::Model => (0, slot * self.shape.kv_heads + head),
            Layout::Layer => (slot, head),
            Layout::Head => (slot * self.shape.kv_heads + head, 0),
        })
    }

    /// KV heads of all evictable layers.
    fn heads(&self) -> usize {
        self.shape.kv_heads * self.slots.iter().flatten().count()
    }

    /// KV heads that share a ranking.
    fn heads_per_ranking(&self) -> usize {
        match self.layout {
            Layout::Model => self.heads(),
            Layout::Layer => self.shape.kv_heads,
            Layout::Head => 1,
        }
    }

    fn check_fault(&self) -> Result<(), PolicyError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn needs(&self, refresh: bool, due: usize, new_tokens: usize) -> StepNeeds {
        let mut layers = vec![false; self.shape.layers];
        let observed = refresh && !self.policy.scorer.is_positional();
        if observed {
            for &layer in &self.scored[due..] {
                layers[layer] = true;
            }
        }
        StepNeeds {
            refresh,
            layers,
            features: if observed {
                self.policy.scorer.features()
            } else {
                Features::default()
            },
            group_pooling: self.policy.head_pooling.group_pooling(),
            window: self.policy.window.min(new_tokens.max(1)),
        }
    }

    // With no memory under one ranking the last layer overwrites all others, so only it is asked for, unless a rescue
    // wants to know every layer's best.
    fn first_due(&self, noting: bool) -> usize {
        let last_only = self.policy.coupling == Coupling::Sequential
            && self.policy.aggregation == Aggregation::SingleStep
            && self.rankings.iter().all(|ranking| ranking.ragged.is_none());
        if last_only && !noting {
            self.scored.len().saturating_sub(1)
        } else {
            0
        }
    }
}

fn scored_layers(policy: &Policy, shape: &Shape) -> Result<Vec<usize>, PolicyError> {
    let in_range = |layer: usize| policy.layers.is_none_or(|range| range.contains(layer));
    let scored: Vec<usize> = (0..shape.layers)
        .filter(|&layer| shape.is_evictable(layer) && in_range(layer))
        .collect();
    match policy.layers {
        Some(range) if range.last >= shape.layers || scored.is_empty() => Err(PolicyError::BadLayers {
            first: range.first,
            last: range.last,
            layers: shape.layers,
        }),
        _ => Ok(scored),
    }
}
