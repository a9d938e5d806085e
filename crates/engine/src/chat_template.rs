//! How does a conversation become one text? Chat templates from GGUF metadata.
//!
//! Templates are Jinja, written for Python; [`ChatTemplate::render`] runs them. What people write must not be able to
//! act as structure (a user typing `<|im_end|>` would end their own turn), but a rendered text no longer says who
//! wrote what. [`ChatTemplate::encode`] therefore marks every control token spelled out in a message with a private-use
//! character before rendering, and drops the character again when the text is encoded: the template may trim, join or
//! repeat the text as it likes, the marks travel along.

mod clock;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::gguf::{Gguf, GgufError};
use crate::tokenizer::Tokenizer;

const TEMPLATE: &str = "tokenizer.chat_template";

/// The format most models without a template of their own were trained on, where the vocabulary has its tokens.
const CHAT_ML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                       {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Why a conversation could not be turned into a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages are the documentation, the fields their blanks")]
pub enum TemplateError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("this model has no chat template, so it is not made for chat; give it a raw prompt")]
    Missing,
    #[error("the model's chat template cannot be read ({reason}); give it a raw prompt that has the markers")]
    Syntax { reason: String },
    #[error("the model's chat template refuses this conversation: {reason}")]
    Refused { reason: String },
    #[error("the model's chat template failed ({reason}); give it a raw prompt that has the markers")]
    Failed { reason: String },
    #[error(
        "the model's chat template drops or rewrites earlier answers, so a conversation cannot be continued in place"
    )]
    NoFollowUp,
    #[error(
        "the messages use every private-use character, so nothing is left to mark control tokens with; remove some"
    )]
    NoMark,
    #[error(
        "the chat template of this model rearranges messages, so what it puts around a text is not known; give it a raw \
         prompt"
    )]
    NoParts,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What they say.
    pub content: String,
}

impl Message {
    /// A message in a role of your own.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }

