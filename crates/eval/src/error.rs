//! What can go wrong in an evaluation, each time with what to do next.

use std::io;
use std::path::PathBuf;

use crate::metrics::Metric;
use crate::ruler::RulerTask;

/// Failures of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// No profile of RULER.
    #[error("`{name}` is no profile of RULER; use one of own, ruler-2026, ruler-legacy, kvpress")]
    UnknownProfile {
        /// The name as written.
        name: String,
    },
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] inertiakv::Error),
    /// A prompt that does not fit, of a benchmark that does not cut.
    #[error(
        "`{id}` takes {tokens} tokens with its answer, but the context is {limit}; leave it out or use a longer context"
    )]
    TooLong {
        /// The example.
        id: String,
        /// Tokens it takes.
        tokens: usize,
        /// Tokens there are.
        limit: usize,
    },
    /// A method that had to evict and did not.
    #[error(
        "`{method}` evicted nothing of {entries} entries although its budget is {budget}; its score would be that of `full`"
    )]
    NoEviction {
        /// The method.
        method: String,
        /// Entries of the prompt.
        entries: usize,
        /// Its budget.
        budget: usize,
    },
    /// A method whose ranking does not live through the steps.
    #[error("`{method}` ranks nothing while decoding, so there is nothing to trace; take one such as `inertia`")]
    NoRanking {
        /// The method.
        method: String,
    },
    /// A method whose ranking is not comparable with that of a full cache.
    #[error(
        "`{method}` compresses the prompt first, and then its KV heads may hold different entries, which one ranking over a \
         full cache cannot be compared with; trace what it does while decoding alone: `{decode}`"
    )]
    CompressedRanking {
        /// The method.
        method: String,
        /// Its half of decoding.
        decode: String,
    },
    /// Another run has the results open.
    #[error("another run writes to {}; wait for it, or choose another folder", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A folder of results cannot be read.
    #[error("{} cannot be read; give a folder of results, which `inertiakv eval … -o FOLDER` writes", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder of results cannot be written.
    #[error(
        "results cannot be written to {}; give a folder (-o) that can be written, on a disk with space", path.display()
    )]
    ResultsUnwritable {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line of results that is no record.
    #[error("{}:{line} is no record ({reason}); move the file away or repair the line", path.display())]
    NotARecord {
        /// The file.
        path: PathBuf,
        /// Line number.
        line: usize,
        /// Why.
        reason: String,
    },
    /// Two folders of results disagree.
    #[error(
        "`{id}` under `{method}` has one answer in {} and another in {}, with the same key; one of the two comes from another \
         build or machine, so leave one out", first.display(), second.display()
    )]
    Conflict {
        /// The example.
        id: String,
        /// The method.
        method: String,
        /// One folder.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A file of an export cannot be written.
    #[error("{} cannot be written; choose another place", path.display())]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An example's answers do not fit its metric.
    #[error("the answer cannot be scored by the metric `{metric}`: {what}")]
    Reference {
        /// How it should have been scored.
        metric: Metric,
        /// What is missing, and what to do.
        what: String,
    },
    /// A Chinese task without a segmenter.
    #[error(
        "`{metric}` counts Chinese words by the dictionary of the Python package jieba 0.42.1; install it \
         (`python3 -m pip install jieba==0.42.1`) and give its folder"
    )]
    NoChineseWords {
        /// How it should have been scored.
        metric: Metric,
    },
    /// A file of the jieba package is missing or different.
    #[error("{} cannot be read as a file of jieba 0.42: {what}; give the folder of an installed package", path.display())]
    Jieba {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A value that cannot be averaged or ranked.
    #[error("value number {index} is NaN; find out which run produced it, since it cannot be averaged or ranked")]
    NotANumber {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// An example that only one of two methods has answered.
    #[error(
        "the example `{id}` has a result of only one of the two methods; run both on the same examples (a failed example \
         counts as 0, a missing one cannot be paired)"
    )]
    Unpaired {
        /// The example.
        id: String,
    },
    /// Two rankings of different cache entries.
    #[error("the two rankings hold different positions; restrict both to what they share")]
    OtherPositions,
    /// A file cannot be read at all.
    #[error("{} cannot be read; check the path", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file is not of the format that was expected.
    #[error("{}:{line}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// A length in which the task's shortest sample does not fit.
    #[error(
        "{task} does not fit into {length} tokens, its shortest sample takes about {needed}; ask for a length of that or a little \
         more"
    )]
    TooShort {
        /// The task.
        task: RulerTask,
        /// Tokens asked for, answer included.
        length: usize,
        /// Tokens needed, about: samples depend a little on the length.
        needed: usize,
    },
    /// A question task without its data.
    #[error("{task} asks the questions of {file}; give that file, or take facts_1 and facts_2, which need none")]
    NoQuestions {
        /// The task.
        task: RulerTask,
        /// The data set and its file.
        file: &'static str,
    },
    /// An index beyond the last question.
    #[error("{task} has {available} questions, so there is no sample {index}; ask for fewer samples")]
    NoSuchQuestion {
        /// The task.
        task: RulerTask,
        /// The index asked for, from 0.
        index: usize,
        /// How many questions there are.
        available: usize,
    },
    /// A task that no benchmark has.
    #[error("there is no task `{name}`; known tasks: {known}")]
    UnknownTask {
        /// The name.
        name: String,
        /// What there is.
        known: String,
    },
    /// A configuration without a task.
    #[error("the configuration has no prompt and length for `{task}`; give the config folder of a LongBench checkout")]
    NoPrompt {
        /// The task.
        task: String,
    },
    /// What was asked for cannot be done, or contradicts itself.
    #[error("{0}")]
    Setting(String),
    /// A grid of lengths and depths that cannot be filled.
    #[error("the needle grid cannot be filled: {0}")]
    Grid(String),
}
