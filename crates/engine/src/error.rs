//! What can go wrong, and what to do about it?

use inertiakv_kernels::cache::CacheError;
use inertiakv_kernels::isa::UnknownIsa;
use inertiakv_kernels::linear::{LinearError, WeightType};
use inertiakv_policy::PolicyError;

use crate::chat_template::TemplateError;
use crate::config::ConfigError;
use crate::gguf::GgufError;
use crate::hugging_face::FolderError;
use crate::learned::ScorerError;
use crate::tokenizer::TokenizerError;

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages are the documentation, the fields their blanks")]
pub enum Error {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Scorer(#[from] ScorerError),
    #[error(transparent)]
    Isa(#[from] UnknownIsa),
    #[error("tensor `{name}` cannot be used: {reason}")]
    Tensor { name: String, reason: LinearError },
    #[error("tensor `{name}` has the dimensions {dimensions:?} where a matrix is needed; the file is damaged")]
    NotAMatrix { name: String, dimensions: Vec<usize> },
    #[error("the tokenizer has {tokenizer} tokens but the model only {model}; the file is damaged")]
    Vocabulary { tokenizer: usize, model: usize },
    #[error(
        "{needed} tokens are more than the context of {context}; shorten the text, or raise the context if the model \
         allows it"
    )]
    ContextFull { needed: usize, context: usize },
    #[error("a context of {asked} is outside 1 to {limit}, which is what this model was made for")]
    ContextOption { asked: usize, limit: usize },
    #[error("no weights of this model are floats that could become {kind}; leave the quantisation out")]
    NothingToQuantise { kind: WeightType },
    #[error("there are no tokens to run; give a prompt that is not empty")]
    NoTokens,
    #[error("nothing has been prefilled; prefill a prompt before the first step")]
    NoPrompt,
    #[error("token {token} is outside the vocabulary of {vocabulary}; use the tokenizer of this model")]
    UnknownToken { token: u32, vocabulary: usize },
    #[error("the prompt is complete once a step has run; use a new session or a follow-up turn")]
    PrefillAfterStep,
    #[error("a session that has taken a step can only be forked under its own method; fork it right after prefill")]
    ForkAfterStep,
    #[error("the prompt of `{method}` was compressed when it was complete; prefill it in one piece")]
    PromptInPieces { method: String },
    #[error("a compressed prompt can only be forked under its own method; fork the prompt before, or prefill it again")]
    ForkCompressed,
    #[error("a prefill that has begun cannot remember more; say what its forks need before it")]
    PrefillBegun,
    #[error("`{method}` compresses the prompt while it runs, so it cannot share a prefill; give it one of its own")]
    OwnPrefill { method: String },
    #[error("the prefill did not remember what `{method}` needs of the prompt; name the method before the prefill")]
    NotRemembered { method: String },
    #[error(
        "to repeat a prompt of {prompt} tokens takes {reading} more positions, but the model has {limit}; shorten the \
         prompt, or lower `chunk`"
    )]
    NoRoomToRepeat {
        prompt: usize,
        reading: usize,
        limit: usize,
    },
    #[error(
        "a prefix of {prefix} tokens cannot be taken from a session that has run {position} or has taken a step; prefill \
         it anew"
    )]
    NoPrefix { prefix: usize, position: usize },
    #[error("an earlier error or cancellation left this session incomplete; start a new one")]
    Broken,
    #[error("{steps} steps for {sessions} sessions; give every session its tokens")]
    BatchLength { sessions: usize, steps: usize },
    #[error("sessions of different engines cannot step together; open the model once")]
    BatchEngine,
    #[error("cancelled")]
    Cancelled,
    #[error(
        "{place} produced a number that is not finite, so the output would be noise; the model file is probably \
         damaged, check its SHA-256"
    )]
    NotFinite { place: String },
    #[error("{name} is {value}, but must be {range}")]
    Sampling {
        name: &'static str,
        value: f32,
        range: &'static str,
    },
    #[error("a perplexity window of {window} tokens is not possible; choose one from 4 to the context of {context}")]
    Window { window: usize, context: usize },
    #[error(
        "a prompt of {prompt} tokens and {steps} measured and warm-up steps are more than the model's context of {context}; \
         measure a shorter prompt or fewer steps"
    )]
    BenchContext {
        prompt: usize,
        steps: usize,
        context: usize,
    },
    #[error(
        "{sequences} sequences of {context} tokens and their copies need {mebibytes} MiB of cache, more than this \
         machine has; measure fewer or shorter ones"
    )]
    BenchMemory {
        mebibytes: usize,
        sequences: usize,
        context: usize,
    },
    #[error("the machine's limits cannot be measured: {0}")]
    Measurement(LinearError),
    #[error("nothing would be measured; ask for at least one method, one token, one round and one sequence")]
    NothingToMeasure,
    #[error("perplexity over no windows is not defined; ask for at least one")]
    NoWindows,
    #[error("{asked} threads are not possible; choose 1 to {limit}")]
    Threads { asked: usize, limit: usize },
    #[error("the method scores the last {asked} queries of a step, but at most {limit} are possible; lower `window`")]
    ScoringWindow { asked: usize, limit: usize },
    #[error(
        "in tokens the text is {tokens} long, less than one window of {window}; give a longer text or a smaller window"
    )]
    TextTooShort { tokens: usize, window: usize },
}
