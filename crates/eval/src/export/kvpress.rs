//! How are results laid out as kvpress's evaluation lays them out?
//!
//! A folder per data set, part of it, model, method and ratio, with `predictions.csv`, `metrics.json` and `config.yaml`. What
//! kvpress leaves to chance is fixed here: columns have one order, lists are JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use inertiakv::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::write;
use crate::EvalError;
use crate::load::LongBenchTask;
use crate::metrics::{Metric, Rouge, bin_percent, task_percent};
use crate::python;
use crate::ruler::RulerTask;
use crate::run::{Outcome, records};

/// What an export needs of a record; records of earlier versions lack some of it.
#[derive(Deserialize)]
struct Row {
    prediction: String,
    answers: Vec<String>,
    #[serde(default)]
    question: String,
    #[serde(default)]
    answer_prefix: String,
    max_new_tokens: Option<usize>,
    report: Option<Report>,
}

#[derive(Deserialize)]
struct Report {
    compression_ratio: Option<f64>,
}

/// kvpress's data sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DataSet {
    Ruler,
    LongBench,
    LongBenchE,
    LongBenchV2,
    Needle,
}

/// What shares a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    data_set: DataSet,
    part: String,
    depth: Option<String>,
    model: String,
    method: String,
}

/// Writes the results of one folder into another; returns the folders made and how many units belong to no data set of
/// kvpress and were left out.
///
/// # Errors
///
/// The folder cannot be read, or a file not written.
pub fn kvpress(folder: &Path, into: &Path) -> Result<(Vec<PathBuf>, usize), EvalError> {
    let mut runs: BTreeMap<Run, Vec<(Outcome, Row)>> = BTreeMap::new();
    let mut left_out = 0;
    for (outcome, row) in records::<Row>(folder)? {
        match Run::of(&outcome) {
            Some(run) => runs.entry(run).or_default().push((outcome, row)),
            None => left_out += 1,
        }
    }
    let mut made = Vec::new();
    for (run, rows) in &runs {
        let folder = free(into.join(run.folder_name(rows)));
        fs::create_dir_all(&folder).map_err(|source| EvalError::Unwritable {
            path: folder.clone(),
            source,
        })?;
        write(&folder.join("predictions.csv"), predictions(run, rows))?;
        write(&folder.join("metrics.json"), indented(&run.data_set.metrics(rows)))?;
        write(&folder.join("config.yaml"), run.config(rows))?;
        made.push(folder);
    }
    Ok((made, left_out))
}

/// As kvpress does, a number below a folder that exists.
fn free(folder: PathBuf) -> PathBuf {
    if !folder.exists() {
        return folder;
    }
    let mut number = 1;
    while folder.join(number.to_string()).exists() {
        number += 1;
    }
    folder.join(number.to_string())
}

impl Run {
    fn of(outcome: &Outcome) -> Option<Self> {
        let task = outcome.task.as_str();
        let label = |name: &str| outcome.labels.get(name).cloned();
        let e = task.strip_suffix("_e").or_else(|| task.strip_suffix("-e"));
        let (data_set, part) = if task.parse::<RulerTask>().is_ok() {
            (DataSet::Ruler, label("length").unwrap_or_default())
        } else if let Some(name) = e.filter(|name| LongBenchTask::named(name).is_ok()) {
            (DataSet::LongBenchE, format!("{name}_e"))
        } else if LongBenchTask::named(task).is_ok() {
            (DataSet::LongBench, task.to_owned())
        } else if task == "longbench-v2" {
            (DataSet::LongBenchV2, "0shot".to_owned())
        } else if task == "niah" {
            (DataSet::Needle, label("length").unwrap_or_default())
        } else {
            return None;
        };
        Some(Self {
            depth: label("depth").filter(|_| data_set == DataSet::Needle),
            data_set,
            part,
            model: outcome.model.clone(),
            method: outcome.method.clone(),
        })
    }

    /// Mean share of the prompt that was removed.
    fn ratio(rows: &[(Outcome, Row)]) -> f64 {
        let ratios: Vec<f64> = rows.iter().filter_map(|(_, row)| ratio(row)).collect();
        // An empty sum would be minus zero.
        ratios.iter().fold(0.0, |sum, ratio| sum + ratio) / ratios.len().max(1) as f64
    }

