//! In which shape does an answer come? That of `OpenAI`'s two completion APIs, with what the cache did beside it.

use inertiakv::FinishReason;
use inertiakv::tokenizer::{StreamDecoder, Tokenizer};
use serde_json::{Map, Value, json};

use super::body::Wanted;
use super::error::ApiError;
use super::{Context, guard, unix_seconds};
use crate::scheduler::{Answer, Event, Probability, Refused};

/// Which of the two APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Chat,
    Completions,
}

/// An answer taking shape.
pub(super) struct Shape {
    dialect: Dialect,
    id: String,
    created: u64,
    model: String,
    tokenizer: Tokenizer,
    prompt_tokens: usize,
    include_usage: bool,
    /// The field that says how long an answer may be.
    tokens_field: &'static str,
    choices: Vec<Choice>,
}

/// One of its choices.
struct Choice {
    text: String,
    probabilities: Vec<Probability>,
    /// What turns its tokens into text, and the characters so far, which is where the next token begins.
    decoder: StreamDecoder,
    offset: usize,
    /// Log-probabilities were asked for.
    with_logprobs: bool,
    /// Something of it has been sent.
    begun: bool,
    /// Its prompt is that of the choice before.
    shares_prompt: bool,
    end: Option<Answer>,
}

impl Choice {
    /// The character of the text at which the next token begins, which is spelled like this.
    fn begin(&mut self, token: u32, spelled: &str) -> usize {
        let piece = self.decoder.push(token);
        let begin = self.offset;
        self.offset += piece.chars().count();
        // Before it may have come what is left of a broken character. A part of a character begins where that does.
        if piece.ends_with(spelled) {
            self.offset - spelled.chars().count()
        } else {
            begin
        }
    }
}

impl Shape {
    pub(super) fn new(dialect: Dialect, context: &Context, wanted: &Wanted) -> Self {
        let choices = wanted.requests.iter().flat_map(|request| {
            (0..request.choices).map(|index| Choice {
                text: String::new(),
                probabilities: Vec::new(),
                decoder: context.engine().tokenizer().stream(),
                offset: 0,
                with_logprobs: request.logprobs.is_some(),
                begun: false,
                shares_prompt: index > 0,
                end: None,
            })
        });
        let prefix = match dialect {
            Dialect::Chat => "chatcmpl",
            Dialect::Completions => "cmpl",
        };
        Self {
            dialect,
            id: format!("{prefix}-{}", guard::unique()),
            created: unix_seconds(),
            model: context.engine().name().to_owned(),
            tokenizer: context.engine().tokenizer().clone(),
            prompt_tokens: wanted.requests.iter().map(|request| request.prompt.len()).sum(),
            include_usage: wanted.include_usage,
            tokens_field: wanted.tokens_field,
            choices: choices.collect(),
        }
    }

    /// Why the request was not taken, with the field that this request has for it.
    pub(super) fn refusal(&self, refused: Refused) -> ApiError {
        let field = match (&refused, self.dialect) {
            (Refused::TooLarge { .. }, _) => Some(self.tokens_field),
            (Refused::TooLong { .. } | Refused::NoRoomToRepeat(_), Dialect::Chat) => Some("messages"),
            _ => None,
        };
        let error = ApiError::from(refused);
        match field {
            Some(field) => error.about(field),
            None => error,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.end.is_some())
    }

    /// Keeps a part of the answer until it is whole.
    pub(super) fn add(&mut self, event: Event) {
        match event {
            Event::Token {
                choice,
                text,
                probability,
            } => {
                if let Some(choice) = self.choices.get_mut(choice) {
                    choice.text.push_str(&text);
                    choice.probabilities.extend(probability);
                }
            }
            Event::Done(answer) => {
                if let Some(choice) = self.choices.get_mut(answer.choice) {
                    choice.text.push_str(&answer.text);
                    choice.end = Some(*answer);
                }
            }
            Event::Failed(_) => {}
        }
    }

    /// The whole answer.
    pub(super) fn whole(mut self) -> Value {
        let choices: Vec<Value> = (0..self.choices.len()).map(|index| self.whole_choice(index)).collect();
        let object = match self.dialect {
            Dialect::Chat => "chat.completion",
            Dialect::Completions => "text_completion",
        };
        let mut value = self.envelope(object, &choices);
        value["usage"] = self.usage();
        value
    }

    fn whole_choice(&mut self, index: usize) -> Value {
        let text = std::mem::take(&mut self.choices[index].text);
        let probabilities = std::mem::take(&mut self.choices[index].probabilities);
        let logprobs = self.logprobs(index, &probabilities);
        let mut value = match self.dialect {
            Dialect::Chat => json!({"message": {"role": "assistant", "content": text, "refusal": null}}),
            Dialect::Completions => json!({ "text": text }),
        };
        value["index"] = index.into();
        value["logprobs"] = logprobs;
        self.describe_end(index, &mut value);
        value
    }

