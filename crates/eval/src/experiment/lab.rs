//! With which model and data, at which scale and where is an experiment run?

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use inertiakv::Engine;
use inertiakv::policy::Method;
use serde::Deserialize;

use crate::grid::{Benchmark, Grid, LongBenchExamples, LongBenchV2Examples, NeedleExamples, RulerExamples};
use crate::metrics::ScoringProfile;
use crate::report::Measured;
use crate::run::{self, Plan, Results, RunOptions};
use crate::statistics::{Bootstrap, Interval, Unit};
use crate::{EvalError, Example};

/// Files that the user has, by what they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Data {
    /// The folder of `LongBench`'s data.
    pub longbench: Option<PathBuf>,
    /// `LongBench/config` of a checkout.
    pub longbench_config: Option<PathBuf>,
    /// `data.json` of `LongBench`-v2.
    pub longbench_v2: Option<PathBuf>,
    /// `SQuAD` 2.0, for `qa_1`.
    pub squad: Option<PathBuf>,
    /// `HotpotQA`, for `qa_2`.
    pub hotpotqa: Option<PathBuf>,
    /// A text as haystack.
    pub essays: Option<PathBuf>,
}

impl Data {
    /// Names that [`Data::set`] takes.
    pub const NAMES: [&'static str; 6] = [
        "longbench",
        "longbench-config",
        "longbench-v2",
        "squad",
        "hotpotqa",
        "essays",
    ];

    /// Sets the path of a name; says whether there is such a name.
    pub fn set(&mut self, name: &str, path: PathBuf) -> bool {
        let place = match name {
            "longbench" => &mut self.longbench,
            "longbench-config" => &mut self.longbench_config,
            "longbench-v2" => &mut self.longbench_v2,
            "squad" => &mut self.squad,
            "hotpotqa" => &mut self.hotpotqa,
            "essays" => &mut self.essays,
            _ => return false,
        };
        *place = Some(path);
        true
    }
}

/// A model, and how much of everything.
pub struct Lab<'a> {
    /// The model.
    pub engine: &'a Engine,
    /// What the user has.
    pub data: Data,
    /// Where answers are kept, so that they are not run again.
    pub folder: PathBuf,
    /// Examples per task and length, or rounds, instead of the item's.
    pub samples: Option<usize>,
    /// Lengths instead of the item's.
    pub lengths: Vec<usize>,
    /// Tasks of RULER instead of the item's.
    pub tasks: Vec<String>,
    /// `progress(what, done, total)`; `Break` stops.
    pub progress: &'a mut dyn FnMut(&str, usize, usize) -> ControlFlow<()>,
}

impl Lab<'_> {
    /// The item's lengths, or those that were asked for.
    #[must_use]
    pub fn lengths(&self, own: &[usize]) -> Vec<usize> {
        if self.lengths.is_empty() {
            own.to_vec()
        } else {
            self.lengths.clone()
        }
    }

    /// Answers examples under methods and gives what came out; `apart` where decode speeds count.
    pub(super) fn answer(
        &mut self,
        examples: &[Example],
        methods: &[Method],
        apart: bool,
    ) -> Result<Answers, EvalError> {
        // A method that is named twice is one method.
        let mut distinct: Vec<Method> = Vec::with_capacity(methods.len());
        for method in methods {
            if !distinct.contains(method) {
                distinct.push(method.clone());
            }
        }
        let methods = &distinct;
        let mut results = Results::open(&self.folder)?;
        let progress = &mut *self.progress;
        let plan = Plan::new(self.engine, examples, methods, results.outcomes())?;
        let options = RunOptions {
            apart,
            ..RunOptions::default()
        };
        run::run(self.engine, &plan, &options, &mut results, &mut |now| {
            progress(now.example, now.done, now.total)
        })?;
        drop(results);
        let records: BTreeMap<String, Measured> = Measured::read(&self.folder)?
            .into_iter()
            .map(|record| (record.outcome.key.clone(), record))
            .collect();
        let mut answers = Answers::default();
        for (index, example) in examples.iter().enumerate() {
            let group = match example.labels.get("length") {
                Some(length) => format!("{} {length}", example.task),
                None => example.task.clone(),
            };
            answers.groups.push((example.task.clone(), group));
            for (method, key) in methods.iter().zip(&plan.keys()[index * methods.len()..]) {
                let of_method = answers.records.entry(method.to_string()).or_default();
                of_method.push(records.get(key).cloned());
            }
        }
        Ok(answers)
    }
}

/// Answers to the same examples under several methods.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Task, and task with length, of each example.
    pub(super) groups: Vec<(String, String)>,
    /// By method, in the order of the examples.
    pub(super) records: BTreeMap<String, Vec<Option<Measured>>>,
}

impl Answers {
    /// Scores of a method from 0 to 1; what failed scores 0.
    pub(super) fn scores(&self, method: &Method) -> Vec<f64> {
        let records = self.records.get(&method.to_string());
        let score = |record: &Option<Measured>| record.as_ref().and_then(|r| r.outcome.score).unwrap_or(0.0);
        records.map_or_else(Vec::new, |records| records.iter().map(score).collect())
    }