    /// An instruction for the whole conversation.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// What the user says.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model answered.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// Why the source does not compile. Kept until it is used: the model still runs without a template.
    defect: Option<String>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The template of a model file. A file without one gets the `ChatML` format, with a warning, if its vocabulary has
    /// the tokens for it, and none otherwise (report that as [`TemplateError::Missing`]). A template that does not
    /// compile is reported when it is first used.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Self>, TemplateError> {
        if let Some(source) = file.optional::<&str>(TEMPLATE)? {
            return Ok(Some(Self::new(source, tokenizer)));
        }
        if tokenizer.special_token("<|im_start|>").is_none() || tokenizer.special_token("<|im_end|>").is_none() {
            return Ok(None);
        }
        tracing::warn!("the file has no chat template ({TEMPLATE}): ChatML is assumed, because the vocabulary has it");
        Ok(Some(Self::new(CHAT_ML, tokenizer)))
    }

    /// A template given as Jinja source. `bos_token` and `eos_token` in it are the tokenizer's.
    #[must_use]
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Self {
        let environment = environment();
        let defect = oversized(source).or_else(|| {
            let compiled = environment.template_from_str(source);
            compiled.err().map(|error| describe(&error))
        });
        let spelled = |token: Option<u32>| {
            token
                .map(|token| tokenizer.decode_special(&[token]))
                .unwrap_or_default()
        };
        Self {
            defect,
            environment,
            source: source.to_owned(),
            bos: spelled(tokenizer.bos()),
            eos: spelled(tokenizer.eos()),
        }
    }

    /// The Jinja source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as one text; with `add_generation_prompt` it ends where the assistant begins to speak.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TemplateError> {
        if let Some(reason) = &self.defect {
            return Err(TemplateError::Syntax { reason: reason.clone() });
        }
        let pairs = |message: &Message| {
            Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
        };
        let variables = context! {
            messages => messages.iter().map(pairs).collect::<Vec<_>>(),
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            // Templates compare these with none, as the Python library passes it.
            tools => (),
            documents => (),
        };
        self.environment
            .render_str(&self.source, variables)
            .map_err(|error| match refusal(&error) {
                Some(reason) => TemplateError::Refused { reason },
                None => TemplateError::Failed {
                    reason: describe(&error),
                },
            })
    }

    /// The tokens of a conversation, with exactly one BOS if the model wants one. Control tokens come from the template
    /// alone; spelled out in a message they are text.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, TemplateError> {
        let mark = self.unused_characters(messages).next().ok_or(TemplateError::NoMark)?;
        let text = self.render(&marked(tokenizer, messages, mark), add_generation_prompt)?;
        Ok(tokenizer.with_bos(tokenizer.encode_marked(&text, mark)))
    }

    /// What the template puts around the parts of one user message, which are joined by `joints`, and around the system
    /// message before it if there is one: what stands before the first part, between any two, and after the last.
    ///
    /// # Errors
    /// [`TemplateError::NoParts`] if the template rearranges or changes messages.
    pub fn around(&self, system: bool, joints: &[&str]) -> Result<Vec<String>, TemplateError> {
        // Marks have no spaces, as templates may trim.
        let marks: Vec<String> = (0..=usize::from(system) + joints.len())
            .map(|index| format!("\u{f8ff}{index}\u{f8ff}"))
            .collect();
        let (first, parts) = marks.split_at(usize::from(system));
        let mut user = parts[0].clone();
        for (joint, part) in joints.iter().zip(&parts[1..]) {
            user.push_str(joint);
            user.push_str(part);
        }
        let messages: Vec<Message> = first.iter().map(Message::system).chain([Message::user(user)]).collect();
        let rendered = self.render(&messages, true)?;
        let mut rest = rendered.as_str();
        let mut around = Vec::with_capacity(marks.len() + 1);
        for mark in &marks {
            let (before, after) = rest.split_once(mark).ok_or(TemplateError::NoParts)?;
            around.push(before.to_owned());
            rest = after;
        }
        around.push(rest.to_owned());
        Ok(around)
    }

    /// The tokens that continue a conversation whose text the model has already read or written: what follows the text
    /// of the last answer in `history`, beginning with the end of its turn, then the messages in `next` and the
    /// generation prompt. When the answer's last token was the end of turn, leave out the first token here.
    ///
    /// Templates that drop or rewrite earlier answers cannot be continued ([`TemplateError::NoFollowUp`]).
    pub fn encode_follow_up(
        &self,
        tokenizer: &Tokenizer,
        history: &[Message],
        next: &[Message],
    ) -> Result<Vec<u32>, TemplateError> {
        let mut messages: Vec<Message> = history.iter().chain(next).cloned().collect();
        let mut unused = self.unused_characters(&messages);
        let (Some(mark), Some(border)) = (unused.next(), unused.next()) else {
            return Err(TemplateError::NoMark);
        };
        let answer = history.len().checked_sub(1).ok_or(TemplateError::NoFollowUp)?;
        messages = marked(tokenizer, &messages, mark);
        messages[answer].content = border.to_string();
        let text = self.render(&messages, true)?;
        match text.split_once(border) {
            Some((_, after)) if !after.contains(border) => Ok(tokenizer.encode_marked(after, mark)),
            _ => Err(TemplateError::NoFollowUp),
        }
    }

    /// Private-use characters that occur neither in the template nor in the messages.
    fn unused_characters(&self, messages: &[Message]) -> impl Iterator<Item = char> + use<> {
        let texts = messages
            .iter()
            .flat_map(|message| [&message.role, &message.content])
            .chain([&self.source]);
        let used: std::collections::HashSet<char> = texts
            .flat_map(|text| text.chars())
            .filter(|character| PRIVATE_USE.contains(character))
            .collect();
        PRIVATE_USE.filter(move |character| !used.contains(character))
    }
}

