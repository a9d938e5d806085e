//! What does a client ask for? The bodies of both completion routes.

use inertiakv::chat_template::Message;
use inertiakv::policy::{Budget, Method};
use inertiakv::{GenerateOptions, Sampling};
use serde::Deserialize;

use super::Context;
use super::error::ApiError;
use super::fields::{Asks, AtMost, BudgetText, Logprobs, Prompts, TextOr};
use super::guard;
use crate::metrics::Reason;
use crate::scheduler::Request;

/// Most answers to one prompt, stop texts and reported alternatives.
const MOST_CHOICES: usize = 32;
/// Most answers to one request.
const MOST_ANSWERS: usize = 128;
const MOST_STOPS: usize = 16;
const MOST_LOGPROBS: usize = 20;
/// Most messages of one request. Templates put some tokens around each, so more would hardly fit into any context.
const MOST_MESSAGES: usize = 1 << 16;

const EMPTY: &str = "the prompt is empty; write something";

/// A body of either route. What is not listed is ignored; what is listed and cannot be done is refused.
#[derive(Debug, Deserialize)]
pub(super) struct Body {
    messages: Option<Messages>,
    prompt: Option<TextOr<Prompts>>,
    pub(super) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<usize>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<TextOr<AtMost<String, MOST_STOPS>>>,
    ignore_eos: Option<bool>,
    logprobs: Option<Logprobs>,
    top_logprobs: Option<usize>,
    kv: Option<Kv>,
    // What OpenAI has and we refuse rather than ignore.
    #[serde(default)]
    tools: Asks,
    #[serde(default)]
    functions: Asks,
    #[serde(default)]
    tool_choice: Asks,
    #[serde(default)]
    function_call: Asks,
    response_format: Option<ResponseFormat>,
    #[serde(default)]
    logit_bias: Asks,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    best_of: Option<usize>,
    echo: Option<bool>,
    suffix: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

pub(super) type Messages = AtMost<ChatMessage, MOST_MESSAGES>;

#[derive(Debug, Deserialize)]
pub(super) struct ChatMessage {
    role: String,
    content: Option<TextOr<Vec<Part>>>,
    #[serde(default)]
    tool_calls: Asks,
    #[serde(default)]
    function_call: Asks,
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
}

/// What stays in the cache of this request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kv {
    method: Option<String>,
    budget: Option<BudgetText>,
    retained_share: Option<bool>,
}

/// A body, understood.
pub(super) struct Wanted {
    pub(super) requests: Vec<Request>,
    pub(super) stream: bool,
    /// Send a chunk with the usage at the end of a stream.
    pub(super) include_usage: bool,
    /// The field that says how long an answer may be.
    pub(super) tokens_field: &'static str,
}

impl Body {
    /// The requests of a chat.
    pub(super) fn chat(self, context: &Context, id: &str) -> Result<Wanted, ApiError> {
        self.refuse_what_cannot_be_done()?;
        let Some(AtMost(messages)) = &self.messages else {
            return Err(ApiError::bad("messages", "`messages` is missing"));
        };
        let prompt = chat_prompt(context, messages)?;
        if prompt.is_empty() {
            return Err(ApiError::bad("messages", EMPTY));
        }
        let logprobs = match (&self.logprobs, self.top_logprobs) {
            (None | Some(Logprobs::Flag(false)), None | Some(0)) => None,
            (Some(Logprobs::Flag(true)), top) => Some(top.unwrap_or(0)),
            (Some(Logprobs::Count(_)), _) => {
                return Err(ApiError::bad("logprobs", "`logprobs` is true or false here"));
            }
            (_, Some(_)) => {
                return Err(ApiError::bad(
                    "top_logprobs",
                    "`top_logprobs` needs `logprobs` to be true",
                ));
            }
        };
        self.wanted(context, id, vec![prompt], logprobs)
    }

