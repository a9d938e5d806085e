//! Which kind of failure was it?

use std::fmt;
use std::io;

use inertiakv_eval::EvalError;

/// The command was used wrongly, in a way that only shows after parsing: exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// An error for wrong usage.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    UsageError(message.into()).into()
}

/// Whether the user is to blame for how the command was called.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<UsageError>() || is_wrong_setting(cause) || engine_error(cause).is_some_and(is_wrong_option)
    })
}

/// What was asked for cannot be, which only the evaluation sees.
fn is_wrong_setting(cause: &(dyn std::error::Error + 'static)) -> bool {
    use EvalError::{CompressedRanking, NoChineseWords, NoQuestions, NoRanking, Setting, TooShort, UnknownTask};
    matches!(
        cause.downcast_ref(),
        Some(
            Setting(_)
                | UnknownTask { .. }
                | NoQuestions { .. }
                | NoChineseWords { .. }
                | TooShort { .. }
                | NoRanking { .. }
                | CompressedRanking { .. }
        )
    )
}

/// The engine's error, where the cause is one or says what one says.
fn engine_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a inertiakv::Error> {
    match cause.downcast_ref() {
        Some(EvalError::Engine(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

/// What an option asks for cannot be, which only the library sees.
fn is_wrong_option(error: &inertiakv::Error) -> bool {
    use inertiakv::{Error, ScorerError};
    matches!(
        error,
        Error::Isa(_)
            | Error::Scorer(ScorerError::Missing { .. } | ScorerError::Option { .. } | ScorerError::Resumed { .. })
    )
}

/// Ctrl-C ended the command before it was done.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Whether the user stopped the command. The engine is cancelled for no other reason.
pub(crate) fn is_interruption(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.is::<Interrupted>() || matches!(engine_error(cause), Some(inertiakv::Error::Cancelled)))
}

/// Whether the error is that nobody reads our output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