    /// The method without its budget, which the ratio says, in letters that file names may have.
    fn press(&self) -> String {
        if self.method == Method::full().to_string() {
            return "no_press".to_owned();
        }
        let is_budget = |key: &str| {
            ["ratio=", "tokens=", "seen_ratio="]
                .iter()
                .any(|budget| key.starts_with(budget))
        };
        let one = |method: &str| {
            let (name, keys) = method.split_once(':').unwrap_or((method, ""));
            let keys = keys.split(',').filter(|key| !key.is_empty() && !is_budget(key));
            [name]
                .into_iter()
                .chain(keys)
                .collect::<Vec<_>>()
                .join("-")
                .replace('=', "")
        };
        self.method.split('+').map(one).collect::<Vec<_>>().join("+")
    }

    fn folder_name(&self, rows: &[(Outcome, Row)]) -> String {
        let mut parts = vec![self.data_set.name().to_owned()];
        if self.data_set != DataSet::Needle {
            parts.push(self.part.clone());
        }
        parts.extend([
            self.model.replace('/', "--"),
            self.press(),
            format!("{:.2}", Self::ratio(rows)),
        ]);
        if self.data_set == DataSet::Needle {
            parts.push(format!("max_context{}", self.part));
            parts.extend(self.depth.iter().map(|depth| format!("needle_depth{depth}")));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("__")
    }

    /// The fields of kvpress's configuration that apply.
    fn config(&self, rows: &[(Outcome, Row)]) -> String {
        let needle = self.data_set == DataSet::Needle;
        let text = |text: &str| Value::from(text).to_string();
        let or_null = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
        let part = Some(&self.part).filter(|part| !needle && !part.is_empty());
        let length = Some(self.part.clone()).filter(|part| needle && !part.is_empty());
        format!(
            "dataset: {}\ndata_dir: {}\nmodel: {}\npress_name: {}\ncompression_ratio: {}\nfraction: 1.0\nmax_context_length: \
             {}\nquery_aware: false\nneedle_depth: {}\npress_init_command: {}\n",
            self.data_set.name(),
            or_null(part.map(|part| text(part))),
            text(&self.model),
            text(&self.press()),
            Self::ratio(rows),
            or_null(length),
            or_null(self.depth.clone()),
            text(&self.method),
        )
    }
}

fn ratio(row: &Row) -> Option<f64> {
    row.report
        .as_ref()
        .map(|report| report.compression_ratio.unwrap_or(0.0))
}

fn predictions(run: &Run, rows: &[(Outcome, Row)]) -> String {
    let answer = match run.data_set {
        DataSet::LongBench | DataSet::LongBenchE => "answers",
        DataSet::Needle => "needle",
        DataSet::Ruler | DataSet::LongBenchV2 => "answer",
    };
    let header =
        format!("question,answer_prefix,{answer},task,max_new_tokens,predicted_answer,compression_ratio,_id\n");
    let line = |(outcome, row): &(Outcome, Row)| {
        let answers = match run.data_set {
            DataSet::Needle | DataSet::LongBenchV2 => row.answers.first().cloned().unwrap_or_default(),
            _ => json!(row.answers).to_string(),
        };
        let fields = [
            row.question.clone(),
            row.answer_prefix.clone(),
            answers,
            outcome.task.clone(),
            row.max_new_tokens.map(|tokens| tokens.to_string()).unwrap_or_default(),
            row.prediction.clone(),
            ratio(row).map(|ratio| ratio.to_string()).unwrap_or_default(),
            outcome.id.clone(),
        ];
        fields.map(|field| quoted(&field)).join(",") + "\n"
    };
    header + &rows.iter().map(line).collect::<String>()
}

/// A field of a CSV file.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// JSON as kvpress writes it, by four spaces.
fn indented(value: &Value) -> String {
    let two = serde_json::to_string_pretty(value).unwrap_or_default();
    let line = |line: &str| {
        let text = line.trim_start();
        " ".repeat(2 * (line.len() - text.len())) + text
    };
    two.lines().map(line).collect::<Vec<_>>().join("\n")
}

impl DataSet {
    fn name(self) -> &'static str {
        match self {
            Self::Ruler => "ruler",
            Self::LongBench => "longbench",
            Self::LongBenchE => "longbench-e",
            Self::LongBenchV2 => "longbench-v2",
            Self::Needle => "needle_in_haystack",
        }
    }

