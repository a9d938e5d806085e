//! What is one conversation: its cache, its position, and the policy that bounds it?
//!
//! A session is prefilled once, then takes decode steps. A step runs its tokens, shows the policy what the layers paid
//! attention to, and evicts what the policy gives up (DESIGN: append, attend, score, evict).

mod compress;
#[cfg(test)]
mod families;
pub(crate) mod features;
#[cfg(test)]
mod kvpress;
mod prompt;
mod reconstruct;
pub(crate) mod samples;
mod step;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inertiakv_kernels::cache::KvCache;
use inertiakv_policy::{Budget, Method, Policy, PolicyState};

use crate::Error;
use crate::backend::CpuBackend;
use crate::decoder::{Observer, Profile, Sequence};
use crate::engine::{Engine, Logits};
use crate::info::ModelShape;
use crate::report::{RunReport, StepReport};
use crate::sampling::REPETITION_WINDOW;

use prompt::{PromptMemory, PromptNeeds};

/// Most rows of one forward pass; longer inputs run in chunks of this size.
pub(crate) const CHUNK: usize = 512;

/// One sequence under one method.
pub struct Session {
    engine: Engine,
    method: Method,
    cache: KvCache,
    /// Made when the prompt is complete; from then on the cache follows it.
    policy: Option<PolicyState>,
    /// What compressing the prompt, here or in a fork, needs to know of it.
    memory: Arc<PromptMemory>,
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
    /// Tokens of the prompt that took `prefill` to run: those of a prefix that another session ran are not among them.
    prefilled: usize,
    kv_bytes_prefill: usize,
    kv_bytes_peak: usize,
    peak_entries: usize,
    prefill: Duration,
    /// Scoring and evicting entries of the prompt, which is part of `prefill` where the session did it itself.
    compression: Duration,
    kv_bytes_freed: usize,
    masked: usize,
    decode: Profile,
    /// Steps of one token and their time: the speed at which an answer comes.
    single_steps: usize,
    single_time: Duration,
}

