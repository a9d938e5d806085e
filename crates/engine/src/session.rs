//! What is one conversation: its cache, its position, and the policy that bounds it?
//!
//! A session is prefilled once, then takes decode steps. A step runs its tokens, shows the policy what the layers paid
//! attention to, and evicts what the policy gives up (DESIGN: append, attend, score, evict).

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use inertiakv_kernels::attention::{GroupPooling, Mass};
use inertiakv_kernels::cache::KvCache;
use inertiakv_policy::{self as policy, Budget, EvictionPlan, HeadObservation, Method, PolicyState, StepNeeds};

use crate::Error;
use crate::backend::CpuBackend;
use crate::decoder::{Capture, Observer, Profile, Sequence};
use crate::engine::{Engine, Logits};
use crate::report::{RunReport, StepReport};
use crate::sampling::REPETITION_WINDOW;

/// Most rows of one forward pass; longer inputs run in chunks of this size.
pub(crate) const CHUNK: usize = 512;

/// One sequence under one method.
pub struct Session {
    engine: Engine,
    method: Method,
    cache: KvCache,
    /// Made when the prompt is complete; from then on the cache follows it.
    policy: Option<PolicyState>,
    /// Tokens run so far, evicted or not; the position of the next one.
    position: usize,
    /// The last generated token, while it has not been run through the model.
    deferred: Option<u32>,
    /// The latest tokens run, for the repetition penalty.
    recent: Vec<u32>,
    logits: Vec<f32>,
    figures: Figures,
    /// An error left the layers at different lengths.
    broken: bool,
}

/// What the session has cost so far.
#[derive(Clone, Debug, Default)]
struct Figures {
    prompt_tokens: usize,
    kv_bytes_prefill: usize,
    kv_bytes_peak: usize,
    peak_entries: usize,
    prefill: Duration,
    decode: Profile,
    /// Steps of one token and their time: the speed at which an answer comes.
    single_steps: usize,
    single_time: Duration,
}

impl Session {
    pub(crate) fn new(engine: Engine, method: Method) -> Self {
        let cache = KvCache::new(engine.kv_pool());
        Self {
            engine,
            method,
            cache,
            policy: None,
            position: 0,
            deferred: None,
            recent: Vec::new(),
            logits: Vec::new(),
            figures: Figures::default(),
            broken: false,
        }
    }

