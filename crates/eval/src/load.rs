//! From which files do examples come?
//!
//! One function per format; each ends in [`Example`]s. A file that cannot be understood is an error with its line.

mod kvpress;
mod longbench;
mod longbench_v2;
mod needle;
mod ruler;
mod user;

pub use kvpress::{KvpressData, kvpress_rows};
pub use longbench::{LongBench, LongBenchTask};
pub use longbench_v2::LongBenchV2;
pub use needle::{NeedleGrid, NeedleProfile, NeedleSource, TokenText};
pub use ruler::ruler_file;
pub use user::{UserDefaults, user_file};

use std::collections::BTreeSet;
use std::path::Path;

use crate::metrics::Scorer;
use crate::{EvalError, Example};

/// Refuses what could not be told apart, asked or scored after a long run: a second example of the same identifier, nothing
/// to read or to generate, and answers that do not fit their metric.
fn checked(path: &Path, examples: Vec<(usize, Example)>) -> Result<Vec<Example>, EvalError> {
    let mut seen = BTreeSet::new();
    for (line, example) in &examples {
        let bad = |what: String| {
            Err(EvalError::Format {
                path: path.to_owned(),
                line: *line,
                what,
            })
        };
        if !seen.insert(&example.id) {
            return bad(format!(
                "the identifier `{}` occurs a second time; identifiers must be unique",
                example.id
            ));
        }
        if example.context.is_empty() && example.question.is_empty() {
            return bad("context and question are both empty; give at least one of them".to_owned());
        }
        if example.max_new_tokens == 0 {
            return bad("no tokens are left for the answer; `max_new_tokens` must be at least 1".to_owned());
        }
        match Scorer::default().score(&example.scoring, "", &example.answers) {
            // Where jieba is will be said later.
            Ok(_) | Err(EvalError::NoChineseWords { .. }) => {}
            Err(error) => return bad(error.to_string()),
        }
    }
    Ok(examples.into_iter().map(|(_, example)| example).collect())
}