    /// The chunks of a stream that an event makes.
    pub(super) fn chunks(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Token {
                choice,
                text,
                probability,
            } => {
                if text.is_empty() && probability.is_none() && self.has_begun(choice) {
                    return Vec::new();
                }
                vec![self.piece(choice, &text, probability)]
            }
            Event::Done(answer) => {
                let index = answer.choice;
                let mut chunks = Vec::new();
                if !answer.text.is_empty() {
                    chunks.push(self.piece(index, &answer.text, None));
                }
                if let Some(choice) = self.choices.get_mut(index) {
                    choice.end = Some(*answer);
                }
                let mut value = match self.dialect {
                    Dialect::Chat => json!({"delta": {}}),
                    Dialect::Completions => json!({"text": ""}),
                };
                value["index"] = index.into();
                value["logprobs"] = Value::Null;
                self.describe_end(index, &mut value);
                chunks.push(self.chunk(&[value]));
                chunks
            }
            Event::Failed(_) => Vec::new(),
        }
    }

    /// The chunk that ends a stream whose client wants to know the usage.
    pub(super) fn usage_chunk(&self) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.chunk(&[]);
            chunk["usage"] = self.usage();
            chunk
        })
    }

    fn has_begun(&self, choice: usize) -> bool {
        self.choices.get(choice).is_some_and(|choice| choice.begun)
    }

    fn piece(&mut self, index: usize, text: &str, probability: Option<Probability>) -> Value {
        let mut value = match self.dialect {
            Dialect::Chat if self.has_begun(index) => json!({"delta": {"content": text}}),
            Dialect::Chat => json!({"delta": {"role": "assistant", "content": text}}),
            Dialect::Completions => json!({ "text": text }),
        };
        if let Some(choice) = self.choices.get_mut(index) {
            choice.begun = true;
        }
        value["index"] = index.into();
        let probabilities: Vec<Probability> = probability.into_iter().collect();
        value["logprobs"] = if probabilities.is_empty() {
            Value::Null
        } else {
            self.logprobs(index, &probabilities)
        };
        value["finish_reason"] = Value::Null;
        self.chunk(&[value])
    }

    fn chunk(&self, choices: &[Value]) -> Value {
        let object = match self.dialect {
            Dialect::Chat => "chat.completion.chunk",
            Dialect::Completions => "text_completion",
        };
        let mut value = self.envelope(object, choices);
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn envelope(&self, object: &str, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Why the choice ended, and what its cache did.
    fn describe_end(&self, index: usize, value: &mut Value) {
        let Some(answer) = self.choices.get(index).and_then(|choice| choice.end.as_ref()) else {
            value["finish_reason"] = Value::Null;
            return;
        };
        value["finish_reason"] = match answer.ending {
            FinishReason::Stop => "stop",
            _ => "length",
        }
        .into();
        // Plain data with text keys: it cannot fail.
        let mut kv = serde_json::to_value(&answer.report).unwrap_or_default();
        if let Some(share) = &answer.retained_share {
            kv["retained_share"] = share.as_slice().into();
        }
        value["kv"] = kv;
    }

    fn usage(&self) -> Value {
        let ends = || self.choices.iter().filter_map(|choice| choice.end.as_ref());
        let generated: usize = ends().map(|answer| answer.tokens).sum();
        let own_prompt = self.choices.iter().filter(|choice| !choice.shares_prompt);
        let cached: usize = own_prompt
            .filter_map(|choice| choice.end.as_ref())
            .map(|answer| answer.cached)
            .sum();
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }

    fn logprobs(&mut self, index: usize, probabilities: &[Probability]) -> Value {
        if !self.choices[index].with_logprobs {
            return Value::Null;
        }
        match self.dialect {
            Dialect::Chat => {
                let entry = |token: u32, logprob: f32| {
                    json!({
                        "token": self.spelled(token),
                        "logprob": logprob,
                        "bytes": self.tokenizer.token_bytes(token),
                    })
                };
                let content = probabilities.iter().map(|probability| {
                    let mut value = entry(probability.token, probability.logprob);
                    let top = probability.top.iter();
                    value["top_logprobs"] = top.map(|&(token, logprob)| entry(token, logprob)).collect();
                    value
                });
                json!({ "content": content.collect::<Vec<_>>() })
            }
            Dialect::Completions => {
                let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
                for probability in probabilities {
                    let spelled = |token: u32| spelled_apart(self.tokenizer.token_bytes(token));
                    let top = probability.top.iter();
                    let top: Map<String, Value> = top.map(|&(token, p)| (spelled(token), p.into())).collect();
                    let token = spelled(probability.token);
                    offsets.push(self.choices[index].begin(probability.token, &token));
                    tokens.push(token);
                    logprobs.push(probability.logprob);
                    tops.push(top);
                }
                json!({
                    "tokens": tokens,
                    "token_logprobs": logprobs,
                    "top_logprobs": tops,
                    "text_offset": offsets,
                })
            }
        }
    }

    fn spelled(&self, token: u32) -> String {
        String::from_utf8_lossy(self.tokenizer.token_bytes(token)).into_owned()
    }
}

/// A token as `OpenAI`'s completions spell it, so that those which are no text by themselves differ too.
fn spelled_apart(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| format!("bytes:{}", bytes.escape_ascii()), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::spelled_apart;

    #[test]
    fn tokens_that_are_no_text_are_spelled_as_bytes() {
        assert_eq!(spelled_apart("é \\".as_bytes()), "é \\");
        assert_eq!(spelled_apart(b" \xf0\x9f"), "bytes: \\xf0\\x9f");
        assert_eq!(spelled_apart(b"\\\xf0"), "bytes:\\\\\\xf0");
    }
}
