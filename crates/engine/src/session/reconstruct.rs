//! Which entries does the model look at while it repeats the prompt?
//!
//! The scores of `KVzip` (arXiv 2505.23416): the prompt is cut into chunks; for each the model reads a request to repeat
//! it and then the chunk itself, over the whole cache. An entry's score is the greatest attention that any query of any
//! head gives it, in a softmax over the first entries, the chunk and what was read again. This costs more than
//! another prefill.

use std::ops::Range;

use inertiakv_kernels::attention::{Reconstruction, Subset};

use inertiakv_policy::{Method, Scorer};

use super::{CHUNK, Session};
use crate::Error;
use crate::backend::CpuBackend;
use crate::decoder::{Capture, Observer, Profile, Seen, Sequence};
use crate::engine::{Engine, Logits};

/// First entries that every softmax includes, as published.
const SINKS: usize = 4;
/// Tokens of the chunk before that tell the model where to begin, as published.
const LEAD: usize = 8;
const REPEAT_ALL: &str = "\n\nRepeat the previous context exactly.";
const REPEAT_PART: &str = "\n\nRepeat the part of the previous context exactly, starting with";

/// How the model is asked to repeat the prompt, in tokens.
pub(super) struct Requests {
    /// What comes before the context, and is not repeated.
    pub(super) before: Vec<u32>,
    /// The request for the first chunk.
    pub(super) all: Vec<u32>,
    /// The request for a later one, up to its first tokens.
    pub(super) part: Vec<u32>,
    /// What ends a request and begins the answer.
    pub(super) end: Vec<u32>,
}

impl Requests {
    fn of(engine: &Engine) -> Result<Self, Error> {
        let tokenizer = engine.tokenizer();
        let around = match engine.chat_template() {
            Some(template) => template.around(false, &[])?,
            None => vec![String::new(), "\n".to_owned()],
        };
        Ok(Self {
            before: tokenizer.with_bos(tokenizer.encode(&around[0], true)),
            all: tokenizer.encode(REPEAT_ALL, false),
            part: tokenizer.encode(REPEAT_PART, false),
            end: tokenizer.encode(&around[1], true),
        })
    }

    /// Each chunk of the prompt, and what is read to repeat it.
    fn readings<'a>(&'a self, tokens: &'a [u32], chunk: usize) -> impl Iterator<Item = (Range<usize>, Vec<u32>)> + 'a {
        let start = if tokens.starts_with(&self.before) {
            self.before.len()
        } else {
            0
        };
        (start..tokens.len()).step_by(chunk).map(move |first| {
            let range = first..(first + chunk).min(tokens.len());
            let mut reading = if first == start {
                self.all.clone()
            } else {
                let lead = &tokens[first.saturating_sub(LEAD).max(start)..first];
                [&self.part, lead].concat()
            };
            reading.extend_from_slice(&self.end);
            reading.extend_from_slice(&tokens[range.clone()]);
            (range, reading)
        })
    }
}

impl Engine {
    /// How many rows per head does the model read at most, behind the prompt, to repeat it? 0 for methods that do not
    /// have it repeated. To be asked before a prefill that would be in vain.
    ///
    /// # Errors
    /// [`Error::NoRoomToRepeat`] if they do not fit behind the prompt.
    pub fn check_prompt(&self, method: &Method, tokens: &[u32]) -> Result<usize, Error> {
        let Some(rule) = &method.prefill else {
            return Ok(0);
        };
        let Scorer::Reconstruction(chunk) = rule.policy.scorer else {
            return Ok(0);
        };
        let budget = rule.policy.budget.entries(tokens.len(), tokens.len());
        if budget.is_none_or(|budget| budget >= tokens.len()) {
            return Ok(0);
        }
        let requests = Requests::of(self)?;
        let readings = requests.readings(tokens, chunk as usize);
        let reading = readings.map(|(_, reading)| reading.len()).max().unwrap_or(0);
        let limit = self.config().context_length;
        if tokens.len() + reading > limit {
            return Err(Error::NoRoomToRepeat {
                prompt: tokens.len(),
                reading,
                limit,
            });
        }
        Ok(reading)
    }
}

impl Session {
    /// Scores of all entries, per layer and KV head. The cache is as it was afterwards.
    pub(super) fn reconstruct(&mut self, chunk: usize) -> Result<Vec<Vec<Vec<f32>>>, Error> {
        let requests = Requests::of(&self.engine)?;
        self.reconstruct_with(&requests, chunk)
    }

    pub(super) fn reconstruct_with(&mut self, requests: &Requests, chunk: usize) -> Result<Vec<Vec<Vec<f32>>>, Error> {
        let memory = std::sync::Arc::clone(&self.memory);
        let context = memory.tokens.len();
        let readings: Vec<(Range<usize>, Vec<u32>)> = requests.readings(&memory.tokens, chunk).collect();
        let config = self.engine.config();
        let mut scores = vec![vec![vec![0.0; context]; config.kv_heads]; config.layers];
        let engine = self.engine.clone();
        for (range, reading) in readings {
            let mut cache = self.cache.fork();
            let mut watch = Reading {
                engine: &engine,
                subset: Subset {
                    sinks: SINKS.min(range.start),
                    start: range.start,
                    end: range.end,
                    context,
                },
                scores: vec![vec![vec![0.0; range.len()]; config.kv_heads]; config.layers],
                width: config.heads * config.head_dim,
            };
            let mut done = 0;
            for tokens in reading.chunks(CHUNK) {
                let mut batch = [Sequence {
                    tokens,
                    position: context + done,
                    cache: &mut cache,
                    observer: Some(&mut watch),
                }];
                engine.forward(&mut batch, Logits::Nothing, &mut Profile::default())?;
                done += tokens.len();
            }
            self.figures.kv_bytes_peak = self.figures.kv_bytes_peak.max(cache.bytes());
            self.figures.peak_entries = self.figures.peak_entries.max(cache.max_rows());
            let heads = scores.iter_mut().flatten().zip(watch.scores.into_iter().flatten());
            heads.for_each(|(all, part)| all[range.clone()].copy_from_slice(&part));
        }
        Ok(scores)
    }
}

/// Scores one chunk while it is read again.
struct Reading<'a> {
    engine: &'a Engine,
    subset: Subset,
    /// Per layer and KV head.
    scores: Vec<Vec<Vec<f32>>>,
    /// Numbers of a query row.
    width: usize,
}

impl Observer<CpuBackend> for Reading<'_> {
    fn wants(&self, _layer: usize) -> Option<Capture> {
        Some(Capture::default())
    }

    fn observe(&mut self, layer: usize, seen: &Seen<'_, CpuBackend>) -> Result<(), Error> {
        let scores = &mut self.scores[layer];
        self.engine.reconstruct(&mut Reconstruction {
            cache: seen.cache,
            layer,
            queries: &seen.queries[seen.range.clone()],
            rows: seen.range.len() / self.width,
            subset: self.subset,
            out: scores,
        });
        Ok(())
    }
}
