//! What happens in a decode step, of one session or of several together?

use std::ops::ControlFlow;
use std::time::Instant;

use inertiakv_kernels::cache::HeadPlan;
use inertiakv_policy::{EvictionPlan, PolicyState, StepNeeds};

use super::features::{EntryFeatures, group_pooling};
use super::{CHUNK, Session};
use crate::Error;
use crate::backend::CpuBackend;
use crate::decoder::{Capture, Observer, Profile, Seen, Sequence};
use crate::engine::{Engine, Logits};
use crate::report::StepReport;

/// Runs the tokens `runs[i]`, which have been checked, as one step of `sessions[i]`, all of one engine.
///
/// Steps longer than a chunk run their first chunks alone; the last chunks of all run together, since scores come from
/// there.
pub(super) fn run(
    sessions: &mut [&mut Session],
    runs: &[Vec<u32>],
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Vec<StepReport>, Error> {
    for session in sessions.iter_mut() {
        session.broken = true;
        session.deferred = None;
    }
    let engine = sessions[0].engine.clone();
    let mut steps = Vec::with_capacity(sessions.len());
    for (session, run) in sessions.iter_mut().zip(runs) {
        steps.push(Step::begin(session, run, progress)?);
    }
    let mut shared = Profile::default();
    let mut logits: Vec<Vec<f32>> = sessions
        .iter_mut()
        .map(|session| std::mem::take(&mut session.logits))
        .collect();
    {
        let mut batch: Vec<Sequence<'_, CpuBackend>> = sessions
            .iter_mut()
            .zip(&mut steps)
            .map(|(session, step)| Sequence {
                tokens: step.last,
                position: session.position,
                cache: &mut session.cache,
                observer: Some(step),
            })
            .collect();
        let mut logits: Vec<&mut Vec<f32>> = logits.iter_mut().collect();
        engine.forward(&mut batch, Logits::Last(&mut logits), &mut shared)?;
    }
    let mut reports = Vec::with_capacity(sessions.len());
    for (((session, mut step), run), logits) in sessions.iter_mut().zip(steps).zip(runs).zip(logits) {
        session.logits = logits;
        session.advance(step.last);
        step.profile += shared;
        if progress(run.len(), run.len()).is_break() {
            return Err(Error::Cancelled);
        }
        reports.push(step.finish(session, run)?);
    }
    // Only now, so that none is of use after an error: nobody could tell which of them have stepped.
    for session in sessions {
        session.broken = false;
    }
    Ok(reports)
}

/// A step under way: shows each layer's attention to the policy.
struct Step<'a> {
    /// Out of the session while the step runs, since the forward pass borrows both.
    state: PolicyState,
    needs: StepNeeds,
    /// The tokens of the last chunk.
    last: &'a [u32],
    features: EntryFeatures,
    engine: Engine,
    profile: Profile,
}

impl<'a> Step<'a> {
    /// Runs all chunks but the last.
    fn begin(
        session: &mut Session,
        tokens: &'a [u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let mut state = session.take_policy()?;
        let needs = state.begin_step(tokens.len());
        let mut profile = Profile::default();
        // A short first chunk, so that the last one has every query that may be scored.
        let (short, long) = tokens.split_at(tokens.len() % CHUNK);
        let mut chunks = [short]
            .into_iter()
            .chain(long.chunks(CHUNK))
            .filter(|chunk| !chunk.is_empty());
        let last = chunks.next_back().unwrap_or_default();
        let mut done = 0;
        for chunk in chunks {
            session.run(chunk, Logits::Nothing, &mut profile, None)?;
            done += chunk.len();
            if progress(done, tokens.len()).is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(Self {
            state,
            needs,
            last,
            features: EntryFeatures::default(),
            engine: session.engine.clone(),
            profile,
        })
    }

    /// Evicts, and puts the session together again.
    fn finish(mut self, session: &mut Session, tokens: &[u32]) -> Result<StepReport, Error> {
        session.note_peak();
        let start = Instant::now();
        let before = session.retained_entries();
        let plan = self.state.finish_step()?;
        let bytes = session.cache.bytes();
        session.evict(&plan)?;
        session.forget_hidden()?;
        session.figures.kv_bytes_freed += bytes.saturating_sub(session.cache.bytes());
        self.profile.eviction += start.elapsed();
        self.profile.total += start.elapsed();
        let retained = session.retained_entries();
        let report = StepReport {
            step: self.state.step(),
            tokens: tokens.len(),
            refresh: self.needs.refresh,
            evicted: before - retained,
            retained,
            kv_bytes: session.cache.bytes(),
            profile: self.profile,
        };
        session.policy = Some(self.state);
        session.figures.decode += self.profile;
        if tokens.len() == 1 {
            session.figures.single_steps += 1;
            session.figures.single_time += self.profile.total;
        }
        Ok(report)
    }

    /// Queries that the mass sums over.
    fn scored_queries(&self) -> usize {
        self.last.len().min(self.needs.window)
    }
}

impl Session {
    /// Gives up what layers with a window will never look at again.
    fn forget_hidden(&mut self) -> Result<(), Error> {
        let config = self.engine.config();
        for layer in 0..config.layers {
            if let Some(window) = config.window(layer) {
                // The next row sees itself too.
                self.cache.keep_newest(layer, window - 1)?;
            }
        }
        Ok(())
    }

    pub(super) fn evict(&mut self, plan: &EvictionPlan) -> Result<(), Error> {
        if plan.is_nothing() {
            return Ok(());
        }
        let config = self.engine.config();
        let heads = (0..config.layers).flat_map(|layer| (0..config.kv_heads).map(move |head| (layer, head)));
        let plans: Vec<Option<HeadPlan<'_>>> = heads
            .map(|(layer, head)| {
                plan.for_head(layer, head).map(|plan| HeadPlan {
                    moves: &plan.moves,
                    rows: plan.rows,
                })
            })
            .collect();
        self.engine.evict(&mut self.cache, &plans)?;
        Ok(())
    }
}

impl Observer<CpuBackend> for Step<'_> {
    fn wants(&self, layer: usize) -> Option<Capture> {
        self.needs.needs(layer).then(|| Capture {
            mass: self
                .needs
                .features
                .mass
                .then_some((group_pooling(self.needs.group_pooling), self.scored_queries())),
            plain_queries: false,
            beside: true,
        })
    }

    fn observe(&mut self, layer: usize, seen: &Seen<'_, CpuBackend>) -> Result<(), Error> {
        let wanted = self.needs.features;
        self.features.read(seen.cache, layer, wanted);
        if wanted.relevance {
            let learned = self.engine.learned(&self.state.policy().scorer)?;
            // A trained scorer looks at the last query.
            let width = seen.range.len() / self.last.len();
            let query = &seen.queries[seen.range.end - width..seen.range.end];
            learned.relevance(seen.cache, layer, query, &mut self.features.relevance);
        }
        let observations = self.features.observations(wanted.mass.then_some(seen.mass));
        let queries = self.scored_queries();
        self.state.observe(layer, queries, &observations)?;
        Ok(())
    }
}
