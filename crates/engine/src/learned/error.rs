//! What can go wrong with a trained scorer, and what to do about it?

use std::io;
use std::path::PathBuf;

use super::ScorerShape;

/// Why a scorer cannot be used, trained or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages are the documentation, the fields their blanks")]
pub enum ScorerError {
    #[error("the scorer `{}` cannot be read; name a file that `inertiakv train-scorer` wrote", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the scorer `{}` cannot be written; choose another file", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("`{}` is not a scorer that `inertiakv train-scorer` wrote, or it is damaged ({what}); train one", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error(
        "the scorer was trained on `{trained}`, {found}, but this model has {model}; train one for this model with \
         `inertiakv train-scorer`"
    )]
    OtherShape {
        trained: String,
        found: ScorerShape,
        model: ScorerShape,
    },
    #[error(
        "`{what}` ranks by a trained scorer and the model has none; train one with `inertiakv train-scorer` and load it \
         with the model (--scorer)"
    )]
    Missing { what: String },
    #[error("`{scorer}` does not score for one query, so it cannot be compared with the attention of one")]
    NotOfAQuery { scorer: String },
    #[error("{name} is {value}, but must be {range}")]
    Option {
        name: &'static str,
        value: String,
        range: String,
    },
    #[error(
        "a text of {tokens} tokens is too short to train on: one window and the tenth that is held out take {needed}; \
         give a longer text or a smaller window"
    )]
    TextTooShort { tokens: usize, needed: usize },
    #[error(
        "the training cannot be resumed with another {what} (it was {before}, now it is {now}); give what it began with, \
         or train into another file"
    )]
    Resumed {
        what: &'static str,
        before: String,
        now: String,
    },
    #[error("`{}` is a scorer without the state of its training, which cannot be resumed; train into another file", path.display())]
    NotResumable { path: PathBuf },
    #[error("the training went astray: the loss at step {step} is not finite; lower the learning rate")]
    Diverged { step: usize },
}

/// As errors say it: `30 layers of 9/3 heads of 64`.
impl std::fmt::Display for ScorerShape {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} layers of {}/{} heads of {}",
            self.layers, self.heads, self.kv_heads, self.head_dim
        )
    }
}