    /// The requests of a completion.
    pub(super) fn completions(self, context: &Context, id: &str) -> Result<Wanted, ApiError> {
        self.refuse_what_cannot_be_done()?;
        let Some(prompt) = &self.prompt else {
            return Err(ApiError::bad("prompt", "`prompt` is missing"));
        };
        let tokenizer = context.engine().tokenizer();
        let encode = |text: &String| tokenizer.with_bos(tokenizer.encode(text, true));
        let prompts = match prompt {
            TextOr::Text(text) => vec![encode(text)],
            TextOr::List(Prompts::Texts(texts)) => texts.iter().map(encode).collect(),
            TextOr::List(Prompts::Tokens(tokens)) => vec![tokens.clone()],
            TextOr::List(Prompts::ManyTokens(prompts)) => prompts.clone(),
        };
        if prompts.is_empty() {
            return Err(ApiError::bad("prompt", EMPTY));
        }
        let vocabulary = context.engine().config().vocabulary;
        if let Some(token) = prompts.iter().flatten().find(|&&token| token as usize >= vocabulary) {
            let message = format!("token {token} is outside the vocabulary of {vocabulary}");
            return Err(ApiError::bad("prompt", message));
        }
        if prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::bad("prompt", EMPTY));
        }
        let logprobs = match &self.logprobs {
            None | Some(Logprobs::Flag(false)) => None,
            Some(Logprobs::Count(top)) => Some(*top),
            Some(Logprobs::Flag(true)) => {
                return Err(ApiError::bad("logprobs", "`logprobs` is a whole number here"));
            }
        };
        self.wanted(context, id, prompts, logprobs)
    }

    fn wanted(
        self,
        context: &Context,
        id: &str,
        prompts: Vec<Vec<u32>>,
        logprobs: Option<usize>,
    ) -> Result<Wanted, ApiError> {
        let choices = self.n.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&choices) {
            return Err(ApiError::bad(
                "n",
                format!("`n` is {choices}, but must be 1 to {MOST_CHOICES}"),
            ));
        }
        let answers = choices * prompts.len();
        if answers > MOST_ANSWERS {
            let message =
                format!("{answers} answers, `n` to every prompt, are too many at once: at most {MOST_ANSWERS}");
            return Err(ApiError::bad("n", message));
        }
        if logprobs.is_some_and(|top| top > MOST_LOGPROBS) {
            let field = if self.top_logprobs.is_some() {
                "top_logprobs"
            } else {
                "logprobs"
            };
            return Err(ApiError::bad(field, format!("`{field}` is at most {MOST_LOGPROBS}")));
        }
        let options = self.options(context)?;
        let method = self.method(context)?;
        let retained_share = self.kv.as_ref().and_then(|kv| kv.retained_share).unwrap_or(false);
        let requests = prompts.into_iter().enumerate().map(|(index, prompt)| Request {
            id: id.to_owned(),
            prompt,
            method: method.clone(),
            options: options.clone(),
            choices,
            first_choice: index * choices,
            logprobs,
            retained_share,
        });
        Ok(Wanted {
            tokens_field: self.tokens_field(),
            requests: requests.collect(),
            stream: self.stream.unwrap_or(false),
            include_usage: self
                .stream_options
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
        })
    }

    fn tokens_field(&self) -> &'static str {
        match self.max_completion_tokens {
            Some(_) => "max_completion_tokens",
            None => "max_tokens",
        }
    }

    fn options(&self, context: &Context) -> Result<GenerateOptions, ApiError> {
        let asked = self.max_completion_tokens.or(self.max_tokens);
        let max_tokens = asked.unwrap_or(context.inner.max_tokens);
        if max_tokens == 0 {
            let field = self.tokens_field();
            return Err(ApiError::bad(field, format!("`{field}` must be at least 1")));
        }
        let stop = match &self.stop {
            None => Vec::new(),
            Some(TextOr::Text(text)) => vec![text.clone()],
            Some(TextOr::List(AtMost(texts))) => texts.clone(),
        };
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::bad("stop", "`stop` has an empty text; leave it out"));
        }
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            seed: self.seed.map_or_else(guard::random, i64::cast_unsigned),
        };
        sampling.validate().map_err(|error| match error {
            inertiakv::Error::Sampling { name, .. } => ApiError::bad(name, error.to_string()),
            error => ApiError::failed(error.to_string()),
        })?;
        Ok(GenerateOptions {
            max_tokens,
            sampling,
            stop,
            ignore_end: self.ignore_eos.unwrap_or(false),
        })
    }

    /// The method of the request with its budget, or the server's.
    fn method(&self, context: &Context) -> Result<Method, ApiError> {
        let Some(kv) = &self.kv else {
            return Ok(context.inner.method.clone());
        };
        let method = match &kv.method {
            Some(text) => text
                .parse::<Method>()
                .map_err(|error| ApiError::bad("kv.method", error.to_string()).because(Reason::Method))?,
            None => context.inner.method.clone(),
        };
        let budget = match &kv.budget {
            None => return Ok(method),
            Some(BudgetText(text)) => text.parse::<Budget>(),
        };
        let budget = budget.map_err(|error| ApiError::bad("kv.budget", error.to_string()).because(Reason::Method))?;
        if !method.evicts() {
            let message =
                format!("the method `{method}` keeps everything, so a budget has no effect; name another one");
            return Err(ApiError::bad("kv.budget", message).because(Reason::Method));
        }
        Ok(method.with_budget(budget))
    }

    fn refuse_what_cannot_be_done(&self) -> Result<(), ApiError> {
        let given = [
            ("tools", self.tools.0),
            ("functions", self.functions.0),
            ("tool_choice", self.tool_choice.0),
            ("function_call", self.function_call.0),
            (
                "response_format",
                self.response_format
                    .as_ref()
                    .is_some_and(|format| format.kind != "text"),
            ),
            ("logit_bias", self.logit_bias.0),
            (
                "frequency_penalty",
                self.frequency_penalty.is_some_and(|penalty| penalty != 0.0),
            ),
            (
                "presence_penalty",
                self.presence_penalty.is_some_and(|penalty| penalty != 0.0),
            ),
            ("best_of", self.best_of.is_some_and(|best| best != self.n.unwrap_or(1))),
            ("echo", self.echo.unwrap_or(false)),
            ("suffix", self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty())),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(ApiError::bad(
                *field,
                format!("`{field}` is not supported; leave it out"),
            )),
            None => Ok(()),
        }
    }
}

