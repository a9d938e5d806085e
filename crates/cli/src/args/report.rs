//! What can be typed after `report` and `trace`?

use std::path::PathBuf;

use clap::Args;

use super::{MethodArguments, OutputArguments, PromptArguments};
use crate::settings;

pub(super) const REPORT_EXAMPLES: &str = "\
Examples:
  inertiakv report results
  inertiakv report results -o report.html --figures figures

The page holds everything it shows and needs no network: a summary with intervals, quality over the budget, quality over \
memory and time, every task, lengths and depths where examples have them, and what was held where the folder has traces \
(`inertiakv trace -o results/trace.jsonl`).";

pub(super) const TRACE_EXAMPLES: &str = "\
Examples:
  inertiakv trace -f report.txt --question \"Who wrote the report?\"
  inertiakv trace --example niah_multikey_1/2048/0 --method inertia:alpha=0.95 -o results/trace.jsonl
  inertiakv trace -f report.txt -n 100 --method score-free --figures figures

Beside the method two shadows run the same tokens and evict nothing: one ranks by the method's own rule (`ema`), one by the \
score of each step alone (`raw`), so that their top B are over the same entries. docs/PAPER.md defines the measures.";

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// The folder of results
    pub(crate) folder: PathBuf,

    /// The page
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "report.html",
        help_heading = "Output"
    )]
    pub(crate) output_file: PathBuf,

    /// Write the plots as SVG and PNG into this folder too
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub(crate) figures: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArguments {
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,

    /// A generated RULER example instead of a text, as TASK/LENGTH/NUMBER
    #[arg(
        long,
        value_name = "EXAMPLE",
        conflicts_with_all = ["prompt", "file", "question", "system", "raw"],
        help_heading = "Input"
    )]
    pub(crate) example: Option<String>,

    #[command(flatten)]
    pub(crate) method: MethodArguments,

    /// Most tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = settings::at_least_one, help_heading = "Generation")]
    pub(crate) max_tokens: usize,

    /// Go on past the model's end of turn, up to -n tokens
    #[arg(long, help_heading = "Generation")]
    pub(crate) ignore_end: bool,

    /// Write every step with its retained and its raw top set to this file, as JSON Lines
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output_file: Option<PathBuf>,

    /// Draw churn, agreement, what is held, and two tokens at the border, as SVG and PNG in this folder
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub(crate) figures: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}
