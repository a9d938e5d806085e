//! How well does the model predict a text, with or without eviction?
//!
//! llama.cpp's protocol: windows of N tokens, the second half of each scored. Under a method the first half is
//! prefilled and the second half decoded token by token, so the scored predictions see what the method retained.

use std::ops::ControlFlow;

use inertiakv_policy::Method;
use serde::Serialize;

use crate::Error;
use crate::engine::Engine;

/// What to measure.
#[derive(Clone, Debug)]
pub struct PerplexityOptions {
    /// N: tokens of a window.
    pub context: usize,
    /// Most windows to use; `None` for all that the text fills.
    pub chunks: Option<usize>,
    /// `None`: the whole window in one prefill.
    pub method: Option<Method>,
}

/// State after a window.
#[derive(Clone, Copy, Debug)]
pub struct PerplexityProgress {
    /// Windows done.
    pub chunk: usize,
    /// Windows in all.
    pub chunks: usize,
    /// Perplexity so far.
    pub perplexity: f64,
}

/// The result.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Perplexity {
    /// exp(nll).
    pub perplexity: f64,
    /// Mean negative log-likelihood of the scored tokens, in nats.
    pub nll: f64,
    /// Tokens scored.
    pub tokens: usize,
    /// Windows used.
    pub chunks: usize,
}

impl Engine {
    /// Perplexity over `tokens`; the first token of every window becomes BOS if the model wants one.
    ///
    /// `progress` is called after every window; returning `Break` ends with [`Error::Cancelled`].
    pub fn perplexity(
        &self,
        tokens: &[u32],
        options: &PerplexityOptions,
        progress: &mut dyn FnMut(&PerplexityProgress) -> ControlFlow<()>,
    ) -> Result<Perplexity, Error> {
        let window = options.context;
        if window < 4 || window > self.context() {
            return Err(Error::Window {
                window,
                context: self.context(),
            });
        }
        if tokens.len() < window {
            return Err(Error::TextTooShort {
                tokens: tokens.len(),
                window,
            });
        }
        if options.chunks == Some(0) {
            return Err(Error::NoWindows);
        }
        let vocabulary = self.config().vocabulary;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::UnknownToken { token, vocabulary });
        }
        let chunks = (tokens.len() / window).min(options.chunks.unwrap_or(usize::MAX));
        let (mut sum, mut scored) = (0.0, 0);
        for (index, chunk) in tokens.chunks_exact(window).take(chunks).enumerate() {
            self.score_window(&self.window(chunk), options.method.as_ref(), &mut |nll| {
                sum += nll;
                scored += 1;
            })?;
            let now = PerplexityProgress {
                chunk: index + 1,
                chunks,
                perplexity: (sum / scored as f64).exp(),
            };
            if progress(&now).is_break() {
                return Err(Error::Cancelled);
            }
        }
        let nll = sum / scored.max(1) as f64;
        Ok(Perplexity {
            perplexity: nll.exp(),
            nll,
            tokens: scored,
            chunks,
        })
    }

    /// Scores the tokens of a window after its middle, each given all before it.
    fn score_window(&self, window: &[u32], method: Option<&Method>, score: &mut dyn FnMut(f64)) -> Result<(), Error> {
        let first = window.len() / 2;
        let last = window.len() - 1;
        let Some(method) = method else {
            let mut session = self.session(&Method::full())?;
            return session.prefill_with_logits(&window[..last], first, &mut |row, logits| {
                score(negative_log_likelihood(logits, window[row + 1]));
            });
        };
        let mut session = self.session(method)?;
        session.prefill(&window[..first], &mut |_, _| ControlFlow::Continue(()))?;
        for row in first..last {
            session.step(&window[row..=row])?;
            score(negative_log_likelihood(session.logits()?, window[row + 1]));
        }
        Ok(())
    }
}

/// `-log softmax(logits)[token]`, in nats.
///
/// # Panics
/// If `token` is not below the number of logits.
pub fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - most)
}