    /// The engine that runs this session.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The method that bounds its cache.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Tokens run so far, evicted ones included: the position of the next token.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Most tokens that the session can run.
    #[must_use]
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// Utilities, positions and counters of the policy; `None` before the first step.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyState> {
        self.policy.as_ref()
    }

    /// Logits of the last token that ran, one per vocabulary entry.
    pub fn logits(&self) -> Result<&[f32], Error> {
        if self.logits.is_empty() {
            Err(Error::NoTokens)
        } else {
            Ok(&self.logits)
        }
    }

    /// Runs the prompt with full causal attention; nothing is scored or evicted. May be called again to add to the
    /// prompt before the first step.
    ///
    /// `progress(done, total)` is called after every chunk; returning `Break` ends with [`Error::Cancelled`], and the
    /// session is of no further use.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        if self.policy.is_some() || self.deferred.is_some() {
            return Err(Error::PrefillAfterStep);
        }
        self.check(tokens)?;
        self.broken = true;
        let start = Instant::now();
        let mut profile = Profile::default();
        let mut logits = std::mem::take(&mut self.logits);
        for (done, chunk) in tokens
            .chunks(CHUNK)
            .enumerate()
            .map(|(index, chunk)| (index * CHUNK, chunk))
        {
            let last = done + chunk.len() == tokens.len();
            self.run(chunk, None, last_row(last, &mut logits), &mut profile)?;
            if progress(done + chunk.len(), tokens.len()).is_break() {
                return Err(Error::Cancelled);
            }
        }
        self.logits = logits;
        self.broken = false;
        self.figures.prefill += start.elapsed();
        self.figures.prompt_tokens += tokens.len();
        self.figures.kv_bytes_prefill = self.cache.bytes();
        self.note_peak();
        Ok(())
    }

    /// One decode step: runs `tokens` after a generated token that has not run yet, scores, and evicts.
    ///
    /// Usually the step is one token; a question about a prefilled context is one step of many. Scores come from its
    /// last query (or the last W, see the method). A refused step changes nothing.
    pub fn step(&mut self, tokens: &[u32]) -> Result<StepReport, Error> {
        self.step_watched(tokens, &mut |_, _| ControlFlow::Continue(()))
    }

    /// [`Session::step`] with `progress(done, total)` after every chunk of a long step; returning `Break` ends with
    /// [`Error::Cancelled`], and the session is of no further use.
    pub fn step_watched(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<StepReport, Error> {
        let tokens: Vec<u32> = self.deferred.iter().chain(tokens).copied().collect();
        self.check(&tokens)?;
        if self.position == 0 {
            return Err(Error::NoPrompt);
        }
        self.broken = true;
        self.deferred = None;
        let report = self.step_unchecked(&tokens, progress)?;
        self.broken = false;
        Ok(report)
    }

    /// The next turn of a conversation: the budget grows by (1-ρ) times the turn's tokens, then they are one step.
    /// `progress` is that of [`Session::step_watched`].
    pub fn follow_up(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<StepReport, Error> {
        let run: Vec<u32> = self.deferred.iter().chain(tokens).copied().collect();
        self.check(&run)?;
        if self.position == 0 {
            return Err(Error::NoPrompt);
        }
        let mut state = self.take_policy()?;
        state.add_prompt_tokens(tokens.len());
        self.policy = Some(state);
        self.step_watched(tokens, progress)
    }

    /// A copy that shares the cache until one of the two writes: evaluate many methods from one prefill.
    ///
    /// # Errors
    /// Another method than the session's own is possible only before the first step.
    pub fn fork(&self, method: &Method) -> Result<Self, Error> {
        if self.broken {
            return Err(Error::Broken);
        }
        if self.policy.is_some() && *method != self.method {
            return Err(Error::ForkAfterStep);
        }
        self.engine.check_method(method)?;
        Ok(Self {
            engine: self.engine.clone(),
            method: method.clone(),
            cache: self.cache.fork(),
            policy: self.policy.clone(),
            position: self.position,
            deferred: self.deferred,
            recent: self.recent.clone(),
            logits: self.logits.clone(),
            figures: self.figures.clone(),
            broken: false,
        })
    }

    /// What the run was and what it cost, in the vocabulary of the reports.
    #[must_use]
    pub fn report(&self) -> RunReport {
        let figures = &self.figures;
        let policy = self.policy.as_ref();
        // Follow-up turns count towards the budget, so they count here.
        let prompt_tokens = policy.map_or(figures.prompt_tokens, PolicyState::prompt_tokens);
        let rate = |tokens: usize, time: Duration| {
            if time.is_zero() {
                0.0
            } else {
                tokens as f64 / time.as_secs_f64()
            }
        };
        let decode_seconds = figures.decode.total.as_secs_f64();
        RunReport {
            model: self.engine.name().to_owned(),
            method: self.method.to_string(),
            prompt_tokens,
            compression_ratio: compression_ratio(self.method.policy.budget, prompt_tokens),
            budget: self.method.policy.budget.entries(prompt_tokens, self.position),
            refresh: self.method.evicts().then(|| self.method.policy.refresh.to_string()),
            steps: policy.map_or(0, PolicyState::step),
            evictions: policy.map_or(0, PolicyState::evictions),
            retained: self.retained_entries(),
            peak_entries: figures.peak_entries,
            kv_bytes: self.cache.bytes(),
            kv_bytes_peak: figures.kv_bytes_peak,
            kv_bytes_prefill: figures.kv_bytes_prefill,
            prefill_seconds: figures.prefill.as_secs_f64(),
            decode_seconds,
            prefill_tokens_per_second: rate(figures.prompt_tokens, figures.prefill),
            decode_tokens_per_second: rate(figures.single_steps, figures.single_time),
            scoring_share: if decode_seconds > 0.0 {
                figures.decode.scoring.as_secs_f64() / decode_seconds
            } else {
                0.0
            },
        }
    }

    /// Time of all decode steps so far, by kind of work.
    #[must_use]
    pub fn decode_profile(&self) -> Profile {
        self.figures.decode
    }

    /// Entries per layer and head; the mean, rounded up, where heads differ.
    #[must_use]
    pub fn retained_entries(&self) -> usize {
        let config = self.engine.config();
        let heads = (0..config.layers).flat_map(|layer| (0..config.kv_heads).map(move |head| (layer, head)));
        let rows: usize = heads.map(|(layer, head)| self.cache.rows(layer, head)).sum();
        rows.div_ceil(config.layers * config.kv_heads)
    }

    /// Remembers a generated token for the next step to run.
    pub(crate) fn defer(&mut self, token: u32) {
        self.deferred = Some(token);
    }

    /// Runs a generated token that has not run yet, if there is one and the context has room; says whether it had.
    pub(crate) fn catch_up(&mut self) -> Result<bool, Error> {
        if self.deferred.is_none() {
            return Ok(true);
        }
        if self.position >= self.context() {
            return Ok(false);
        }
        self.step(&[])?;
        Ok(true)
    }

    /// The latest tokens run, at most as many as the repetition penalty looks at.
    pub(crate) fn recent(&self) -> &[u32] {
        &self.recent
    }

    /// Runs `tokens` as more of the prompt and hands the logits of each from row `from` on to `take(row, logits)`.
    pub(crate) fn prefill_with_logits(
        &mut self,
        tokens: &[u32],
        from: usize,
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.check(tokens)?;
        self.broken = true;
        let mut profile = Profile::default();
        for (index, chunk) in tokens.chunks(CHUNK).enumerate() {
            let first = index * CHUNK;
            let wanted = from.saturating_sub(first).min(chunk.len())..chunk.len();
            let mut take = |row: usize, logits: &[f32]| take(first + row, logits);
            self.run(chunk, None, Logits::Rows(wanted, &mut take), &mut profile)?;
        }
        self.broken = false;
        self.figures.prompt_tokens += tokens.len();
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        if self.broken {
            return Err(Error::Broken);
        }
        if tokens.is_empty() {
            return Err(Error::NoTokens);
        }
        let vocabulary = self.engine.config().vocabulary;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::UnknownToken { token, vocabulary });
        }
        let needed = self.position + tokens.len();
        if needed > self.context() {
            return Err(Error::ContextFull {
                needed,
                context: self.context(),
            });
        }
        Ok(())
    }

    /// The policy of this session, made for what has been prefilled when it is first needed.
    fn take_policy(&mut self) -> Result<PolicyState, Error> {
        match self.policy.take() {
            Some(state) => Ok(state),
            None => Ok(PolicyState::new(
                &self.method.policy,
                &self.engine.policy_shape(),
                self.position,
            )?),
        }
    }

    fn step_unchecked(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<StepReport, Error> {
        // Out of the session while the step runs, since the forward pass borrows both.
        let mut state = self.take_policy()?;
        let needs = state.begin_step(tokens.len());
        let refresh = needs.refresh;
        let mut profile = Profile::default();
        // A short first chunk, so that the last one has every query that may be scored.
        let (head, rest) = tokens.split_at(tokens.len() % CHUNK);
        let mut chunks = [head]
            .into_iter()
            .filter(|head| !head.is_empty())
            .chain(rest.chunks(CHUNK))
            .peekable();
        let mut scorer = Scorer {
            state: &mut state,
            needs: &needs,
            queries: 0,
            features: Features::default(),
        };
        let mut logits = std::mem::take(&mut self.logits);
        let mut done = 0;
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            scorer.queries = chunk.len().min(needs.window);
            let observer: Option<&mut dyn Observer<CpuBackend>> = if last { Some(&mut scorer) } else { None };
            self.run(chunk, observer, last_row(last, &mut logits), &mut profile)?;
            done += chunk.len();
            if progress(done, tokens.len()).is_break() {
                return Err(Error::Cancelled);
            }
        }
        self.logits = logits;
        self.note_peak();
        let start = Instant::now();
        let before = self.retained_entries();
        let plan = state.finish_step()?;
        self.evict(&plan)?;
        profile.eviction += start.elapsed();
        profile.total += start.elapsed();
        let report = StepReport {
            step: state.step(),
            tokens: tokens.len(),
            refresh,
            evicted: before - self.retained_entries(),
            retained: self.retained_entries(),
            kv_bytes: self.cache.bytes(),
            profile,
        };
        self.policy = Some(state);
        self.figures.decode += profile;
        if tokens.len() == 1 {
            self.figures.single_steps += 1;
            self.figures.single_time += profile.total;
        }
        Ok(report)
    }

    fn evict(&mut self, plan: &EvictionPlan) -> Result<(), Error> {
        if matches!(plan, EvictionPlan::Nothing) {
            return Ok(());
        }
        let config = self.engine.config();
        for layer in 0..config.layers {
            for head in 0..config.kv_heads {
                if let Some(plan) = plan.for_head(layer, head) {
                    self.cache.apply(layer, head, &plan.moves, plan.rows)?;
                }
            }
        }
        Ok(())
    }

    /// One forward pass over the next tokens of the session.
    fn run(
        &mut self,
        tokens: &[u32],
        observer: Option<&mut dyn Observer<CpuBackend>>,
        logits: Logits<'_>,
        profile: &mut Profile,
    ) -> Result<(), Error> {
        // The cast shortens the observer's borrow to that of the cache.
        let observer = observer.map(|observer| observer as &mut dyn Observer<CpuBackend>);
        let mut batch = [Sequence {
            tokens,
            position: self.position,
            cache: &mut self.cache,
            observer,
        }];
        self.engine.forward(&mut batch, logits, profile)?;
        self.position += tokens.len();
        self.recent
            .extend_from_slice(&tokens[tokens.len().saturating_sub(REPETITION_WINDOW)..]);
        self.recent.drain(..self.recent.len().saturating_sub(REPETITION_WINDOW));
        Ok(())
    }

    fn note_peak(&mut self) {
        self.figures.kv_bytes_peak = self.figures.kv_bytes_peak.max(self.cache.bytes());
        self.figures.peak_entries = self.figures.peak_entries.max(self.cache.max_rows());
    }
}

