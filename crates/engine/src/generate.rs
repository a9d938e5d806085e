//! How does text come out, token by token?

use std::ops::ControlFlow;

use serde::Serialize;

use crate::Error;
use crate::engine::Engine;
use crate::sampling::{Sampler, Sampling};
use crate::session::Session;
use crate::tokenizer::StreamDecoder;

/// What to generate and when to stop.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// How each token is drawn.
    pub sampling: Sampling,
    /// Generation ends before the first of these texts.
    pub stop: Vec<String>,
    /// Goes on past end-of-turn tokens; for measurements.
    pub ignore_end: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: Sampling::default(),
            stop: Vec::new(),
            ignore_end: false,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its turn, or a stop text came.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context of the session is full.
    Context,
    /// The caller asked to stop.
    Cancelled,
}

/// What was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// All text, without a stop text or an end-of-turn token.
    pub text: String,
    /// Tokens in order, the end-of-turn token excluded.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

impl Session {
    /// Generates from where the session stands and calls `on_text` once for every token with the text that is certain
    /// by then: whole UTF-8 characters only, possibly none. `Break` cancels.
    ///
    /// Text that may turn out to be the start of a stop text is held back until that is settled; what is still held back at
    /// the end comes in one call more, whose `Break` changes nothing. The last token has not
    /// run when this returns (unless the model ended its turn: then every token has); the next step, follow-up or
    /// generation runs it first. The tokens of a stop text are part of the session although not of the text.
    pub fn generate(
        &mut self,
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        let mut generator = Generator::new(self.engine(), options)?;
        let mut tokens = Vec::new();
        let mut text = String::new();
        let mut emit = |piece: &str| {
            text.push_str(piece);
            on_text(piece)
        };
        let finish_reason = loop {
            if tokens.len() >= options.max_tokens {
                break FinishReason::Length;
            }
            if !self.catch_up()? {
                break FinishReason::Context;
            }
            let Some(draw) = generator.draw(self)? else {
                break FinishReason::Stop;
            };
            tokens.push(draw.token);
            if emit(&draw.text).is_break() {
                break FinishReason::Cancelled;
            }
            if draw.stopped {
                break FinishReason::Stop;
            }
        };
        if finish_reason != FinishReason::Cancelled {
            let rest = generator.finish();
            if !rest.is_empty() {
                // Nothing follows, so a wish to cancel changes nothing.
                let _ = emit(&rest);
            }
        }
        Ok(Generation {
            text,
            tokens,
            finish_reason,
        })
    }
}

/// Draws a session's tokens one by one and turns them into text, for whoever steps the session: [`Session::generate`],
/// or a server that steps many together.
///
/// In turns: the session runs a step, [`Generator::draw`] draws from its logits and leaves the token for the next step
/// to run. The caller counts tokens and minds the context.
pub struct Generator {
    sampler: Sampler,
    decoder: StreamDecoder,
    filter: StopFilter,
    ignore_end: bool,
}

/// A token that was drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// Text that is certain by now: whole characters, nothing that may become a stop text; possibly none.
    pub text: String,
    /// A stop text has come; the text ends before it.
    pub stopped: bool,
}

impl Generator {
    /// A generator at the start of its seed's stream. `max_tokens` is the caller's business.
    ///
    /// # Errors
    /// If the sampling is out of range.
    pub fn new(engine: &Engine, options: &GenerateOptions) -> Result<Self, Error> {
        Ok(Self {
            sampler: Sampler::new(options.sampling.clone())?,
            decoder: engine.tokenizer().stream(),
            filter: StopFilter::new(&options.stop),
            ignore_end: options.ignore_end,
        })
    }

    /// Draws the next token from the logits of the session, whose last token must have run. `None` if the model ends its
    /// turn; otherwise the token is the first of the session's next step.
    pub fn draw(&mut self, session: &mut Session) -> Result<Option<Draw>, Error> {
        let token = self.sampler.sample(session.logits()?, session.recent());
        if !self.ignore_end && session.engine().tokenizer().is_eos(token) {
            return Ok(None);
        }
        session.defer(token);
        let (text, stopped) = self.filter.push(&self.decoder.push(token));
        Ok(Some(Draw { token, text, stopped }))
    }

    /// Text that was held back and is text after all, once nothing more will be drawn.
    #[must_use]
    pub fn finish(mut self) -> String {
        let (piece, stopped) = self.filter.push(&self.decoder.finish());
        if stopped { piece } else { piece + &self.filter.finish() }
    }
}

/// Cuts a stream of text before the first stop text.
struct StopFilter {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopFilter {
    fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes new text; returns what is certain to stay, and whether a stop text has come.
    fn push(&mut self, piece: &str) -> (String, bool) {
        if self.stopped {
            return (String::new(), true);
        }
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return (text, true);
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back and is text after all.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that is a beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, _)| at)
        .filter(|&at| at > 0 && text.ends_with(&stop[..at]))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::StopFilter;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut filter = StopFilter::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            let (certain, stopped) = filter.push(piece);
            text += &certain;
            if stopped {
                return (text, true);
            }
        }
        (text + &filter.finish(), false)
    }

    #[test]
    fn stops_across_pieces_and_at_the_first_of_several() {
        assert_eq!(run(&["END", "\n\n"], &["a E", "N", "D b"]), ("a ".into(), true));
        assert_eq!(run(&["b", "a"], &["xab"]), ("x".into(), true));
        assert_eq!(run(&["END"], &["EN", "DLESS"]), (String::new(), true));
    }

    #[test]
    fn false_starts_come_out_whole() {
        assert_eq!(run(&["END"], &["E", "NE", "NO"]), ("ENENO".into(), false));
        assert_eq!(run(&["éé"], &["é", "x"]), ("éx".into(), false));
        assert_eq!(run(&[""], &["abc"]), ("abc".into(), false));
    }
}
