//! What can be typed after `eval`?

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use inertiakv::policy::{Budget, Method};
use inertiakv_eval::grid::Shard;
use inertiakv_eval::load::{KvpressData, NeedleProfile};
use inertiakv_eval::metrics::ScoringProfile;
use inertiakv_eval::ruler::{RulerProfile, RulerTask};

use super::{BudgetArguments, ContextArguments, ModelArguments, OutputArguments};
use crate::settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  inertiakv eval ruler --lengths 1024 --tasks niah_single_1,niah_multikey_1 --samples 5 -o results
  inertiakv eval file questions.jsonl --methods \"inertia;snapkv;streaming-llm\" --budget 20% -o results
  inertiakv eval longbench LongBench/data --config LongBench/config --tasks qasper,hotpotqa -o results
  inertiakv eval grid experiment.toml -o results --samples 2
  inertiakv eval show results --rules \"inertia:alpha=0;inertia;inertia:alpha=0.95\"
  inertiakv eval export results --parquet results.parquet

Every example is prefilled once and goes on under every method from a fork of that cache. Results are added to \
results.jsonl in the folder, one JSON object per example and method; the same command goes on where it stopped. \
docs/EVALUATION.md says which benchmark takes which file.";

#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Tasks of RULER, generated for any length, or the official files
    Ruler(RulerArguments),
    #[command(about = "LongBench and LongBench-E: the original files")]
    Longbench(LongBenchArguments),
    #[command(about = "LongBench-v2: the original file")]
    LongbenchV2(LongBenchV2Arguments),
    /// A sentence hidden in a long text, lengths × depths
    Needle(NeedleArguments),
    /// Rows of a data set for kvpress
    Kvpress(KvpressArguments),
    /// Your own questions: JSON Lines with context, question and answers
    File(EvalFileArguments),
    /// Models × examples × methods × budgets from a TOML file
    Grid(GridArguments),
    /// What a folder of results comes to
    Show(EvalShowArguments),
    /// Put the results of several machines into one folder
    Merge(MergeArguments),
    /// Write results for other programs
    Export(ExportArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RulerArguments {
    /// Lengths of the prompts in tokens [default: 1024, or all that there are files of]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = settings::at_least_one, help_heading = "Examples")]
    pub(crate) lengths: Vec<usize>,

    /// Tasks by their official names
    /// [default: all, with our fact sets in place of question tasks without their file]
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', help_heading = "Examples")]
    pub(crate) tasks: Vec<RulerTask>,

    /// Whose rules: `own`, `ruler-2026`, `ruler-legacy` or `kvpress`
    #[arg(long, value_name = "NAME", default_value = "own", help_heading = "Examples")]
    pub(crate) profile: RulerProfile,

    /// Another seed, other examples
    #[arg(long, value_name = "N", default_value_t = 42, help_heading = "Examples")]
    pub(crate) seed: u64,

    /// Take these files instead: a folder of task folders with validation.jsonl, or of such folders by length
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["profile", "seed", "wording", "words", "essays", "squad", "hotpotqa"], help_heading = "Files")]
    pub(crate) files: Option<PathBuf>,

    /// Prompt texts of a checkout of RULER instead of ours
    #[arg(long, value_name = "FOLDER", help_heading = "Files")]
    pub(crate) wording: Option<PathBuf>,

    /// Word lists instead of ours: nounlist.txt, adjectivelist.txt and verblist.txt of the Python package wonderwords
    #[arg(long, value_name = "FOLDER", help_heading = "Files")]
    pub(crate) words: Option<PathBuf>,

    /// A text as haystack instead of ours
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) essays: Option<PathBuf>,

    #[arg(
        long,
        value_name = "FILE",
        help = "SQuAD 2.0 (dev-v2.0.json), for qa_1",
        help_heading = "Files"
    )]
    pub(crate) squad: Option<PathBuf>,

    #[arg(
        long,
        value_name = "FILE",
        help = "HotpotQA (hotpot_dev_distractor_v1.json), for qa_2",
        help_heading = "Files"
    )]
    pub(crate) hotpotqa: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