    /// The records of a method that did not fail.
    pub(super) fn of(&self, method: &Method) -> impl Iterator<Item = &Measured> {
        let records = self.records.get(&method.to_string());
        records
            .into_iter()
            .flatten()
            .flatten()
            .filter(|record| record.outcome.error.is_none())
    }

    /// How many failed, under any method.
    pub(super) fn failed(&self) -> usize {
        let all = self.records.values().flatten().flatten();
        all.filter(|record| record.outcome.error.is_some()).count()
    }

    /// Mean over tasks of the mean value, with its bounds; of one task where it is named.
    pub(super) fn mean(&self, values: &[f64], task: Option<&str>) -> Result<Option<Interval>, EvalError> {
        let mut units: BTreeMap<&str, Vec<Unit>> = BTreeMap::new();
        for ((own_task, group), value) in self.groups.iter().zip(values) {
            if task.is_none_or(|task| task == own_task) {
                units.entry(group).or_default().push(Unit::from(*value));
            }
        }
        let units: Vec<Vec<Unit>> = units.into_values().collect();
        Bootstrap::default().interval(&units)
    }

    /// The tasks, in the order of the examples.
    pub(super) fn tasks(&self) -> Vec<&str> {
        let mut tasks: Vec<&str> = Vec::new();
        for (task, _) in &self.groups {
            if !tasks.contains(&task.as_str()) {
                tasks.push(task);
            }
        }
        tasks
    }
}

/// A benchmark as an experiment names it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// What tables call it.
    pub name: String,
    /// Where examples come from.
    pub from: Origin,
    /// Examples per task and length of what is generated, as the paper has them or as many as make sense.
    pub samples: Option<usize>,
}

/// Where an experiment's examples come from. What is a file of others is the user's: [`Data`] says where it lies.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "source", rename_all = "kebab-case")]
pub enum Origin {
    /// Generated tasks of RULER.
    Ruler {
        /// Which; none stands for all.
        #[serde(default)]
        tasks: Vec<String>,
        /// Lengths of the prompts.
        lengths: Vec<usize>,
    },
    /// Tasks of `LongBench`.
    Longbench {
        /// Which.
        tasks: Vec<String>,
    },
    /// `LongBench`-v2.
    LongbenchV2,
    /// A needle at depths of generated prose.
    Needle {
        /// Lengths of the prompts.
        lengths: Vec<usize>,
        /// Depths in percent; none stands for nine from start to end.
        #[serde(default)]
        depths: Vec<f64>,
    },
}

impl Named {
    /// What scores are multiplied with to be as the paper prints them, and their decimals.
    pub(super) fn scale(&self) -> (f64, usize) {
        match self.from {
            Origin::LongbenchV2 => (1.0, 3),
            Origin::Needle { .. } => (1.0, 2),
            Origin::Ruler { .. } | Origin::Longbench { .. } => (100.0, 2),
        }
    }

    /// The examples, or what is missing for them.
    pub(super) fn examples(&self, lab: &Lab<'_>) -> Result<Result<Vec<Example>, String>, EvalError> {
        let data = &lab.data;
        let benchmark = match &self.from {
            Origin::Ruler { tasks, lengths } => {
                let tasks = if lab.tasks.is_empty() { tasks } else { &lab.tasks };
                Benchmark::Ruler(RulerExamples {
                    tasks: tasks.iter().map(|task| task.parse()).collect::<Result<_, _>>()?,
                    lengths: lab.lengths(lengths),
                    essays: data.essays.clone(),
                    squad: data.squad.clone(),
                    hotpotqa: data.hotpotqa.clone(),
                    ..RulerExamples::default()
                })
            }
            Origin::Needle { lengths, depths } => Benchmark::Needle(NeedleExamples {
                lengths: lab.lengths(lengths),
                depths: depths.clone(),
                essays: data.essays.clone(),
                ..NeedleExamples::default()
            }),
            Origin::Longbench { tasks } => match &data.longbench {
                None => return Ok(Err("--data longbench=FOLDER".to_owned())),
                Some(path) => Benchmark::LongBench(LongBenchExamples {
                    path: path.clone(),
                    tasks: tasks.clone(),
                    config: data.longbench_config.clone(),
                    profile: ScoringProfile::default(),
                }),
            },
            Origin::LongbenchV2 => match &data.longbench_v2 {
                None => return Ok(Err("--data longbench-v2=FILE".to_owned())),
                Some(path) => Benchmark::LongBenchV2(LongBenchV2Examples {
                    path: path.clone(),
                    prompt: None,
                    profile: ScoringProfile::default(),
                }),
            },
        };
        let grid = Grid {
            samples: lab.samples.or(self.samples),
            ..Grid::of(vec![benchmark])
        };
        Ok(Ok(grid.examples(lab.engine)?))
    }
}
