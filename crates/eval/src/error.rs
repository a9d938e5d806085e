//! What can go wrong in an evaluation, each time with what to do next.

use std::path::PathBuf;

use crate::metrics::Metric;

/// Failures of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// An example's references do not fit its metric.
    #[error("the answer cannot be scored with {metric:?}: {what}; correct the example's references")]
    Reference {
        /// How it should have been scored.
        metric: Metric,
        /// What is missing.
        what: String,
    },
    /// A Chinese task without a segmenter.
    #[error(
        "{metric:?} counts Chinese words by the dictionary of the Python package jieba 0.42.1; install it \
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
}