#[derive(Debug, Args)]
pub(crate) struct LongBenchArguments {
    /// A file such as `qasper.jsonl` or `qasper_e.jsonl`, or a folder of them
    pub(crate) path: PathBuf,

    /// Tasks by their official names, with `_e` for LongBench-E [default: all files that are there]
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', help_heading = "Examples")]
    pub(crate) tasks: Vec<String>,

    /// `LongBench/config` of a checkout: the official prompts and lengths of answers instead of ours
    #[arg(long, value_name = "FOLDER", help_heading = "Files")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) profile: ScoringArguments,
    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

#[derive(Debug, Args)]
pub(crate) struct LongBenchV2Arguments {
    /// The file data.json
    pub(crate) path: PathBuf,

    /// `prompts/0shot.txt` of a checkout: the official prompt instead of ours
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) prompt: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) profile: ScoringArguments,
    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

/// Whose rules.
#[derive(Debug, Args)]
#[command(next_help_heading = "Examples")]
pub(crate) struct ScoringArguments {
    /// Whose rules cut prompts and score answers: `official` or `kvpress`
    #[arg(long, value_name = "NAME", default_value = "official", value_parser = settings::named::<ScoringProfile>)]
    pub(crate) profile: ScoringProfile,
}

#[derive(Debug, Args)]
pub(crate) struct NeedleArguments {
    /// Lengths of the prompts in tokens [default: 10000 to 120000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = settings::at_least_one, help_heading = "Examples")]
    pub(crate) lengths: Vec<usize>,

    /// Where the sentence lies, in percent [default: nine places from start to end]
    #[arg(long, value_name = "X,…", value_delimiter = ',', help_heading = "Examples")]
    pub(crate) depths: Vec<f64>,

    /// Whose rule puts it there: `kvpress` or `kamradt`
    #[arg(long, value_name = "NAME", default_value = "kvpress", value_parser = settings::named::<NeedleProfile>, help_heading = "Examples")]
    pub(crate) profile: NeedleProfile,

    /// A row of kvpress's essays (JSON) with context, needle and question, instead of ours
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) source: Option<PathBuf>,

    /// A text as haystack, with our sentence
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) essays: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

#[derive(Debug, Args)]
pub(crate) struct KvpressArguments {
    /// The rows, exported to JSON Lines or to a JSON array in a .json file
    pub(crate) path: PathBuf,

    /// Which data set: `ruler`, `longbench`, `longbench-e` or `longbench-v2`
    #[arg(long, value_name = "NAME", value_parser = settings::named::<KvpressData>, help_heading = "Examples")]
    pub(crate) data: KvpressData,

    /// Which tasks [default: all that are there]
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', help_heading = "Examples")]
    pub(crate) tasks: Vec<String>,

    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

#[derive(Debug, Args)]
pub(crate) struct EvalFileArguments {
    /// JSON Lines of `context`, `question` and `answers`; also `id`, `task`, `answer_prefix`, `max_new_tokens`, `metric`,
    /// `first_line` and `classes`. Any other key is a label to group by
    pub(crate) file: PathBuf,

    /// Which tasks [default: all that are there]
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', help_heading = "Examples")]
    pub(crate) tasks: Vec<String>,

    #[command(flatten)]
    pub(crate) run: EvalRunArguments,
}

#[derive(Debug, Args)]
pub(crate) struct GridArguments {
    /// The TOML file; flags replace what it says
    pub(crate) file: PathBuf,

