//! What can be typed after `eval`?

use std::path::PathBuf;

use clap::{Args, Subcommand};
use inertiakv::policy::Method;
use inertiakv_eval::ruler::{RulerProfile, RulerTask};

use super::{BudgetArguments, ContextArguments, ModelArguments, OutputArguments};
use crate::settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  inertiakv eval ruler --lengths 1024 --tasks niah_single_1,niah_multikey_1 --samples 5 -o results
  inertiakv eval file questions.jsonl --methods \"inertia;snapkv;streaming-llm\" --budget 20% -o results
  inertiakv eval show results

Every example is prefilled once and goes on under every method from a fork of that cache. Results are added to \
results.jsonl in the folder, one JSON object per example and method; the same command goes on where it stopped. A file \
has one JSON object per line with `context`, `question` and `answers`.";

#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Tasks of RULER, generated for any length
    Ruler(RulerArguments),
    /// Your own questions: JSON Lines with context, question and answers
    File(EvalFileArguments),
    /// What a folder of results comes to
    Show(EvalShowArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RulerArguments {
    /// Lengths of the prompts in tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = settings::at_least_one, default_values_t = [1024], help_heading = "Examples")]
    pub(crate) lengths: Vec<usize>,

    /// Tasks by their official names [default: all, with our fact sets in place of the two question tasks]
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', help_heading = "Examples")]
    pub(crate) tasks: Vec<RulerTask>,

    /// Whose rules: `own`, `ruler-2026`, `ruler-legacy` or `kvpress`
    #[arg(long, value_name = "NAME", default_value = "own", help_heading = "Examples")]
    pub(crate) profile: RulerProfile,

    /// Another seed, other examples
    #[arg(long, value_name = "N", default_value_t = 42, help_heading = "Examples")]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

#[derive(Debug, Args)]
pub(crate) struct EvalFileArguments {
    /// The file
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

#[derive(Debug, Args)]
pub(crate) struct EvalShowArguments {
    /// The folder of results
    pub(crate) folder: PathBuf,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// How examples are run.
#[derive(Debug, Args)]
pub(crate) struct EvalRunArguments {
    /// Examples per task and length, or of a file [default: 5, or all]
    #[arg(long, value_name = "N", value_parser = settings::at_least_one, help_heading = "Examples")]
    pub(crate) samples: Option<usize>,

    /// Methods to run beside `full`, separated by semicolons
    /// [default: inertia;inertia-lazy;score-free;snapkv;streaming-llm]
    #[arg(long, value_name = "METHODS", value_delimiter = ';', help_heading = "Method")]
    pub(crate) methods: Vec<Method>,

    #[command(flatten)]
    pub(crate) budget: BudgetArguments,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) context: ContextArguments,

    /// Folder of the results; what it has already is not run again
    #[arg(
        short,
        long,
        value_name = "FOLDER",
        default_value = "results",
        help_heading = "Output"
    )]
    pub(crate) output_folder: PathBuf,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}
