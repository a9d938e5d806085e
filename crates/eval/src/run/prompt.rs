//! Which tokens does an example become?

use inertiakv::tokenizer::{Segment, Tokenizer};
use inertiakv::{Engine, chat_template::ChatTemplate};

use crate::{Chat, EvalError, Example};

/// An example in tokens: the context is prefilled, so that nothing knows yet what will be asked; the question is the first
/// decode step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// What is prefilled.
    pub context: Vec<u32>,
    /// The first step.
    pub question: Vec<u32>,
}

impl Prompt {
    /// Cut as the benchmark cuts where it would not fit into `most` tokens.
    ///
    /// # Errors
    ///
    /// It does not fit and the benchmark does not cut, or the model's chat template is broken.
    pub fn new(engine: &Engine, example: &Example, most: usize) -> Result<Self, EvalError> {
        let whole = Self::of(engine, example)?;
        let length = (whole.context.len() + whole.question.len()).saturating_add(example.max_new_tokens);
        if length <= most {
            return Ok(whole);
        }
        let too_long = || EvalError::TooLong {
            id: example.id.clone(),
            tokens: length,
            limit: most,
        };
        let truncation = example.truncation.ok_or_else(too_long)?;
        let tokenizer = engine.tokenizer();
        let context = tokenizer.encode(&example.context, false);
        let kept = (context.len() + most).saturating_sub(length);
        let (head, tail) = truncation.keep(&context, kept);
        let cut = Example {
            context: tokenizer.decode(head) + &tokenizer.decode(tail),
            ..example.clone()
        };
        let cut = Self::of(engine, &cut)?;
        if cut.context.len() + cut.question.len() + example.max_new_tokens > most {
            return Err(too_long());
        }
        Ok(cut)
    }

    fn of(engine: &Engine, example: &Example) -> Result<Self, EvalError> {
        let template = engine.chat_template();
        let around = |template: &ChatTemplate| template.around(false, &[""]).map_err(inertiakv::Error::from);
        let around = match (example.chat, template) {
            (Chat::Never, _) | (_, None) => vec![String::new(); 3],
            (_, Some(template)) => around(template)?,
        };
        let (question_end, answer_begin) = match example.chat {
            Chat::AnswerPrefixApart => ("", example.answer_prefix.as_str()),
            Chat::Never | Chat::WholePrompt => (example.answer_prefix.as_str(), ""),
        };
        let tokenizer = engine.tokenizer();
        Ok(Self {
            context: tokenizer.with_bos(encode(tokenizer, &[(&around[0], true), (&example.context, false)])),
            question: encode(
                tokenizer,
                &[
                    (&around[1], true),
                    (&example.question, false),
                    (question_end, false),
                    (&around[2], true),
                    (answer_begin, false),
                ],
            ),
        })
    }
}

/// Control tokens come from the template alone, never from a benchmark's text.
fn encode(tokenizer: &Tokenizer, parts: &[(&str, bool)]) -> Vec<u32> {
    let segment = |&(text, parse_special)| Segment { text, parse_special };
    tokenizer.encode_segments(&parts.iter().map(segment).collect::<Vec<_>>())
}
