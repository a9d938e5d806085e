//! What does the ranking of a method do, step by step, on a model?
//!
//! The method runs as it would anywhere. Beside it two *shadows* run the same tokens and evict nothing: one ranks by the
//! method's own rule, the other by the score of each step alone. Both see every entry, so that their top sets are over the
//! same candidates whatever the method has evicted. Where the paper leaves open what is raw, it is what `single-step`
//! would rank by: under the sequential coupling the last scored layer, under the others their own mean or layer.

use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::policy::{Aggregation, Budget, Coupling, Policy, Protect, Ratio, Refresh, Rule};
use inertiakv::{Engine, Error, GenerateOptions, Generator, Method, Session};
use serde::{Deserialize, Serialize};

use super::{
    Positions, Ranking, Ties, agreement, oracle_missed, persistence, rank_change, raw_top_evicted, step_churn,
};
use crate::EvalError;
use crate::file::json_lines;
use crate::statistics::mean_of_defined;

/// How a ranking was at one step, or means of it; `None` where a measure is undefined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceMeasures {
    /// Share of the raw top B of the step before that left it, new entries aside.
    pub raw_churn: Option<f64>,
    /// The same of the method's running estimate.
    pub ema_churn: Option<f64>,
    /// Jaccard index of the two top sets.
    pub raw_ema_jaccard: Option<f64>,
    /// Share of the raw top B that the method does not hold any more.
    pub raw_top_missed: Option<f64>,
    /// Share of what was evicted in this step that was in the raw top B of what was held.
    pub raw_top_evicted: Option<f64>,
    /// [`Ranking::boundary_margin`] of the running estimate.
    pub boundary_margin: Option<f64>,
    /// [`Ranking::entropy`] of the raw scores.
    pub score_entropy: Option<f64>,
    /// Share of the entries in the top B of this step and the one before whose rank among them changed.
    pub rank_moved: Option<f64>,
    /// By how many ranks they moved, in the mean.
    pub rank_shift: Option<f64>,
    /// Share of the set that was held after step 1 that is still held.
    pub persistence: Option<f64>,
}

impl TraceMeasures {
    /// Every measure's mean over those where it is defined.
    fn mean(all: &[Self]) -> Self {
        let mean = |measure: fn(&Self) -> Option<f64>| mean_of_defined(all.iter().map(measure));
        Self {
            raw_churn: mean(|of| of.raw_churn),
            ema_churn: mean(|of| of.ema_churn),
            raw_ema_jaccard: mean(|of| of.raw_ema_jaccard),
            raw_top_missed: mean(|of| of.raw_top_missed),
            raw_top_evicted: mean(|of| of.raw_top_evicted),
            boundary_margin: mean(|of| of.boundary_margin),
            score_entropy: mean(|of| of.score_entropy),
            rank_moved: mean(|of| of.rank_moved),
            rank_shift: mean(|of| of.rank_shift),
            persistence: mean(|of| of.persistence),
        }
    }
}

/// One step of a trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceStep {
    /// Number of the step, from 1.
    pub step: usize,
    /// Tokens that the step ran: a whole question, or one.
    pub tokens: usize,
    /// Whether the method computed scores.
    pub refresh: bool,
    /// Entries that there would be without eviction: the candidates of the top sets.
    pub candidates: usize,
    /// B, the size of the top sets.
    pub budget: usize,
    /// How the ranking was: means over the rankings that the method keeps (one, or one per layer or head).
    #[serde(flatten)]
    pub measures: TraceMeasures,
    /// Positions held at the end of the step, ascending; of the first ranking where there are several.
    pub retained: Vec<u32>,
    /// The raw top B.
    pub raw_top: Vec<u32>,
}

/// A step in a file of traces: every line says what it belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceLine {
    /// The example, or the file that was read.
    pub name: String,
    /// The model's name.
    pub model: String,
    /// The method in its textual form.
    pub method: String,
    /// The step.
    #[serde(flatten)]
    pub step: TraceStep,
}

impl TraceLine {
    /// Reads a file of traces.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is empty, or a line is no step.
    pub fn read(path: &Path) -> Result<Vec<Self>, EvalError> {
        Ok(json_lines(path)?.into_iter().map(|(_, line)| line).collect())
    }
}

/// A method's ranking over one answer.
#[derive(Debug, Clone, PartialEq)]
pub struct RankTrace {
    /// The method in its textual form.
    pub method: String,
    /// L0.
    pub prompt_tokens: usize,
    /// What the method answered.
    pub text: String,
    /// One per step.
    pub steps: Vec<TraceStep>,
}

/// What one or several traces come to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Steps of all of them.
    pub steps: usize,
    /// Means over the steps; of persistence over the last step of each trace.
    #[serde(flatten)]
    pub measures: TraceMeasures,
}