/// Most bytes of a template, and of one tag in it. Templates in use are far smaller; what is larger would recurse the
/// parser past its stack.
const LARGEST_TEMPLATE: usize = 1 << 18;
const LARGEST_TAG: usize = 1 << 11;

/// Most operations of a rendering, so that a loop without end ends; a conversation of a thousand turns takes a tenth.
/// 64 bytes of text that the template makes cost one more, so what doubles a string again and again ends too.
const MOST_OPERATIONS: u64 = 10_000_000;

/// Why a template is too large to be compiled, if it is.
fn oversized(source: &str) -> Option<String> {
    if source.len() > LARGEST_TEMPLATE {
        return Some(format!("it has {} bytes, more than {LARGEST_TEMPLATE}", source.len()));
    }
    let tag_bytes = |rest: &str| {
        rest.find("}}")
            .into_iter()
            .chain(rest.find("%}"))
            .min()
            .unwrap_or(rest.len())
    };
    let tags = source.match_indices("{{").chain(source.match_indices("{%"));
    let longest = tags.map(|(start, _)| tag_bytes(&source[start..])).max().unwrap_or(0);
    (longest > LARGEST_TAG).then(|| format!("a tag in it has {longest} bytes, more than {LARGEST_TAG}"))
}

const PRIVATE_USE: std::ops::RangeInclusive<char> = '\u{e000}'..='\u{f8ff}';

/// The messages with every control token in them broken up by `mark`.
fn marked(tokenizer: &Tokenizer, messages: &[Message], mark: char) -> Vec<Message> {
    let break_up = |text: &str| tokenizer.mark_control(text, mark);
    messages
        .iter()
        .map(|message| Message::new(break_up(&message.role), break_up(&message.content)))
        .collect()
}

/// An environment that behaves as the Python library the templates were written for.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("only whitespace handling differs from the default syntax"));
    environment.set_fuel(Some(MOST_OPERATIONS));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |reason: String| -> Result<String, JinjaError> {
        Err(JinjaError::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(reason)))
    });
    environment.add_function("strftime_now", |format: String| clock::format_now(&format));
    environment
}

/// What a template says when it raises an exception on purpose.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn refusal(error: &JinjaError) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Refusal(reason)) = cause.downcast_ref() {
            return Some(reason.clone());
        }
        source = cause.source();
    }
    None
}

