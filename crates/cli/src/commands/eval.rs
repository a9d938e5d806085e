//! `inertiakv eval`: what does eviction cost in quality?

use inertiakv::policy::{Method, Preset};
use inertiakv::{Engine, Error};
use inertiakv_eval::load::{UserDefaults, user_file};
use inertiakv_eval::metrics::{Metric, Scorer};
use inertiakv_eval::ruler::{Ruler, RulerTask};
use inertiakv_eval::run::{self, MethodSummary, Outcome, Outcomes, Results, summarise};
use inertiakv_eval::statistics::Bootstrap;
use inertiakv_eval::{EvalError, Example};
use serde::Serialize;

use crate::args::{EvalArguments, EvalCommand, EvalRunArguments, RulerArguments};
use crate::failure::{Interrupted, usage};
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::{model, settings};

/// How methods compare on one model, as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Summary {
    model: String,
    methods: Vec<MethodSummary>,
}

pub(crate) fn run(arguments: &EvalArguments, printer: &Printer) -> anyhow::Result<()> {
    match &arguments.command {
        EvalCommand::Ruler(arguments) => {
            let engine = open(&arguments.run, printer)?;
            let examples = ruler(&engine, arguments)?;
            evaluate(&engine, &examples, &arguments.run, printer)
        }
        EvalCommand::File(arguments) => {
            let mut examples = user_file(&arguments.file, UserDefaults::default())?;
            let chinese = |example: &&Example| {
                matches!(
                    example.scoring.metric,
                    Metric::QaF1Chinese | Metric::RougeLChinese | Metric::RetrievalChinese
                )
            };
            if let Some(example) = examples.iter().find(chinese) {
                return Err(usage(format!(
                    "`{}` is scored with {:?}, which needs a Chinese dictionary that this command cannot read yet; use another metric",
                    example.id, example.scoring.metric
                )));
            }
            examples.truncate(arguments.run.samples.unwrap_or(usize::MAX));
            let engine = open(&arguments.run, printer)?;
            evaluate(&engine, &examples, &arguments.run, printer)
        }
        EvalCommand::Show(arguments) => {
            let outcomes = Outcomes::read(&arguments.folder)?;
            let all: Vec<&Outcome> = outcomes.iter().collect();
            let mut methods = Vec::new();
            for outcome in &all {
                if !methods.contains(&outcome.method) {
                    methods.push(outcome.method.clone());
                }
            }
            methods.sort_by_key(|method| *method != Method::full().to_string());
            show(&all, &methods, arguments.output.json, printer)
        }
    }
}

fn open(arguments: &EvalRunArguments, printer: &Printer) -> anyhow::Result<Engine> {
    let options = settings::engine_options(&arguments.model, Some(&arguments.context));
    model::open(&arguments.model.model, &options, printer)
}

/// Examples of every task and length.
fn ruler(engine: &Engine, arguments: &RulerArguments) -> anyhow::Result<Vec<Example>> {
    let tokenizer = engine.tokenizer();
    let tokens = |text: &str| tokenizer.encode(text, false).len();
    let reserved = match engine.chat_template() {
        Some(template) => {
            let around = template.around(false, &[])?;
            let control: usize = around.iter().map(|text| tokenizer.encode(text, true).len()).sum();
            control + 1
        }
        None => 1,
    };
    let ruler = Ruler::new(arguments.profile, arguments.seed);
    let tasks = if arguments.tasks.is_empty() {
        RulerTask::BUILT_IN.to_vec()
    } else {
        arguments.tasks.clone()
    };
    if let Some(task) = tasks.iter().find(|task| !RulerTask::BUILT_IN.contains(task)) {
        return Err(usage(format!(
            "`{task}` needs questions of others, which this command cannot read yet; use facts_1 or facts_2"
        )));
    }
    let samples = arguments.run.samples.unwrap_or(5);
    let mut examples = Vec::new();
    for &length in &arguments.lengths {
        if length > engine.context() {
            return Err(usage(format!(
                "a length of {length} does not fit into the context of {}; choose shorter --lengths",
                engine.context()
            )));
        }
        for &task in &tasks {
            let fitted = ruler.fit(task, length, reserved, &tokens)?;
            for index in 0..samples {
                examples.push(fitted.example(index, &tokens)?);
            }
        }
    }
    Ok(examples)
}

