//! Which prompts need not be prefilled again?
//!
//! The caches of prompts, complete and never evicted from, are kept as long as there is memory that nobody else needs.
//! A prompt that begins like one of them shares its cache up to the last border between prefill chunks that both have in
//! common, and goes on from there exactly as a prefill from the start would: the answer has the same tokens.

use inertiakv::policy::Method;
use inertiakv::{Engine, Error, Session};

/// Caches of earlier prompts, the latest used last.
pub(crate) struct Prefixes {
    kept: Vec<Prefix>,
    /// Tokens of a prefill chunk.
    chunk: usize,
    /// Most bytes of all caches together.
    limit: usize,
    /// Bytes of all caches together.
    held: usize,
}

struct Prefix {
    tokens: Vec<u32>,
    session: Session,
}

impl Prefixes {
    pub(crate) fn new(chunk: usize, limit: usize) -> Self {
        Self {
            kept: Vec::new(),
            chunk,
            limit,
            held: 0,
        }
    }

    /// A session that has run as much of the prompt as is known, possibly nothing.
    pub(crate) fn begin(&mut self, engine: &Engine, prompt: &[u32]) -> Result<Session, Error> {
        let full = Method::full();
        let best = (0..self.kept.len())
            .max_by_key(|&index| self.usable(&self.kept[index].tokens, prompt))
            .filter(|&index| self.usable(&self.kept[index].tokens, prompt) > 0);
        let Some(index) = best else {
            return engine.session(&full);
        };
        let usable = self.usable(&self.kept[index].tokens, prompt);
        let prefix = self.kept.remove(index);
        let session = if usable == prefix.tokens.len() {
            prefix.session.fork(&full)
        } else {
            prefix.session.fork_prefix(&full, &prompt[..usable])
        };
        self.kept.push(prefix);
        session
    }

    /// Keeps the cache of a prompt that has just been prefilled.
    pub(crate) fn keep(&mut self, prompt: &[u32], session: &Session) -> Result<(), Error> {
        if prompt.len() < self.chunk || session.kv_bytes() > self.limit {
            return Ok(());
        }
        // What the new one can stand in for.
        let chunk = self.chunk;
        self.kept
            .retain(|prefix| !prompt.starts_with(&prefix.tokens[..prefix.tokens.len() / chunk * chunk]));
        self.kept.push(Prefix {
            tokens: prompt.to_vec(),
            session: session.fork(&Method::full())?,
        });
        self.count();
        while self.held > self.limit {
            self.drop_oldest();
        }
        Ok(())
    }

    /// Bytes of the caches; blocks that several have count once.
    pub(crate) fn bytes(&self) -> usize {
        self.held
    }

    /// Gives up the cache that was of no use for longest; says whether there was one.
    pub(crate) fn drop_oldest(&mut self) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        self.kept.remove(0);
        self.count();
        true
    }

    fn count(&mut self) {
        self.held = Session::kv_bytes_together(self.kept.iter().map(|prefix| &prefix.session));
    }

    /// Tokens of a prompt that a kept one saves: all, or whole chunks of both, and never the last one, whose logits are
    /// needed.
    fn usable(&self, kept: &[u32], prompt: &[u32]) -> usize {
        if kept == prompt {
            return prompt.len();
        }
        let common = kept.iter().zip(prompt).take_while(|(kept, new)| kept == new).count();
        common.min(prompt.len().saturating_sub(1)) / self.chunk * self.chunk
    }
}