impl TraceSummary {
    /// Means over all steps of these traces.
    #[must_use]
    pub fn of(traces: &[RankTrace]) -> Self {
        let steps: Vec<TraceMeasures> = traces
            .iter()
            .flat_map(|trace| &trace.steps)
            .map(|step| step.measures)
            .collect();
        let last = traces.iter().filter_map(|trace| trace.steps.last());
        Self {
            steps: steps.len(),
            measures: TraceMeasures {
                persistence: mean_of_defined(last.map(|step| step.measures.persistence)),
                ..TraceMeasures::mean(&steps)
            },
        }
    }
}

/// Runs a method over a context and a question, which may be empty, and traces its ranking.
///
/// `progress(done, total)` is asked between chunks and steps; `Break` ends with [`Error::Cancelled`].
///
/// # Errors
///
/// The method compresses the prompt or evicts nothing while decoding, or the engine refuses or fails.
pub fn rank_trace(
    engine: &Engine,
    context: &[u32],
    question: &[u32],
    method: &Method,
    options: &GenerateOptions,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<RankTrace, EvalError> {
    let watched = [raw(method)?, running(method)?];
    let mut base = engine.session(&Method::full())?;
    base.prefill(context, progress)?;
    let mut session = base.fork(method)?;
    let mut shadows = Shadows::new(&base, &watched)?;
    drop(base);
    let mut tracer = Tracer::default();
    let mut generator = Generator::new(engine, options)?;
    let (mut text, mut generated) = (String::new(), 0);
    let mut tokens = question.to_vec();
    let total = options.max_tokens + usize::from(!question.is_empty());
    loop {
        if progress(tracer.steps.len(), total).is_break() {
            return Err(Error::Cancelled.into());
        }
        if !tokens.is_empty() {
            // A token that was drawn waits in the session already.
            let own = if generated == 0 { tokens.as_slice() } else { &[] };
            let report = session.step(own)?;
            shadows.step(&tokens)?;
            tracer.see(&session, &shadows, report.tokens, report.refresh)?;
        }
        if generated >= options.max_tokens || session.position() >= session.context() {
            break;
        }
        let Some(draw) = generator.draw(&mut session)? else {
            break;
        };
        text.push_str(&draw.text);
        generated += 1;
        tokens = vec![draw.token];
        if draw.stopped {
            break;
        }
    }
    text.push_str(&generator.finish());
    Ok(RankTrace {
        method: method.to_string(),
        prompt_tokens: context.len(),
        text,
        steps: tracer.steps,
    })
}

/// The same method evicting nothing, with its own rule.
///
/// # Errors
///
/// The method has no ranking that lives through the steps, or one over a compressed prompt only.
pub fn running(method: &Method) -> Result<Method, EvalError> {
    let policy = &method.decode.policy;
    if !policy.evicts() {
        return Err(EvalError::NoRanking {
            method: method.to_string(),
        });
    }
    if method.prefill.is_some() {
        let decode = Method {
            prefill: None,
            ..method.clone()
        };
        return Err(EvalError::CompressedRanking {
            method: method.to_string(),
            decode: decode.to_string(),
        });
    }
    Ok(Method {
        prefill: None,
        decode: Rule {
            name: method.decode.name,
            policy: Policy {
                budget: Budget::SeenRatio(Ratio::percent(0)),
                protect: Protect::NONE,
                interval: 1,
                share: Policy::default().share,
                ..policy.clone()
            },
        },
    })
}

/// The same method evicting nothing, by the scores of each step alone.
///
/// # Errors
///
/// As for [`running`].
pub fn raw(method: &Method) -> Result<Method, EvalError> {
    let mut method = running(method)?;
    method.decode.policy.aggregation = Aggregation::SingleStep;
    method.decode.policy.refresh = Refresh::Every(1);
    method.decode.policy.reactive = false;
    Ok(method)
}

/// Sessions that run the same tokens from one prefill, evict nothing, and rank all the while.
pub struct Shadows {
    sessions: Vec<Session>,
}

impl Shadows {
    /// Forks of a prefilled session under methods from [`running`] or [`raw`].
    ///
    /// # Errors
    ///
    /// The engine refuses a method.
    pub fn new(base: &Session, methods: &[Method]) -> Result<Self, EvalError> {
        let sessions = methods
            .iter()
            .map(|method| base.fork(method))
            .collect::<Result<_, _>>()?;
        Ok(Self { sessions })
    }

    /// Runs a step of all of them.
    ///
    /// # Errors
    ///
    /// The engine refuses or fails.
    pub fn step(&mut self, tokens: &[u32]) -> Result<(), EvalError> {
        let tokens = vec![tokens; self.sessions.len()];
        let mut sessions: Vec<&mut Session> = self.sessions.iter_mut().collect();
        Session::step_together(&mut sessions, &tokens)?;
        Ok(())
    }

    /// Logits of the last token, which are those of the full cache.
    ///
    /// # Errors
    ///
    /// There is no shadow.
    pub fn logits(&self) -> Result<&[f32], EvalError> {
        Ok(self.sessions.first().ok_or(Error::NoTokens)?.logits()?)
    }

    /// The rankings of one of them, in the order of layers and heads; equal utilities rank as the policy would.
    ///
    /// # Errors
    ///
    /// A utility is NaN.
    pub fn rankings(&self, index: usize) -> Result<Vec<Ranking>, EvalError> {
        let session = &self.sessions[index];
        places(session)
            .into_iter()
            .map(|place| ranking(session, place))
            .collect()
    }
}

/// One layer and head for every ranking that a session keeps.
fn places(session: &Session) -> Vec<(usize, usize)> {
    let config = session.engine().config();
    let (layers, heads) = match session.method().decode.policy.coupling {
        Coupling::Sequential | Coupling::LayerMean => (1, 1),
        Coupling::PerLayer => (config.layers, 1),
        Coupling::PerHead => (config.layers, config.kv_heads),
    };
    (0..layers)
        .flat_map(|layer| (0..heads).map(move |head| (layer, head)))
        .collect()
}

fn ranking(session: &Session, (layer, head): (usize, usize)) -> Result<Ranking, EvalError> {
    let policy = session.policy().ok_or(Error::NoTokens)?;
    let positions = policy.positions(layer, head).iter().copied();
    let utility = policy.utility(layer, head);
    Ranking::new(positions.zip(utility.iter().copied()), Ties::Later)
}

/// What has been seen of a method so far.
#[derive(Default)]
struct Tracer {
    steps: Vec<TraceStep>,
    /// Per ranking.
    last: Vec<Last>,
    first: Vec<Positions>,
}

struct Last {
    raw: Ranking,
    ema: Ranking,
    held: Positions,
}

impl Tracer {
    fn see(&mut self, session: &Session, shadows: &Shadows, tokens: usize, refresh: bool) -> Result<(), EvalError> {
        let policy = session.policy().ok_or(Error::NoTokens)?;
        let budget = policy.budget().unwrap_or(usize::MAX);
        let seen = policy.seen_tokens();
        let held: Vec<Positions> = places(session)
            .into_iter()
            .map(|(layer, head)| policy.positions(layer, head).iter().copied().collect())
            .collect();
        if self.first.is_empty() {
            self.first.clone_from(&held);
        }
        let new: Positions = (seen - tokens..seen).map(|position| position as u32).collect();
        let retained = held.first().into_iter().flatten().copied().collect();
        let (mut measures, mut raw_tops) = (Vec::new(), Vec::new());
        let mut now = Vec::with_capacity(held.len());
        let rankings = shadows.rankings(0)?.into_iter().zip(shadows.rankings(1)?);
        for (index, ((raw, ema), held)) in rankings.zip(held).enumerate() {
            let raw_top = raw.top(budget);
            let last = self.last.get(index);
            // Before the first step everything was held.
            let before: Positions = match last {
                Some(last) => last.held.union(&new).copied().collect(),
                None => raw.positions(),
            };
            let victims: Positions = before.difference(&held).copied().collect();
            let held_top = raw.restricted(&before).top(budget);
            let change = last.and_then(|last| rank_change(&last.ema, &ema, budget));
            measures.push(TraceMeasures {
                raw_churn: last.and_then(|last| step_churn(&last.raw, &raw, budget)),
                ema_churn: last.and_then(|last| step_churn(&last.ema, &ema, budget)),
                raw_ema_jaccard: agreement(&raw, &ema, budget),
                raw_top_missed: oracle_missed(&raw_top, &held),
                raw_top_evicted: raw_top_evicted(&victims, &held_top),
                boundary_margin: ema.boundary_margin(budget),
                score_entropy: raw.entropy(),
                rank_moved: change.map(|change| change.moved),
                rank_shift: change.map(|change| change.mean_shift),
                persistence: persistence(&self.first[index], &held),
            });
            raw_tops.push(raw_top);
            now.push(Last { raw, ema, held });
        }
        self.last = now;
        self.steps.push(TraceStep {
            step: policy.step(),
            tokens,
            refresh,
            candidates: seen,
            budget: budget.min(seen),
            measures: TraceMeasures::mean(&measures),
            retained,
            raw_top: raw_tops.into_iter().next().unwrap_or_default().into_iter().collect(),
        });
        Ok(())
    }
}
