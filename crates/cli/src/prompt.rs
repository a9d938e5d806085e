//! Which tokens are prefilled, and which are a decode step?

use anyhow::bail;
use inertiakv::Engine;
use inertiakv::chat_template::{ChatTemplate, Message, TemplateError};
use inertiakv::tokenizer::Segment;

use crate::args::{InputArguments, PromptArguments};
use crate::format::{count, counted};
use crate::printer::Printer;
use crate::{input, model, settings};

/// Loads the model, and makes a prompt that fits it of the text.
pub(crate) fn prepare(arguments: &PromptArguments, printer: &Printer) -> anyhow::Result<(Engine, Prompt)> {
    let text = input::text(&arguments.input)?;
    let options = settings::engine_options(&arguments.model, Some(&arguments.context));
    let engine = model::open(&arguments.model.model, &options, printer)?;
    let prompt = Prompt::new(&engine, &arguments.input, &text)?;
    prompt.check_length(&engine)?;
    Ok((engine, prompt))
}

/// The tokens of one prompt.
pub(crate) struct Prompt {
    /// What is prefilled.
    pub(crate) prefill: Vec<u32>,
    /// The first decode step, if there is a question.
    pub(crate) question: Option<Vec<u32>>,
}

impl Prompt {
    /// Applies the chat template, or with `--raw` none.
    fn new(engine: &Engine, arguments: &InputArguments, text: &str) -> anyhow::Result<Self> {
        let tokenizer = engine.tokenizer();
        if arguments.raw {
            return Ok(Self {
                prefill: tokenizer.with_bos(tokenizer.encode(text, true)),
                question: arguments
                    .question
                    .as_ref()
                    .map(|question| tokenizer.encode(question, true)),
            });
        }
        let system = arguments.system.as_deref();
        if let Some(question) = &arguments.question {
            let context = QuestionPrompt::new(engine, system, text)?;
            return Ok(Self {
                question: Some(context.question(engine, question, "")),
                prefill: context.prefill,
            });
        }
        let messages: Vec<Message> = system
            .map(Message::system)
            .into_iter()
            .chain([Message::user(text)])
            .collect();
        Ok(Self {
            prefill: template(engine)?.encode(tokenizer, &messages, true)?,
            question: None,
        })
    }

    /// Refuses a prompt that leaves no room in the context for an answer.
    fn check_length(&self, engine: &Engine) -> anyhow::Result<()> {
        let needed = self.prefill.len() + self.question.as_ref().map_or(0, Vec::len);
        let context = engine.context();
        if needed < context {
            return Ok(());
        }
        let limit = engine.config().context_length;
        let advice = if context < limit {
            format!(
                "raise --context (this model allows {}) or shorten the prompt",
                count(limit)
            )
        } else {
            "shorten the prompt or use a model with a longer context".to_owned()
        };
        bail!(
            "the prompt has {}, which leaves no room for an answer in the context of {}; {advice}",
            counted(needed, "token"),
            count(context)
        );
    }
}

/// A context about which questions will be asked, as one user message whose end is still open.
pub(crate) struct QuestionPrompt {
    /// The template up to where the question begins.
    pub(crate) prefill: Vec<u32>,
    /// The template after the question.
    end: String,
}

impl QuestionPrompt {
    /// The context as the beginning of a user message, an empty line after it.
    pub(crate) fn new(engine: &Engine, system: Option<&str>, context: &str) -> anyhow::Result<Self> {
        let texts: Vec<&str> = system.into_iter().chain([context.trim_end()]).collect();
        let mut around = template(engine)?.around(system.is_some(), &["\n\n"])?;
        let end = around.pop().unwrap_or_default();
        let control = |text| Segment {
            text,
            parse_special: true,
        };
        let plain = |text| Segment {
            text,
            parse_special: false,
        };
        // Control tokens come from the template alone.
        let mut segments = Vec::new();
        for (before, text) in around.iter().zip(texts) {
            segments.extend([control(before.as_str()), plain(text)]);
        }
        segments.push(control(&around[around.len() - 1]));
        let tokenizer = engine.tokenizer();
        Ok(Self {
            prefill: tokenizer.with_bos(tokenizer.encode_segments(&segments)),
            end,
        })
    }

    /// The same for a model without a chat template.
    pub(crate) fn plain(engine: &Engine, context: &str) -> Self {
        let tokenizer = engine.tokenizer();
        let text = format!("{}\n\nQuestion: ", context.trim_end());
        Self {
            prefill: tokenizer.with_bos(tokenizer.encode(&text, false)),
            end: "\nAnswer: ".to_owned(),
        }
    }

    /// The tokens that ask `question` and open the answer, which begins with `lead`.
    pub(crate) fn question(&self, engine: &Engine, question: &str, lead: &str) -> Vec<u32> {
        engine.tokenizer().encode_segments(&[
            Segment {
                text: question.trim(),
                parse_special: false,
            },
            Segment {
                text: &self.end,
                parse_special: true,
            },
            Segment {
                text: lead,
                parse_special: false,
            },
        ])
    }
}

/// The messages of a chat so far.
pub(crate) struct Conversation {
    messages: Vec<Message>,
}

impl Conversation {
    pub(crate) fn new(system: Option<&str>) -> Self {
        Self {
            messages: system.map(Message::system).into_iter().collect(),
        }
    }

    /// The tokens that the session has not seen when the user says `text`: everything for the first turn, later from
    /// the end of the last answer on.
    pub(crate) fn next_turn(&self, engine: &Engine, text: &str) -> anyhow::Result<Vec<u32>> {
        let template = template(engine)?;
        let next = [Message::user(text)];
        if self.turns() == 0 {
            let messages = [self.messages.as_slice(), &next].concat();
            return Ok(template.encode(engine.tokenizer(), &messages, true)?);
        }
        Ok(template.encode_follow_up(engine.tokenizer(), &self.messages, &next)?)
    }

    /// Notes a finished turn.
    pub(crate) fn push(&mut self, text: &str, answer: &str) {
        self.messages.extend([Message::user(text), Message::assistant(answer)]);
    }

    /// Turns so far.
    pub(crate) fn turns(&self) -> usize {
        self.messages.iter().filter(|message| message.role == "user").count()
    }
}

fn template(engine: &Engine) -> Result<&ChatTemplate, TemplateError> {
    engine.chat_template().ok_or(TemplateError::Missing)
}
