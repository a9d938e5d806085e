//! How is a prompt compressed?
//!
//! A prefill method is a policy that looks at the prompt once, when it is complete, and evicts down to its budget. With
//! an interval it looks whenever so many entries are more than the budget, so that memory is bounded however long the
//! prompt; what later parts of the prompt would have found useful may then be gone, which makes it an approximation.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use inertiakv_policy::{Method, PolicyState, Scorer};

use super::features::{EntryFeatures, group_pooling};
use super::prompt::{PromptMemory, PromptNeeds, PromptWatch};
use super::{CHUNK, Session};
use crate::Error;
use crate::decoder::Profile;
use crate::engine::Logits;

impl Session {
    /// Has the prefill remember what forks under `methods` will need of the prompt: one prefill then serves methods that
    /// compress the prompt too. To be called before the prefill. Methods that need a prefill of their own
    /// ([`Method::needs_own_prefill`]) are checked and otherwise left out; see [`Session::fork_or_prefill`].
    ///
    /// # Errors
    /// A method that the model cannot run, and any once the prefill has begun.
    pub fn remember_for<'a>(&mut self, methods: impl IntoIterator<Item = &'a Method>) -> Result<(), Error> {
        if self.position > 0 {
            return Err(Error::PrefillBegun);
        }
        let mut needs = self.memory.needs();
        for method in methods {
            self.engine.check_method(method)?;
            if !method.needs_own_prefill() {
                needs = needs.and(PromptNeeds::of(method));
            }
        }
        self.memory = Arc::new(PromptMemory::new(needs, &self.engine));
        Ok(())
    }

    /// A session under `method` that has read `prompt`, as this one has: a fork where one prefill can serve both, and
    /// otherwise a session with a prefill of its own, whose `progress` is that of [`Session::prefill`].
    pub fn fork_or_prefill(
        &self,
        method: &Method,
        prompt: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        if !method.needs_own_prefill() {
            return self.fork(method);
        }
        let mut own = self.engine.session(method)?;
        own.prefill(prompt, progress)?;
        Ok(own)
    }

    /// Runs the prompt in chunks, and compresses it where the method does.
    pub(super) fn run_prompt(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let rule = self.method.prefill.clone();
        let mut state = match &rule {
            Some(rule) => Some(PolicyState::of_prompt(
                &rule.policy,
                &self.engine.policy_shape(),
                tokens.len(),
            )?),
            None => None,
        };
        let interval = rule.map_or(usize::MAX, |rule| rule.policy.interval);
        let mut logits = std::mem::take(&mut self.logits);
        let mut profile = Profile::default();
        let (mut done, mut uncompressed) = (0, 0);
        for chunk in tokens.chunks(CHUNK.min(interval)) {
            if let Some(state) = &mut state {
                let most = state.budget().unwrap_or(usize::MAX).saturating_add(interval);
                if uncompressed > 0 && self.fullest() + chunk.len() > most {
                    self.compress(state, std::mem::take(&mut uncompressed))?;
                    Arc::make_mut(&mut self.memory).forget_last_queries();
                }
            }
            done += chunk.len();
            uncompressed += chunk.len();
            let wanted = if done == tokens.len() {
                Logits::Last(&mut [&mut logits])
            } else {
                Logits::Nothing
            };
            self.run_remembered(chunk, wanted, &mut profile)?;
            if progress(done, tokens.len()).is_break() {
                return Err(Error::Cancelled);
            }
        }
        self.logits = logits;
        self.figures.kv_bytes_prefill = self.figures.kv_bytes_prefill.max(self.cache.bytes());
        if let Some(mut state) = state {
            self.compress(&mut state, uncompressed)?;
            self.begin_decoding(state)?;
        }
        self.note_peak();
        Ok(())
    }

    /// Compresses a prompt that was run under another method.
    pub(super) fn compress_prefilled(&mut self) -> Result<(), Error> {
        let Some(rule) = &self.method.prefill else {
            return Ok(());
        };
        self.engine.check_prompt(&self.method, &self.memory.tokens)?;
        let shape = self.engine.policy_shape();
        let mut state = PolicyState::of_prompt(&rule.policy, &shape, self.position)?;
        self.compress(&mut state, self.position)?;
        self.begin_decoding(state)
    }

    pub(super) fn begin_decoding(&mut self, prompt: PolicyState) -> Result<(), Error> {
        // Masked entries are still rows of the cache, and so of what decoding goes on with.
        let masked = self.method.prefill.as_ref().is_some_and(|rule| rule.policy.masked);
        let decode = &self.method.decode.policy;
        self.policy = Some(if masked {
            PolicyState::new(decode, &self.engine.policy_shape(), self.position)?
        } else {
            prompt.decode(decode)?
        });
        // Nobody else will compress this cache.
        self.memory = Arc::new(PromptMemory::new(PromptNeeds::default(), &self.engine));
        Ok(())
    }

    fn run_remembered(&mut self, tokens: &[u32], logits: Logits<'_>, profile: &mut Profile) -> Result<(), Error> {
        if self.memory.needs() == PromptNeeds::default() {
            return self.run(tokens, logits, profile, None);
        }
        let engine = self.engine.clone();
        let mut memory = std::mem::replace(
            &mut self.memory,
            Arc::new(PromptMemory::new(PromptNeeds::default(), &engine)),
        );
        // Forks made between two parts of a prompt keep what they share.
        let remembered = Arc::make_mut(&mut memory);
        let mut watch = PromptWatch {
            engine: &engine,
            memory: remembered,
        };
        let result = self.run(tokens, logits, profile, Some(&mut watch));
        remembered.advance(tokens);
        self.memory = memory;
        result
    }

    /// Scores the entries, of which `rows` are new since the last time, and evicts down to the budget.
    fn compress(&mut self, state: &mut PolicyState, rows: usize) -> Result<(), Error> {
        let start = Instant::now();
        self.note_peak();
        let reconstruction = match state.policy().scorer {
            // Another prefill, which nobody wants where nothing has to leave.
            Scorer::Reconstruction(chunk) if state.budget().is_some_and(|budget| budget < self.position) => {
                self.reconstruct(chunk as usize)?
            }
            _ => Vec::new(),
        };
        self.observe_prompt(state, rows, reconstruction)?;
        self.finish_compression(state)?;
        self.figures.compression += start.elapsed();
        Ok(())
    }

    /// Shows the policy all layers; `reconstruction` is the scores of each, where the policy ranks by them.
    pub(super) fn observe_prompt(
        &mut self,
        state: &mut PolicyState,
        rows: usize,
        reconstruction: Vec<Vec<Vec<f32>>>,
    ) -> Result<(), Error> {
        let needs = state.begin_step(rows);
        let policy = state.policy().clone();
        let mut reconstruction = reconstruction.into_iter();
        let memory = Arc::clone(&self.memory);
        let width = self.engine.config().heads * self.engine.config().head_dim;
        let mut features = EntryFeatures::default();
        for layer in 0..self.engine.config().layers {
            let relevance = reconstruction.next();
            if !needs.needs(layer) {
                continue;
            }
            features.read(&self.cache, layer, needs.features);
            match policy.scorer {
                Scorer::ExpectedAttention(future) => {
                    let positions = self.position..self.position + future as usize;
                    let (statistics, skipped) = (memory.statistics(layer), policy.protect.sinks);
                    let out = &mut features.relevance;
                    self.engine
                        .expected_attention(&self.cache, layer, statistics, positions, skipped, out);
                }
                Scorer::Learned => {
                    let learned = self.engine.learned(&policy.scorer)?;
                    learned.relevance(
                        &self.cache,
                        layer,
                        memory.last_queries(layer, 1),
                        &mut features.relevance,
                    );
                }
                _ => {
                    if let Some(relevance) = relevance {
                        features.relevance = relevance;
                    }
                }
            }
            let mut queries = 1;
            let mass = needs.features.mass.then(|| {
                let rows = memory.last_queries(layer, needs.window);
                queries = rows.len() / width;
                let pooling = group_pooling(needs.group_pooling);
                self.engine.attention_mass(&self.cache, layer, rows, pooling)
            });
            state.observe(layer, queries, &features.observations(mass.as_ref()))?;
        }
        Ok(())
    }

    /// Evicts what the policy gives up.
    pub(super) fn finish_compression(&mut self, state: &mut PolicyState) -> Result<(), Error> {
        let before = self.cache.bytes();
        let plan = state.finish_step()?;
        if state.policy().masked {
            self.mask(state)?;
        } else {
            self.evict(&plan)?;
        }
        self.figures.kv_bytes_freed += before.saturating_sub(self.cache.bytes());
        Ok(())
    }

    /// Hides what the policy no longer holds, and keeps it in memory.
    fn mask(&mut self, state: &PolicyState) -> Result<(), Error> {
        let config = self.engine.config();
        let mut masked = 0;
        let layers: Vec<usize> = (0..config.layers)
            .filter(|&layer| config.window(layer).is_none())
            .collect();
        for &layer in &layers {
            for head in 0..config.kv_heads {
                // The prompt has just been prefilled: its rows are its positions.
                let mut held = state.retained(layer, head).into_iter().peekable();
                let hidden: Vec<u32> = (0..self.position as u32)
                    .filter(|position| held.next_if_eq(position).is_none())
                    .collect();
                masked += hidden.len();
                self.cache.mask(layer, head, &hidden)?;
            }
        }
        self.figures.masked = masked / (layers.len() * config.kv_heads);
        Ok(())
    }
}