    /// What kvpress computes from a folder's predictions.
    fn metrics(self, rows: &[(Outcome, Row)]) -> Value {
        let scores = |wanted: &dyn Fn(&Outcome) -> bool| -> Vec<f64> {
            let wanted = rows.iter().filter(|(outcome, _)| wanted(outcome));
            wanted.map(|(outcome, _)| outcome.score.unwrap_or(0.0)).collect()
        };
        let labels = |name: &str| -> Vec<String> {
            let all = rows.iter().filter_map(|(outcome, _)| outcome.labels.get(name).cloned());
            let mut labels: Vec<String> = all.collect();
            labels.sort_unstable();
            labels.dedup();
            labels
        };
        let with =
            |name: &str, value: &str| scores(&|outcome| outcome.labels.get(name).is_some_and(|own| own == value));
        match self {
            Self::Ruler => {
                let mut tasks: Vec<&str> = rows.iter().map(|(outcome, _)| outcome.task.as_str()).collect();
                tasks.sort_unstable();
                tasks.dedup();
                let score = |task: &str| task_percent(Metric::StringMatchAll, &scores(&|outcome| outcome.task == task));
                let of_task = |task: &&str| ((*task).to_owned(), json!({"string_match": score(task)}));
                Value::Object(tasks.iter().map(of_task).collect())
            }
            Self::LongBench => json!(task_percent(Metric::QaF1, &scores(&|_| true))),
            Self::LongBenchE => {
                let bins = ["0-4k", "4-8k", "8k+"].map(|bin| (bin.to_owned(), json!(bin_percent(&with("bin", bin)))));
                Value::Object(bins.into_iter().collect())
            }
            Self::LongBenchV2 => {
                let mut means = serde_json::Map::new();
                means.insert("average".to_owned(), json!(python::numpy_mean(&scores(&|_| true))));
                for name in ["difficulty", "length"] {
                    for value in labels(name) {
                        let mean = python::numpy_mean(&with(name, &value));
                        means.insert(value, json!(mean));
                    }
                }
                Value::Object(means)
            }
            Self::Needle => {
                let rouge = |(_, row): &(Outcome, Row)| {
                    let needle = row.answers.first().map(String::as_str).unwrap_or_default();
                    json!(Rouge::between(python::strip(needle), python::strip(&row.prediction)))
                };
                Value::Array(rows.iter().map(rouge).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DataSet, Run, indented, quoted};
    use serde_json::json;

    fn run(method: &str) -> Run {
        Run {
            data_set: DataSet::Ruler,
            part: "4096".to_owned(),
            depth: None,
            model: "Qwen/Qwen3-8B".to_owned(),
            method: method.to_owned(),
        }
    }

    #[test]
    fn folders_are_named_as_kvpress_names_them() {
        assert_eq!(
            run("full").folder_name(&[]),
            "ruler__4096__Qwen--Qwen3-8B__no_press__0.00"
        );
        assert_eq!(run("inertia:ratio=0.9,alpha=0.5").press(), "inertia-alpha0.5");
        assert_eq!(run("snapkv:ratio=0.5+inertia").press(), "snapkv+inertia");
        let needle = Run {
            data_set: DataSet::Needle,
            depth: Some("50".to_owned()),
            ..run("full")
        };
        let name = "needle_in_haystack__Qwen--Qwen3-8B__no_press__0.00__max_context4096__needle_depth50";
        assert_eq!(needle.folder_name(&[]), name);
    }

    #[test]
    fn files_are_written_as_python_writes_them() {
        assert_eq!(quoted("a \"b\"\n"), "\"a \"\"b\"\"\n\"");
        assert_eq!(quoted("plain"), "plain");
        let value = json!({"vt": {"string_match": 50.0}});
        assert_eq!(
            indented(&value),
            "{\n    \"vt\": {\n        \"string_match\": 50.0\n    }\n}"
        );
    }
}
