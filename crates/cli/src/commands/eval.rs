//! `inertiakv eval`: what does eviction cost in quality?

mod export;
mod run;
mod show;

use inertiakv::policy::{Method, Preset};
use inertiakv_eval::grid::{
    Benchmark, Grid, KvpressExamples, LongBenchExamples, LongBenchV2Examples, NeedleExamples, Overrides, OwnExamples,
    RulerExamples, RulerFiles,
};

use crate::args::{EvalArguments, EvalCommand, EvalRunArguments, GridArguments, RulerArguments};
use crate::printer::Printer;
use crate::settings;

pub(crate) fn run(arguments: &EvalArguments, printer: &Printer) -> anyhow::Result<()> {
    let (benchmark, seed, run) = match &arguments.command {
        EvalCommand::Show(arguments) => return show::folder(arguments, printer),
        EvalCommand::Merge(arguments) => return export::merged(arguments, printer),
        EvalCommand::Export(arguments) => return export::export(arguments, printer),
        EvalCommand::Grid(arguments) => return grid(arguments, printer),
        EvalCommand::Ruler(arguments) => (ruler(arguments), Some(arguments.seed), &arguments.run),
        EvalCommand::Longbench(arguments) => {
            let examples = LongBenchExamples {
                path: arguments.path.clone(),
                tasks: arguments.tasks.clone(),
                config: arguments.config.clone(),
                profile: arguments.profile.profile,
            };
            (Benchmark::LongBench(examples), None, &arguments.run)
        }
        EvalCommand::LongbenchV2(arguments) => {
            let examples = LongBenchV2Examples {
                path: arguments.path.clone(),
                prompt: arguments.prompt.clone(),
                profile: arguments.profile.profile,
            };
            (Benchmark::LongBenchV2(examples), None, &arguments.run)
        }
        EvalCommand::Needle(arguments) => {
            let examples = NeedleExamples {
                lengths: arguments.lengths.clone(),
                depths: arguments.depths.clone(),
                profile: arguments.profile,
                source: arguments.source.clone(),
                essays: arguments.essays.clone(),
            };
            (Benchmark::Needle(examples), None, &arguments.run)
        }
        EvalCommand::Kvpress(arguments) => {
            let examples = KvpressExamples {
                path: arguments.path.clone(),
                data: arguments.data,
                tasks: arguments.tasks.clone(),
            };
            (Benchmark::Kvpress(examples), None, &arguments.run)
        }
        EvalCommand::File(arguments) => {
            let examples = OwnExamples {
                path: arguments.file.clone(),
                tasks: arguments.tasks.clone(),
            };
            (Benchmark::File(examples), None, &arguments.run)
        }
    };
    let grid = flags(benchmark, seed, run);
    let ordered = run::Ordered {
        pace: &run.pace,
        folder: &run.folder.output_folder,
        json: run.output.json,
    };
    run::run(&grid, &ordered, printer)
}

fn ruler(arguments: &RulerArguments) -> Benchmark {
    let (tasks, lengths) = (arguments.tasks.clone(), arguments.lengths.clone());
    match &arguments.files {
        Some(path) => Benchmark::RulerFiles(RulerFiles {
            path: path.clone(),
            tasks,
            lengths,
        }),
        None => Benchmark::Ruler(RulerExamples {
            tasks,
            lengths,
            profile: arguments.profile,
            wording: arguments.wording.clone(),
            words: arguments.words.clone(),
            essays: arguments.essays.clone(),
            squad: arguments.squad.clone(),
            hotpotqa: arguments.hotpotqa.clone(),
        }),
    }
}

/// The grid that flags describe: one benchmark on one model.
fn flags(benchmark: Benchmark, seed: Option<u64>, arguments: &EvalRunArguments) -> Grid {
    let standard = || {
        [
            Preset::Inertia,
            Preset::InertiaLazy,
            Preset::ScoreFree,
            Preset::SnapKv,
            Preset::StreamingLlm,
        ]
        .map(Method::from)
        .to_vec()
    };
    let own = Grid::of(vec![benchmark]);
    Grid {
        models: vec![arguments.model.model.clone()],
        samples: arguments.samples.samples,
        limit: arguments.samples.limit,
        seed: seed.unwrap_or(own.seed),
        methods: if arguments.methods.is_empty() {
            standard()
        } else {
            arguments.methods.clone()
        },
        budgets: arguments.budget.budget.into_iter().collect(),
        kv_type: arguments.model.kv_type,
        quantise: arguments.model.quantise,
        threads: arguments.model.threads,
        context: arguments.context.context,
        scorer: arguments.model.scorer.clone(),
        chinese: arguments.chinese.clone(),
        ..own
    }
}

fn grid(arguments: &GridArguments, printer: &Printer) -> anyhow::Result<()> {
    let mut grid = Grid::read(&arguments.file)?.with(&Overrides {
        models: arguments.models.clone(),
        tasks: arguments.tasks.clone(),
        lengths: arguments.lengths.clone(),
        samples: arguments.samples.samples,
        limit: arguments.samples.limit,
        methods: arguments.methods.clone(),
        budgets: arguments.budgets.clone(),
    })?;
    if grid.models.is_empty() {
        grid.models.push(settings::default_model());
    }
    let ordered = run::Ordered {
        pace: &arguments.pace,
        folder: &arguments.folder.output_folder,
        json: arguments.output.json,
    };
    run::run(&grid, &ordered, printer)
}
