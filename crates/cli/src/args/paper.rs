//! What can be typed after `paper`?

use std::path::PathBuf;

use clap::{Args, Subcommand};
use inertiakv_eval::experiment::Data;

use super::{ContextArguments, ModelArguments, OutputArguments};
use crate::settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  inertiakv paper list
  inertiakv paper run proposition1
  inertiakv paper run table4 --lengths 1024,2048 --samples 3 --tasks niah_single_2,vt -o paper
  inertiakv paper run beyond-a -m qwen2.5-coder-0.5b --lengths 2048 --samples 10 -o paper
  inertiakv paper run my-table.toml --data longbench=LongBench/data

Writes ITEM.md, ITEM.csv and ITEM.json with the paper's own numbers beside ours, and figures as SVG and PNG. Answers go to \
results.jsonl in the same folder, so that a run which was stopped goes on, and items share them. Without --lengths and \
--samples an item runs at the scale of its file, which is meant for a large machine. docs/PAPER.md lists all items.";

#[derive(Debug, Args)]
pub(crate) struct PaperArguments {
    #[command(subcommand)]
    pub(crate) command: PaperCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PaperCommand {
    /// Every table, figure and study, what it shows and what it needs
    List(OutputArguments),
    /// Run one of them
    Run(Box<PaperRunArguments>),
}

#[derive(Debug, Args)]
pub(crate) struct PaperRunArguments {
    /// A name that `paper list` shows, or a TOML file of the same form
    pub(crate) item: String,

    /// Lengths instead of the item's: prompts, or contexts of speed items
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = settings::at_least_one, help_heading = "Scale")]
    pub(crate) lengths: Vec<usize>,

    /// Examples per task and length instead of the item's; rounds of speed items
    #[arg(long, value_name = "N", value_parser = settings::at_least_one, help_heading = "Scale")]
    pub(crate) samples: Option<usize>,

    /// Tasks of RULER instead of the item's
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', help_heading = "Scale")]
    pub(crate) tasks: Vec<String>,

    /// A file or folder that you have, as NAME=PATH; names: longbench, longbench-config, longbench-v2, squad, hotpotqa,
    /// essays
    #[arg(long, value_name = "NAME=PATH", value_parser = data, help_heading = "Scale")]
    pub(crate) data: Vec<(String, PathBuf)>,

    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) context: ContextArguments,

    /// Folder of what is written
    #[arg(short, long, value_name = "FOLDER", default_value = "paper", help_heading = "Output")]
    pub(crate) output_folder: PathBuf,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

fn data(text: &str) -> Result<(String, PathBuf), String> {
    let known = Data::NAMES.join(", ");
    let (name, path) = text
        .split_once('=')
        .ok_or_else(|| format!("write NAME=PATH; names: {known}"))?;
    if !Data::NAMES.contains(&name) || path.is_empty() {
        return Err(format!("there is no data `{name}`; names: {known}"));
    }
    Ok((name.to_owned(), path.into()))
}