fn evaluate(
    engine: &Engine,
    examples: &[Example],
    arguments: &EvalRunArguments,
    printer: &Printer,
) -> anyhow::Result<()> {
    let given = if arguments.methods.is_empty() {
        [
            Preset::Inertia,
            Preset::InertiaLazy,
            Preset::ScoreFree,
            Preset::SnapKv,
            Preset::StreamingLlm,
        ]
        .map(Method::from)
        .to_vec()
    } else {
        arguments.methods.clone()
    };
    let methods = settings::methods(&given, &arguments.budget);
    let mut results = Results::open(&arguments.output_folder)?;
    interrupt::listen(printer.clone());
    let stoppable = Stoppable::begin();
    let progress = printer.bar(0, "eval");
    let ran = run::run(
        engine,
        examples,
        &methods,
        &Scorer::default(),
        &mut results,
        &mut |now| {
            progress.message(format!("eval, {}", now.example));
            progress.show(now.done, now.total);
            stoppable.flow()
        },
    );
    drop(progress);
    let keys = match ran {
        Err(EvalError::Engine(Error::Cancelled)) => {
            printer.note("stopped; the same command goes on from here");
            return Err(Interrupted.into());
        }
        ran => ran?,
    };
    // The folder may hold other runs too.
    let own: Vec<&Outcome> = keys.iter().filter_map(|key| results.outcomes().get(key)).collect();
    let methods: Vec<String> = methods.iter().map(ToString::to_string).collect();
    show(&own, &methods, arguments.output.json, printer)
}

/// One table for each model; the first method is what the others are compared with.
fn show(outcomes: &[&Outcome], methods: &[String], json: bool, printer: &Printer) -> anyhow::Result<()> {
    let mut models: Vec<&str> = outcomes.iter().map(|outcome| outcome.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    let mut summaries = Vec::new();
    for model in models {
        let of_model = outcomes.iter().copied().filter(|outcome| outcome.model == model);
        summaries.push(Summary {
            model: model.to_owned(),
            methods: summarise(of_model, methods, &Bootstrap::default())?,
        });
    }
    if json {
        return printer.json(&summaries);
    }
    for summary in &summaries {
        print(summary, printer)?;
    }
    printer.note(
        "scores are percent, over the examples that all methods have run; the difference is in points, with its paired \
         bootstrap 95 % interval over examples within tasks",
    );
    for outcome in outcomes {
        if let Some(error) = &outcome.error {
            printer.warn(&format!("{} under `{}` failed: {error}", outcome.id, outcome.method));
        }
    }
    Ok(())
}

fn print(summary: &Summary, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&summary.model)?;
    let summaries = &summary.methods;
    let tasks: Vec<&String> = summaries
        .first()
        .map(|first| first.tasks.keys().collect())
        .unwrap_or_default();
    let mut header = vec!["method", "mean", "against the first", "win/tie/loss", "failed"];
    header.extend(tasks.iter().map(|task| task.as_str()));
    let rows: Vec<Vec<String>> = summaries.iter().map(|summary| cells(summary, &tasks)).collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    printer.table(&header, &rows, &numbers)?;
    Ok(())
}

fn cells(summary: &MethodSummary, tasks: &[&String]) -> Vec<String> {
    let difference = match &summary.difference {
        None => "–".to_owned(),
        Some(interval) => match interval.bounds {
            Some((low, high)) => format!("{:+.1} ({low:+.1} to {high:+.1})", interval.mean),
            None => format!("{:+.1}", interval.mean),
        },
    };
    let outcomes = summary
        .outcomes
        .map_or_else(|| "–".to_owned(), |o| format!("{}/{}/{}", o.wins, o.ties, o.losses));
    let mut cells = vec![
        summary.method.clone(),
        summary.mean.map_or_else(|| "–".to_owned(), |mean| format!("{mean:.1}")),
        difference,
        outcomes,
        summary.failed.to_string(),
    ];
    cells.extend(tasks.iter().map(|task| format!("{:.0}", summary.tasks[*task])));
    cells
}