    /// Models: names that `inertiakv models list` shows, GGUF files or Hugging Face folders
    #[arg(
        short,
        long = "models",
        value_name = "MODEL,…",
        value_delimiter = ',',
        help_heading = "Model"
    )]
    pub(crate) models: Vec<String>,

    /// Tasks, of every benchmark in the grid that has tasks
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', help_heading = "Examples")]
    pub(crate) tasks: Vec<String>,

    /// Lengths, of every benchmark in the grid that has lengths
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = settings::at_least_one, help_heading = "Examples")]
    pub(crate) lengths: Vec<usize>,

    #[command(flatten)]
    pub(crate) samples: SampleArguments,

    /// Methods to run beside `full`, separated by semicolons
    #[arg(long, value_name = "METHODS", value_delimiter = ';', help_heading = "Method")]
    pub(crate) methods: Vec<Method>,

    /// What stays in the cache, one or several: `10%` of the prompt's entries, or `512` entries
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = settings::budget, help_heading = "Method")]
    pub(crate) budgets: Vec<Budget>,

    #[command(flatten)]
    pub(crate) pace: PaceArguments,
    #[command(flatten)]
    pub(crate) folder: FolderArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct EvalShowArguments {
    /// The folder of results
    pub(crate) folder: PathBuf,

    /// The method that the others are compared with
    #[arg(long, value_name = "METHOD", default_value = "full")]
    pub(crate) against: Method,

    /// Two or more methods, the least smoothing first, separated by semicolons: on how many examples do all of them score
    /// the same, and where does smoothing hurt (adaptation lag) or help?
    #[arg(long, value_name = "METHODS", value_delimiter = ';')]
    pub(crate) rules: Vec<Method>,

    /// The interval of every task too
    #[arg(long)]
    pub(crate) tasks: bool,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct MergeArguments {
    /// Folders of results
    #[arg(required = true, value_name = "FOLDER")]
    pub(crate) folders: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) folder: FolderArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("format").required(true).multiple(true).args(["parquet", "kvpress"]))]
pub(crate) struct ExportArguments {
    /// The folder of results
    pub(crate) folder: PathBuf,

    #[arg(
        long,
        value_name = "FILE",
        help = "One table with a row per example and method, for pandas or DuckDB"
    )]
    pub(crate) parquet: Option<PathBuf>,

    /// Folders as kvpress's evaluation makes them, each with predictions.csv, metrics.json and config.yaml
    #[arg(long, value_name = "FOLDER")]
    pub(crate) kvpress: Option<PathBuf>,
}

/// Which part is run, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub(crate) struct PaceArguments {
    /// Run only a part of the examples: `2/4` is the second of four, and `eval merge` puts the parts together
    #[arg(long, value_name = "I/N")]
    pub(crate) shard: Option<Shard>,

    /// Let methods answer one after the other instead of all in one batch: the same tokens, slower, but each record's
    /// decode speed is the method's own
    #[arg(long)]
    pub(crate) apart: bool,

    /// Say what there is to run and what it will cost, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// How many examples.
#[derive(Debug, Args)]
#[command(next_help_heading = "Examples")]
pub(crate) struct SampleArguments {
    /// Examples per task and length: of a file the first ones [default: 5 that are generated, all of a file]
    #[arg(long, value_name = "N", value_parser = settings::at_least_one)]
    pub(crate) samples: Option<usize>,

    /// Most examples in all, spread evenly over what there is
    #[arg(long, value_name = "N", value_parser = settings::at_least_one)]
    pub(crate) limit: Option<usize>,
}

/// Where results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct FolderArguments {
    /// Folder of the results; what it has already is not run again
    #[arg(short, long, value_name = "FOLDER", default_value = "results")]
    pub(crate) output_folder: PathBuf,
}

/// How examples are run.
#[derive(Debug, Args)]
pub(crate) struct EvalRunArguments {
    #[command(flatten)]
    pub(crate) samples: SampleArguments,

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

    /// Folder of the installed Python package jieba 0.42, whose dictionary Chinese tasks are scored with
    #[arg(long, value_name = "FOLDER", help_heading = "Files")]
    pub(crate) chinese: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) pace: PaceArguments,
    #[command(flatten)]
    pub(crate) folder: FolderArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}