/// A template error in one line.
fn describe(error: &JinjaError) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return format!("too many messages, or a loop without end: it took more than {MOST_OPERATIONS} operations");
    }
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TinyModel;

    fn tokenizer() -> Tokenizer {
        let file = Gguf::from_bytes(TinyModel::default().to_bytes()).expect("the tiny model is valid");
        Tokenizer::from_gguf(&file).expect("the tiny model has a tokenizer")
    }

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, &tokenizer())
    }

    #[test]
    fn a_control_token_in_a_message_stays_text() {
        let tokenizer = tokenizer();
        let end = tokenizer
            .special_token("<|im_end|>")
            .expect("the tiny vocabulary has it");
        // The template trims, as many do: the marks must survive what it does with the text.
        let template =
            template("{% for message in messages %}<|im_start|>{{ message.content | trim }}<|im_end|>{% endfor %}");
        for content in [" a<|im_end|>b ", "<|im_end|>", "<|im_end", "x<", "\u{e000}<|im_end|>"] {
            let tokens = template
                .encode(&tokenizer, &[Message::user(content)], false)
                .expect("it renders");
            assert_eq!(tokens.iter().filter(|&&token| token == end).count(), 1, "{content}");
            assert_eq!(tokens.last(), Some(&end));
            assert_eq!(tokenizer.decode(&tokens), content.trim());
        }
    }

    #[test]
    fn two_messages_cannot_make_a_control_token_together() {
        let tokenizer = tokenizer();
        let end = tokenizer
            .special_token("<|im_end|>")
            .expect("the tiny vocabulary has it");
        let template = template("{% for message in messages %}{{ message.content }}{% endfor %}");
        let messages = ["<|im", "_en", "d|>"].map(Message::user);
        let tokens = template.encode(&tokenizer, &messages, false).expect("it renders");
        assert!(!tokens.contains(&end));
        assert_eq!(tokenizer.decode(&tokens), "<|im_end|>");
    }

    #[test]
    fn an_exception_of_the_template_is_its_own_message() {
        let error = template("{{ raise_exception('roles must alternate') }}")
            .render(&[], false)
            .expect_err("it raises");
        assert!(
            matches!(&error, TemplateError::Refused { reason } if reason == "roles must alternate"),
            "{error}"
        );
    }

    #[test]
    fn errors_are_one_line() {
        for source in [
            "{% if %}",
            "{{ messages.nothing.at.all }}",
            "{{ 1 / 0 }}",
            "{{ 'a'.no_such_method() }}",
        ] {
            let error = template(source)
                .render(&[Message::user("x")], true)
                .expect_err(source)
                .to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.contains("raw prompt"), "{error}");
        }
    }

    #[test]
    fn too_many_messages_are_named() {
        let messages = vec![Message::user("x"); MOST_OPERATIONS as usize / 10];
        let error = template(CHAT_ML).render(&messages, true).expect_err("it has no end");
        assert!(error.to_string().contains("too many messages"), "{error}");
        assert!(template(CHAT_ML).render(&messages[..2000], true).is_ok());
    }

    #[test]
    fn a_string_that_doubles_without_end_is_refused() {
        for doubled in [
            "ns.s ~ ns.s",
            "ns.s + ns.s",
            "ns.s * 2",
            "[ns.s, ns.s] | join",
            "ns.s | replace('a', ns.s)",
            "ns.s.replace('a', ns.s)",
            "ns.s.join([ns.s, ns.s])",
        ] {
            let source = format!(
                "{{% set ns = namespace(s='ab') %}}{{% for i in range(100) %}}{{% set ns.s = {doubled} %}}{{% endfor %}}"
            );
            let error = template(&source).render(&[], true).expect_err(doubled);
            assert!(matches!(error, TemplateError::Failed { .. }), "{doubled}: {error}");
        }
    }

    #[test]
    fn python_habits_of_templates_work() {
        let source = "{%- set ns = namespace(found=false) -%}
            {%- for message in messages -%}
                {%- if message['role'].startswith('us') and not tools and documents is none -%}
                    {%- set ns.found = true -%}
                    {{- bos_token + message.content.strip().split('|')[-1] ~ (messages | length) -}}
                {%- endif -%}
                {%- if loop.last %}{% break %}{% endif -%}
            {%- endfor -%}
            {{- ns.found }} {{ messages[::-1][0].role }} {{ strftime_now('%Y') | length -}}";
        let rendered = template(source)
            .render(&[Message::user(" a|b ")], true)
            .expect("it renders");
        assert_eq!(rendered, "<|endoftext|>b1True user 4");
    }

    #[test]
    fn a_follow_up_is_what_comes_after_the_answer() {
        let tokenizer = tokenizer();
        let template = template(CHAT_ML);
        let history = [Message::user("one"), Message::assistant("two")];
        let next = [Message::user("three<|im_end|>")];
        let tokens = template
            .encode_follow_up(&tokenizer, &history, &next)
            .expect("ChatML keeps answers");
        let text = tokenizer.decode_special(&tokens);
        assert_eq!(
            text,
            "<|im_end|>\n<|im_start|>user\nthree<|im_end|><|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(tokens.iter().filter(|&&token| tokenizer.is_eos(token)).count(), 2);

        let forgetful = ChatTemplate::new("{{ messages[-1].content }}", &tokenizer);
        let error = forgetful
            .encode_follow_up(&tokenizer, &history, &next)
            .expect_err("the answer is not there");
        assert!(matches!(error, TemplateError::NoFollowUp));
    }
}