impl Session {
    pub(crate) fn new(engine: Engine, method: Method) -> Self {
        let cache = KvCache::new(engine.kv_pool());
        let memory = PromptMemory::new(PromptNeeds::of(&method), &engine);
        Self {
            engine,
            method,
            memory: Arc::new(memory),
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

    /// Utilities, positions and counters of the policy; `None` before the first step, unless the prompt was compressed, and
    /// after an error within a step.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyState> {
        self.policy.as_ref()
    }

    /// Logits of the last token that ran, one per vocabulary entry.
    ///
    /// # Errors
    /// If nothing has run, or an error or a cancellation left the session incomplete.
    pub fn logits(&self) -> Result<&[f32], Error> {
        if self.broken {
            Err(Error::Broken)
        } else if self.logits.is_empty() {
            Err(Error::NoPrompt)
        } else {
            Ok(&self.logits)
        }
    }

    /// Runs the prompt with full causal attention, and compresses it when it is complete where the method does so. Where
    /// it does not, this may be called again to add to the prompt before the first step.
    ///
    /// `progress(done, total)` is called after every chunk; returning `Break` ends with [`Error::Cancelled`], and the
    /// session is of no further use.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        if self.is_compressed_prompt() {
            return Err(Error::PromptInPieces {
                method: self.method.to_string(),
            });
        }
        if self.policy.is_some() || self.deferred.is_some() {
            return Err(Error::PrefillAfterStep);
        }
        self.check(tokens)?;
        self.engine.check_prompt(&self.method, tokens)?;
        self.broken = true;
        let start = Instant::now();
        self.run_prompt(tokens, progress)?;
        self.broken = false;
        self.figures.prefill += start.elapsed();
        self.figures.prefilled += tokens.len();
        self.figures.prompt_tokens += tokens.len();
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
        self.check_step(&tokens)?;
        let mut reports = step::run(&mut [self], &[tokens], progress)?;
        Ok(reports.remove(0))
    }

    /// One decode step for each of several sessions of one engine in a single forward pass, which reads the weights
    /// once for all of them: `tokens[i]` is what [`Session::step`] would take for `sessions[i]`, and does the same to it.
    ///
    /// # Errors
    /// A refused step changes no session. Where the step itself fails, none of the sessions is of further use.
    pub fn step_together(sessions: &mut [&mut Self], tokens: &[&[u32]]) -> Result<Vec<StepReport>, Error> {
        if sessions.len() != tokens.len() {
            return Err(Error::BatchLength {
                sessions: sessions.len(),
                steps: tokens.len(),
            });
        }
        let mut runs = Vec::with_capacity(tokens.len());
        for (session, tokens) in sessions.iter().zip(tokens) {
            if !session.engine.is(&sessions[0].engine) {
                return Err(Error::BatchEngine);
            }
            let run: Vec<u32> = session.deferred.iter().chain(*tokens).copied().collect();
            session.check_step(&run)?;
            runs.push(run);
        }
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        step::run(sessions, &runs, &mut |_, _| ControlFlow::Continue(()))
    }

    /// The next turn of a conversation: the budget grows by (1-ρ) times the turn's tokens, then they are one step.
    /// `progress` is that of [`Session::step_watched`].
    pub fn follow_up(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<StepReport, Error> {
        let run: Vec<u32> = self.deferred.iter().chain(tokens).copied().collect();
        self.check_step(&run)?;
        let mut state = self.take_policy()?;
        state.add_prompt_tokens(tokens.len());
        self.policy = Some(state);
        self.step_watched(tokens, progress)
    }

    /// A copy that shares the cache until one of the two writes: evaluate many methods from one prefill.
    ///
    /// # Errors
    /// Another method than the session's own is possible only before the first step, and one that compresses the prompt
    /// only if the prefill was told to remember what it takes ([`Session::remember_for`]).
    pub fn fork(&self, method: &Method) -> Result<Self, Error> {
        self.second(method, self.cache.fork())
    }

    /// A session under `method` that has run only `prefix`, with which the prompt of this one begins: the cache of the
    /// prefix is shared, what comes after it is not seen. Go on with [`Session::prefill`]; there are no logits before.
    ///
    /// Which numbers a prefill gives depends, in the last bits, on where its chunks begin. A prefix that ends where a
    /// chunk of this session's prefill ended continues exactly as a prefill from the start would. A session does not keep
    /// its tokens: whether its prompt begins so is the caller's to know.
    ///
    /// # Errors
    /// If a step has run, since entries of the prefix may be gone, the session has run less than the prefix, or the method
    /// compresses the prompt, of which it must see everything.
    pub fn fork_prefix(&self, method: &Method, prefix: &[u32]) -> Result<Self, Error> {
        if self.broken {
            return Err(Error::Broken);
        }
        if self.policy.is_some() || self.deferred.is_some() || prefix.is_empty() || prefix.len() > self.position {
            return Err(Error::NoPrefix {
                prefix: prefix.len(),
                position: self.position,
            });
        }
        if method.prefill.is_some() {
            return Err(Error::NotRemembered {
                method: method.to_string(),
            });
        }
        self.engine.check_method(method)?;
        let mut session = Self::new(self.engine.clone(), method.clone());
        session.check(prefix)?;
        session.cache = self.cache.fork_front(prefix.len());
        session.advance(prefix);
        session.figures.prompt_tokens = prefix.len();
        session.figures.kv_bytes_prefill = session.cache.bytes();
        session.note_peak();
        Ok(session)
    }

    /// [`Session::fork`] with a cache of its own from the start, so that its steps cost what they would without the fork.
    pub(crate) fn copy(&self, method: &Method) -> Result<Self, Error> {
        self.second(method, self.cache.copy()?)
    }

    fn second(&self, method: &Method, cache: KvCache) -> Result<Self, Error> {
        if self.broken {
            return Err(Error::Broken);
        }
        if self.policy.is_some() && *method != self.method {
            return Err(if self.is_compressed_prompt() {
                Error::ForkCompressed
            } else {
                Error::ForkAfterStep
            });
        }
        self.engine.check_method(method)?;
        let is_prefilled = self.policy.is_none() && self.position > 0;
        let needs = PromptNeeds::of(method);
        if is_prefilled && method.prefill.is_some() {
            if method.needs_own_prefill() {
                return Err(Error::OwnPrefill {
                    method: method.to_string(),
                });
            }
            if !self.memory.needs().cover(needs) {
                return Err(Error::NotRemembered {
                    method: method.to_string(),
                });
            }
        }
        let memory = if self.position == 0 {
            Arc::new(PromptMemory::new(self.memory.needs().and(needs), &self.engine))
        } else {
            Arc::clone(&self.memory)
        };
        let mut second = Self {
            engine: self.engine.clone(),
            method: method.clone(),
            cache,
            memory,
            policy: self.policy.clone(),
            position: self.position,
            deferred: self.deferred,
            recent: self.recent.clone(),
            logits: self.logits.clone(),
            figures: self.figures.clone(),
            broken: false,
        };
        if is_prefilled {
            second.compress_prefilled()?;
        }
        Ok(second)
    }

    /// What the run was and what it cost, in the vocabulary of the reports. After an error within a step only what the cache
    /// holds is true.
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
        let last = self.method.last_policy();
        // What bounds a prompt alone does not grow with what comes after it.
        let bounded = if self.method.decode.policy.evicts() {
            (prompt_tokens, self.position)
        } else {
            (figures.prompt_tokens, figures.prompt_tokens)
        };
        let [retained_min, retained_max] = self.retained_range();
        RunReport {
            model: self.engine.name().to_owned(),
            method: self.method.to_string(),
            prompt_tokens,
            compression_ratio: compression_ratio(last.budget, bounded.0),
            budget: last.budget.entries(bounded.0, bounded.1),
            refresh: refresh(&self.method.decode.policy),
            alpha: policy
                .and_then(PolicyState::adaptive)
                .map(|report| report.alpha.as_f64()),
            steps: policy.map_or(0, PolicyState::step),
            evictions: policy.map_or(0, PolicyState::evictions),
            retained: self.retained_entries(),
            retained_min,
            retained_max,
            windowed_layers: Some(ModelShape::from(self.engine.config()).windowed_layers).filter(|&layers| layers > 0),
            masked: figures.masked,
            peak_entries: figures.peak_entries,
            kv_bytes: self.cache.bytes(),
            kv_bytes_peak: figures.kv_bytes_peak,
            kv_bytes_prefill: figures.kv_bytes_prefill,
            kv_bytes_freed: figures.kv_bytes_freed,
            prefill_seconds: figures.prefill.as_secs_f64(),
            compression_seconds: figures.compression.as_secs_f64(),
            decode_seconds,
            prefill_tokens_per_second: rate(figures.prefilled, figures.prefill),
            decode_tokens_per_second: rate(figures.single_steps, figures.single_time),
            scoring_share: if decode_seconds > 0.0 {
                figures.decode.scoring.as_secs_f64() / decode_seconds
            } else {
                0.0
            },
        }
    }

    /// Whether the prompt has been compressed and no step taken since.
    fn is_compressed_prompt(&self) -> bool {
        let began = self.policy.as_ref().map(PolicyState::step);
        self.method.prefill.is_some() && began == Some(0)
    }

    /// Time of all decode steps so far, by kind of work.
    #[must_use]
    pub fn decode_profile(&self) -> Profile {
        self.figures.decode
    }

    /// Bytes of the cache, from the allocator; what it shares with a fork counts in both.
    #[must_use]
    pub fn kv_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Bytes of the caches of several sessions of one engine; what they share counts once.
    #[must_use]
    pub fn kv_bytes_together<'a>(sessions: impl IntoIterator<Item = &'a Self>) -> usize {
        KvCache::bytes_together(sessions.into_iter().map(|session| &session.cache))
    }

    /// Entries per layer and head; the mean, rounded up, where heads differ. Layers with a window do not count, unless
    /// all have one.
    #[must_use]
    pub fn retained_entries(&self) -> usize {
        let (count, rows) = self
            .counted_rows()
            .fold((0, 0), |(count, sum), rows| (count + 1, sum + rows));
        rows.div_ceil(count)
    }

    /// Entries of the fullest head that counts.
    pub(super) fn fullest(&self) -> usize {
        self.counted_rows().max().unwrap_or(0)
    }

    /// Entries of the heads that may lose some; of all, if none may.
    fn counted_rows(&self) -> impl Iterator<Item = usize> {
        let config = self.engine.config();
        let has_evictable = (0..config.layers).any(|layer| config.window(layer).is_none());
        let layers = (0..config.layers).filter(move |&layer| !has_evictable || config.window(layer).is_none());
        layers.flat_map(move |layer| (0..config.kv_heads).map(move |head| self.cache.rows(layer, head)))
    }

    /// Entries of the emptiest and of the fullest head.
    fn retained_range(&self) -> [usize; 2] {
        self.counted_rows()
            .fold([usize::MAX, 0], |[least, most], rows| [least.min(rows), most.max(rows)])
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
            self.run(chunk, Logits::Rows(wanted, &mut take), &mut profile, None)?;
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

    fn check_step(&self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        if self.position == 0 {
            return Err(Error::NoPrompt);
        }
        Ok(())
    }

    /// The policy of this session, made for what has been prefilled when it is first needed.
    fn take_policy(&mut self) -> Result<PolicyState, Error> {
        match self.policy.take() {
            Some(state) => Ok(state),
            None => Ok(PolicyState::new(
                &self.method.decode.policy,
                &self.engine.policy_shape(),
                self.position,
            )?),
        }
    }

    /// One forward pass over the next tokens of the session.
    fn run(
        &mut self,
        tokens: &[u32],
        logits: Logits<'_>,
        profile: &mut Profile,
        observer: Option<&mut dyn Observer<CpuBackend>>,
    ) -> Result<(), Error> {
        let mut batch = [Sequence {
            tokens,
            position: self.position,
            cache: &mut self.cache,
            // A shorter borrow, which the batch needs.
            observer: observer.map(|observer| observer as &mut dyn Observer<CpuBackend>),
        }];
        self.engine.forward(&mut batch, logits, profile)?;
        self.advance(tokens);
        Ok(())
    }

    /// Notes that `tokens` have run.
    fn advance(&mut self, tokens: &[u32]) {
        self.position += tokens.len();
        self.recent
            .extend_from_slice(&tokens[tokens.len().saturating_sub(REPETITION_WINDOW)..]);
        self.recent.drain(..self.recent.len().saturating_sub(REPETITION_WINDOW));
    }

    fn note_peak(&mut self) {
        self.figures.kv_bytes_peak = self.figures.kv_bytes_peak.max(self.cache.bytes());
        self.figures.peak_entries = self.figures.peak_entries.max(self.fullest());
    }
}

/// When scores are computed while decoding, where they ever are.
fn refresh(policy: &Policy) -> Option<String> {
    policy.evicts().then(|| policy.refresh.to_string())
}

/// ρ of a budget for a prompt: the share of its tokens that is not kept.
fn compression_ratio(budget: Budget, prompt_tokens: usize) -> Option<f64> {
    match budget {
        Budget::Full => None,
        Budget::Ratio(ratio) | Budget::SeenRatio(ratio) => Some(ratio.as_f64()),
        Budget::Tokens(tokens) => Some((1.0 - tokens as f64 / prompt_tokens.max(1) as f64).max(0.0)),
    }
}