/// The tokens of a conversation, up to where the assistant begins to speak.
pub(super) fn chat_prompt(context: &Context, messages: &[ChatMessage]) -> Result<Vec<u32>, ApiError> {
    let messages = conversation(messages)?;
    let engine = context.engine();
    let template = engine.chat_template().ok_or_else(|| {
        ApiError::bad(
            "messages",
            "this model has no chat template; use /v1/completions and write its markers yourself",
        )
    })?;
    template
        .encode(engine.tokenizer(), &messages, true)
        .map_err(|error| ApiError::bad("messages", error.to_string()))
}

/// Messages as templates know them.
pub(super) fn conversation(messages: &[ChatMessage]) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::bad("messages", "`messages` is empty; write at least one"));
    }
    let message = |(index, message): (usize, &ChatMessage)| {
        let role = match message.role.as_str() {
            // OpenAI's newer name.
            "developer" => "system",
            role @ ("system" | "user" | "assistant") => role,
            other => {
                return Err(ApiError::bad(
                    format!("messages[{index}].role"),
                    format!("the role `{other}` is not supported: use system, developer, user or assistant"),
                ));
            }
        };
        let calls = [
            ("tool_calls", message.tool_calls),
            ("function_call", message.function_call),
        ];
        if let Some((field, _)) = calls.iter().find(|(_, Asks(given))| *given) {
            return Err(ApiError::bad(
                format!("messages[{index}].{field}"),
                format!("`{field}` is not supported; leave it out, or write what was called into `content`"),
            ));
        }
        let content = match &message.content {
            None => {
                return Err(ApiError::bad(
                    format!("messages[{index}].content"),
                    "`content` is missing or null; write a text, or leave the message out",
                ));
            }
            Some(TextOr::Text(text)) => text.clone(),
            Some(TextOr::List(parts)) => {
                let texts = parts.iter().map(|part| match (part.kind.as_str(), &part.text) {
                    ("text", Some(text)) => Ok(text.as_str()),
                    (kind, _) => Err(ApiError::bad(
                        format!("messages[{index}].content"),
                        format!("parts of type `{kind}` are not supported, only `text` with its text"),
                    )),
                });
                texts.collect::<Result<String, ApiError>>()?
            }
        };
        Ok(Message::new(role, content))
    };
    messages.iter().enumerate().map(message).collect()
}
