//! What can be typed about scorers?

use std::path::PathBuf;

use clap::Args;
use inertiakv::Schedule;
use inertiakv::policy::Budget;

use super::{ModelArguments, OutputArguments};
use crate::settings;

pub(super) const TRAIN_EXAMPLES: &str = "\
Examples:
  inertiakv train-scorer -f notes.txt -o scorer.safetensors
  inertiakv train-scorer -f notes.txt -o scorer.safetensors --resume
  inertiakv run --scorer scorer.safetensors --method learned -f report.txt --question \"Who wrote it?\"
  inertiakv correlate --scorer scorer.safetensors -f report.txt

The scorer learns to rank entries as attention does: every step runs the model over a window of the text, and in every \
layer compares what the scorer says with the attention of a few queries. The last tenth of the text is held out; how well \
the scorer ranks there, before and after, is the result. A scorer belongs to the model it was trained on.

The file is written every --save-every steps, when Ctrl-C stops the training, and at the end. The same command with \
--resume goes on where the file ends and comes to the same scorer, bit for bit, as if it had not been stopped.";

pub(super) const CORRELATE_EXAMPLES: &str = "\
Examples:
  inertiakv correlate -f report.txt
  inertiakv correlate -m qwen2.5-coder-0.5b -f report.txt --tokens 8000 --queries 64
  inertiakv correlate -f report.txt --scorer scorer.safetensors --json

At some queries of the text every scorer scores the entries of every layer and is compared with the attention that the \
query pays to them (the mean over heads): by Spearman's rank correlation, and by the Jaccard index of the best entries, \
as many as --budget keeps. Columns are the mean over layers, the least and the most of any layer, and the middle layer.";

#[derive(Debug, Args)]
pub(crate) struct TrainScorerArguments {
    /// The text to train on; `-` is standard input
    #[arg(short, long, value_name = "FILE", help_heading = "Input")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Updates of the parameters
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = settings::at_least_one, help_heading = "Training")]
    pub(crate) steps: usize,

    /// Learning rate, at the beginning
    #[arg(
        long,
        visible_alias = "learning-rate",
        value_name = "X",
        default_value_t = 0.003,
        help_heading = "Training"
    )]
    pub(crate) lr: f32,

    /// What becomes of the learning rate: `cosine` falls to zero, `constant` stays and can be resumed to more steps
    #[arg(long, value_name = "NAME", default_value = "cosine", help_heading = "Training")]
    pub(crate) schedule: Schedule,

    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Training")]
    pub(crate) window: usize,

    /// Queries of a window to learn from
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = settings::at_least_one, help_heading = "Training")]
    pub(crate) queries: usize,

    /// Seed of the first weights and of the windows
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Training")]
    pub(crate) seed: u64,

    /// Go on with the training that --output ends with
    #[arg(long, help_heading = "Training")]
    pub(crate) resume: bool,

    /// The scorer to write; one that is there is replaced only with --resume
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: PathBuf,

    /// Write it after every N steps, too
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = settings::at_least_one, help_heading = "Output")]
    pub(crate) save_every: usize,

    /// Print the result as JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CorrelateArguments {
    /// The text; `-` is standard input
    #[arg(short, long, value_name = "FILE", help_heading = "Input")]
    pub(crate) file: PathBuf,

    /// Most tokens of the text to use, from its beginning
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = settings::at_least_one, help_heading = "Input")]
    pub(crate) tokens: usize,

    /// Queries to look at, drawn from the last three quarters of the text
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = settings::at_least_one, help_heading = "Input")]
    pub(crate) queries: usize,

    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Input")]
    pub(crate) seed: u64,

    /// How many entries are the best: `10%` of them, or `512`
    #[arg(long, value_name = "SIZE", default_value = "10%", value_parser = settings::budget, help_heading = "Input")]
    pub(crate) budget: Budget,

    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}