/// The logits of the last row where it is the last of its tokens.
fn last_row(wanted: bool, logits: &mut Vec<f32>) -> Logits<'_> {
    if wanted { Logits::Last(logits) } else { Logits::Nothing }
}

/// ρ of a budget for a prompt: the share of its tokens that is not kept.
fn compression_ratio(budget: Budget, prompt_tokens: usize) -> Option<f64> {
    match budget {
        Budget::Full => None,
        Budget::Ratio(ratio) | Budget::SeenRatio(ratio) => Some(ratio.as_f64()),
        Budget::Tokens(tokens) => Some((1.0 - tokens as f64 / prompt_tokens.max(1) as f64).max(0.0)),
    }
}

/// Shows each layer's attention to the policy.
struct Scorer<'a> {
    state: &'a mut PolicyState,
    needs: &'a StepNeeds,
    /// Queries that the mass of this pass sums over.
    queries: usize,
    features: Features,
}

/// Norms and similarities of a layer's entries, one vector per KV head, reused between layers.
#[derive(Default)]
struct Features {
    value_norms: Vec<Vec<f32>>,
    key_norms: Vec<Vec<f32>>,
    key_similarities: Vec<Vec<f32>>,
}

impl Observer<CpuBackend> for Scorer<'_> {
    fn wants(&self, layer: usize) -> Option<Capture> {
        self.needs.needs(layer).then(|| Capture {
            mass: self.needs.features.mass.then_some((
                match self.needs.group_pooling {
                    policy::GroupPooling::Sum => GroupPooling::Sum,
                    policy::GroupPooling::Max => GroupPooling::Max,
                },
                self.queries,
            )),
        })
    }

    fn observe(&mut self, layer: usize, cache: &KvCache, mass: &Mass) -> Result<(), Error> {
        let wanted = self.needs.features;
        let heads = cache.pool().config().kv_heads;
        let fill = |buffers: &mut Vec<Vec<f32>>, wanted: bool, read: &dyn Fn(usize, &mut Vec<f32>)| {
            buffers.resize_with(heads, Vec::new);
            if wanted {
                buffers
                    .iter_mut()
                    .enumerate()
                    .for_each(|(head, buffer)| read(head, buffer));
            }
        };
        let features = &mut self.features;
        fill(&mut features.value_norms, wanted.value_norm, &|head, out| {
            cache.value_norms(layer, head, out);
        });
        fill(&mut features.key_norms, wanted.key_norm, &|head, out| {
            cache.key_norms(layer, head, out);
        });
        fill(&mut features.key_similarities, wanted.key_similarity, &|head, out| {
            cache.key_similarity(layer, head, out);
        });
        let observations: Vec<HeadObservation<'_>> = (0..heads)
            .map(|head| HeadObservation {
                mass: if wanted.mass { mass.heads[head].as_slice() } else { &[] },
                value_norm: &features.value_norms[head],
                key_norm: &features.key_norms[head],
                key_similarity: &features.key_similarities[head],
            })
            .collect();
        self.state.observe(layer, self.queries, &observations)?;
        Ok(())
    }
}
