//! What is run: which models, on which examples, under which methods and budgets?
//!
//! A grid is a TOML file, or the same built from flags. Every key that is not known is an error that names it.
//!
//! ```
//! use inertiakv_eval::grid::Grid;
//!
//! let grid: Grid = r#"
//!     models = ["smollm2-135m", "qwen2.5-coder-0.5b"]
//!     methods = ["inertia", "inertia-lazy:refresh=4", "snapkv"]
//!     budgets = ["50%", "10%", 512]
//!     samples = 20
//!     kv_type = "f16"
//!
//!     [[examples]]
//!     benchmark = "ruler"
//!     lengths = [2048, 4096]
//!     tasks = ["niah_multikey_1", "vt"]
//!
//!     [[examples]]
//!     benchmark = "longbench"
//!     path = "LongBench/data"
//!     config = "LongBench/config"
//! "#
//! .parse()?;
//! assert_eq!(grid.runs().len(), 1 + 3 * 3); // `full`, and every method with every budget
//! # Ok::<(), inertiakv_eval::EvalError>(())
//! ```

mod benchmark;
mod shard;
mod values;

pub use benchmark::{
    Benchmark, KvpressExamples, LongBenchExamples, LongBenchV2Examples, NeedleExamples, OwnExamples, RulerExamples,
    RulerFiles,
};
pub use shard::Shard;
pub use values::kept;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use inertiakv::policy::{Budget, Method};
use inertiakv::{Engine, EngineOptions, KvType, WeightType};
use serde::Deserialize;

use crate::metrics::ChineseWords;
use crate::{EvalError, Example, file};

/// Models × examples × methods × budgets.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// What it shows, in a few words.
    #[serde(default)]
    pub title: String,
    /// Names of the catalog or paths of GGUF files; where there are none, whoever runs the grid says on which model.
    #[serde(default)]
    pub models: Vec<String>,
    /// Where examples come from, in TOML one table `[[examples]]` each.
    pub examples: Vec<Benchmark>,
    /// Examples per task and length, the first ones of a file; without it 5 that are generated and all of a file.
    pub samples: Option<usize>,
    /// Most examples in all, spread evenly over what there is.
    pub limit: Option<usize>,
    /// Seed of what is generated.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Methods in their textual form, each with its own budget where there are no `budgets`. `full` runs always and first:
    /// it is what the others are compared with.
    #[serde(default, deserialize_with = "values::methods")]
    pub methods: Vec<Method>,
    /// What stays: `"10%"` of the prompt's entries, or 512 entries. Every method that evicts runs with each of them.
    #[serde(default, deserialize_with = "values::budgets")]
    pub budgets: Vec<Budget>,
    /// Element type of the KV cache.
    #[serde(default, deserialize_with = "values::parsed")]
    pub kv_type: KvType,
    /// What weights that are stored as floats become when they are loaded; without it they stay as they are.
    #[serde(default, deserialize_with = "values::quantisation")]
    pub quantise: Option<WeightType>,
    /// Threads that compute; without it one per core. Answers do not depend on it.
    pub threads: Option<usize>,
    /// Most tokens of prompt and answer; without it what the model was made for.
    pub context: Option<usize>,
    /// A trained scorer, for the method `learned`.
    pub scorer: Option<PathBuf>,
    /// Folder of the installed Python package jieba 0.42, for Chinese tasks.
    pub chinese: Option<PathBuf>,
    /// Answers one method after the other instead of all in one batch. Tokens are the same; each record's decode speed is
    /// then the method's own, and the run takes longer.
    #[serde(default)]
    pub apart: bool,
    /// What a table or figure of the paper needs to know of this grid; runs do not look at it.
    #[serde(default)]
    pub paper: toml::Table,
}

/// What flags say instead of the file; what is empty changes nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// [`Grid::models`].
    pub models: Vec<String>,
    /// Tasks of every benchmark that has tasks.
    pub tasks: Vec<String>,
    /// Lengths of every benchmark that has lengths.
    pub lengths: Vec<usize>,
    /// [`Grid::samples`].
    pub samples: Option<usize>,
    /// [`Grid::limit`].
    pub limit: Option<usize>,
    /// [`Grid::methods`].
    pub methods: Vec<Method>,
    /// [`Grid::budgets`].
    pub budgets: Vec<Budget>,
}

impl Grid {
    /// A grid of these examples, everything else as in a file that says nothing more.
    #[must_use]
    pub fn of(examples: Vec<Benchmark>) -> Self {
        Self {
            title: String::new(),
            models: Vec::new(),
            examples,
            samples: None,
            limit: None,
            seed: default_seed(),
            methods: Vec::new(),
            budgets: Vec::new(),
            kv_type: KvType::default(),
            quantise: None,
            threads: None,
            context: None,
            scorer: None,
            chinese: None,
            apart: false,
            paper: toml::Table::new(),
        }
    }

    /// Reads a TOML file. Relative paths in it start at its folder, except those of `models`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, a key is unknown, or a value is not what its key takes.
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        let mut grid: Self = file::text(path)?.parse().map_err(|error| match error {
            EvalError::Setting(what) => EvalError::Setting(format!("{}: {what}", path.display())),
            error => error,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let own = [&mut grid.scorer, &mut grid.chinese].into_iter().flatten();
        for path in own.chain(grid.examples.iter_mut().flat_map(Benchmark::paths_mut)) {
            *path = folder.join(&path);
        }
        Ok(grid)
    }

    /// The grid with what flags say.
    ///
    /// # Errors
    ///
    /// Tasks or lengths are given and no benchmark of the grid has such, or a task is unknown.
    pub fn with(mut self, overrides: &Overrides) -> Result<Self, EvalError> {
        let set = |own: &mut Vec<String>, given: &Vec<String>| {
            if !given.is_empty() {
                own.clone_from(given);
            }
        };
        set(&mut self.models, &overrides.models);
        self.samples = overrides.samples.or(self.samples);
        self.limit = overrides.limit.or(self.limit);
        if !overrides.methods.is_empty() {
            self.methods.clone_from(&overrides.methods);
        }
        if !overrides.budgets.is_empty() {
            self.budgets.clone_from(&overrides.budgets);
        }
        if !overrides.tasks.is_empty() {
            let mut found = false;
            for benchmark in &mut self.examples {
                found |= benchmark.set_tasks(&overrides.tasks)?;
            }
            Self::applies(found, "tasks")?;
        }
        if !overrides.lengths.is_empty() {
            let mut found = false;
            for benchmark in &mut self.examples {
                found |= benchmark.set_lengths(&overrides.lengths);
            }
            Self::applies(found, "lengths")?;
        }
        self.checked()
    }

    fn applies(found: bool, what: &str) -> Result<(), EvalError> {
        let refused = || {
            EvalError::Setting(format!(
                "these examples have no {what} to choose from; leave the {what} out"
            ))
        };
        found.then_some(()).ok_or_else(refused)
    }

    /// The methods that are run, `full` first and once.
    #[must_use]
    pub fn runs(&self) -> Vec<Method> {
        let mut runs = vec![Method::full()];
        for method in &self.methods {
            let with_budgets = self.budgets.iter().filter(|_| method.evicts());
            let mut variants: Vec<Method> = with_budgets.map(|&b| method.clone().with_budget(b)).collect();
            if variants.is_empty() {
                variants.push(method.clone());
            }
            for variant in variants {
                if !runs.contains(&variant) {
                    runs.push(variant);
                }
            }
        }
        runs
    }

    /// How the model is opened.
    #[must_use]
    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            threads: self.threads,
            kv_type: self.kv_type,
            kv_memory: None,
            context: self.context,
            quantise: self.quantise,
            scorer: self.scorer.clone(),
        }
    }

    /// All examples, those that are generated fitted to the model.
    ///
    /// # Errors
    ///
    /// A file cannot be read, a task cannot be made, a length exceeds the context, or two examples could not be told apart
    /// in the results.
    pub fn examples(&self, engine: &Engine) -> Result<Vec<Example>, EvalError> {
        let mut examples = Vec::new();
        for benchmark in &self.examples {
            examples.extend(benchmark.examples(engine, self.samples, self.seed)?);
        }
        let mut seen = BTreeSet::new();
        for example in &examples {
            if !seen.insert((&example.task, &example.id)) {
                return Err(EvalError::Setting(format!(
                    "the example `{}` of {} occurs twice, so results would mix them up; run the two benchmarks as two grids",
                    example.id, example.task
                )));
            }
        }
        let total = examples.len();
        if let Some(limit) = self.limit.filter(|limit| *limit < total) {
            let chosen: Vec<usize> = (0..limit).map(|index| index * total / limit).collect();
            let mut place = 0;
            examples.retain(|_| {
                place += 1;
                chosen.binary_search(&(place - 1)).is_ok()
            });
        }
        Ok(examples)
    }

    /// The dictionary for Chinese tasks, where one is given.
    ///
    /// # Errors
    ///
    /// Its files are missing or not those of jieba 0.42.
    pub fn chinese_words(&self) -> Result<Option<ChineseWords>, EvalError> {
        self.chinese.as_deref().map(ChineseWords::from_package).transpose()
    }

    fn checked(self) -> Result<Self, EvalError> {
        let zero = |name: &str, value: Option<usize>| (value == Some(0)).then(|| name.to_owned());
        let wrong = zero("samples", self.samples)
            .or_else(|| zero("limit", self.limit))
            .or_else(|| zero("threads", self.threads))
            .or_else(|| zero("context", self.context));
        match wrong {
            Some(name) => Err(EvalError::Setting(format!("`{name}` must be at least 1"))),
            None if self.examples.is_empty() => Err(EvalError::Setting(
                "there are no examples; add a table [[examples]]".to_owned(),
            )),
            None => Ok(self),
        }
    }
}

impl FromStr for Grid {
    type Err = EvalError;

    fn from_str(text: &str) -> Result<Self, EvalError> {
        let wrong = |error: toml::de::Error| EvalError::Setting(error.to_string());
        let grid = toml::from_str::<Self>(text).map_err(wrong)?.checked()?;
        match empty_list(&text.parse().map_err(wrong)?) {
            Some(key) => Err(EvalError::Setting(format!(
                "`{key}` is an empty list; name at least one, or leave the key out for the default"
            ))),
            None => Ok(grid),
        }
    }
}

/// The key of an empty list, which would mean the default although it says that there is nothing.
fn empty_list(table: &toml::Table) -> Option<&str> {
    let own = table.iter().filter(|(key, _)| *key != "paper");
    own.filter_map(|(key, value)| Some((key, value.as_array()?)))
        .find_map(|(key, list)| match list.as_slice() {
            [] => Some(key.as_str()),
            list => list.iter().filter_map(toml::Value::as_table).find_map(empty_list),
        })
}

fn default_seed() -> u64 {
    42
}

#[cfg(test)]
mod tests {
    use super::{Benchmark, Grid, Overrides};

    const RULER: &str = "[[examples]]\nbenchmark = \"ruler\"\n";

    fn refused(text: &str) -> String {
        text.parse::<Grid>().unwrap_err().to_string()
    }

    #[test]
    fn every_unknown_key_and_wrong_value_is_named() {
        for (text, words) in [
            (format!("sample = 3\n{RULER}"), "unknown field `sample`"),
            (format!("{RULER}lenghts = [1024]\n"), "unknown field `lenghts`"),
            (format!("{RULER}tasks = [\"niah\"]\n"), "niah_single_1"),
            (format!("{RULER}profile = \"x\"\n"), "ruler-2026"),
            ("[[examples]]\nbenchmark = \"rule\"\n".to_owned(), "longbench-v2"),
            (format!("methods = [\"inertial\"]\n{RULER}"), "inertial"),
            (format!("budgets = [\"0.1\"]\n{RULER}"), "10%"),
            (format!("budgets = [0]\n{RULER}"), "10%"),
            (format!("kv_type = \"f64\"\n{RULER}"), "f64"),
            (format!("samples = 0\n{RULER}"), "`samples` must be at least 1"),
            ("examples = []".to_owned(), "[[examples]]"),
            (format!("models = []\n{RULER}"), "`models` is an empty list"),
            (format!("methods = []\n{RULER}"), "`methods` is an empty list"),
            (format!("budgets = []\n{RULER}"), "`budgets` is an empty list"),
            (format!("{RULER}tasks = []\n"), "`tasks` is an empty list"),
            (format!("{RULER}{RULER}lengths = []\n"), "`lengths` is an empty list"),
            (
                "[[examples]]\nbenchmark = \"needle\"\ndepths = []\n".to_owned(),
                "`depths` is an empty list",
            ),
            ("title = \"x\"".to_owned(), "missing field `examples`"),
            (
                "[[examples]]\nbenchmark = \"file\"\n".to_owned(),
                "missing field `path`",
            ),
        ] {
            assert!(refused(&text).contains(words), "{text}: {}", refused(&text));
        }
    }

    #[test]
    fn methods_meet_every_budget_and_full_comes_first() {
        let grid: Grid = format!("methods = [\"inertia\", \"full\", \"random\"]\nbudgets = [\"10%\", 512]\n{RULER}")
            .parse()
            .unwrap();
        let names: Vec<String> = grid.runs().iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            ["full", "inertia", "inertia:tokens=512", "random", "random:tokens=512"]
        );
        let grid: Grid = format!("methods = [\"inertia:ratio=0.5\"]\n{RULER}").parse().unwrap();
        assert_eq!(grid.runs()[1].to_string(), "inertia:ratio=0.5");
        let paper = format!("{RULER}[paper]\nmethods = []\n").parse::<Grid>();
        assert!(paper.is_ok(), "what the paper needs is not the grid's");
    }

    #[test]
    fn flags_replace_what_the_file_says() {
        let grid: Grid = format!("models = [\"a\"]\nsamples = 3\n{RULER}").parse().unwrap();
        let flags = Overrides {
            models: vec!["b".to_owned()],
            tasks: vec!["vt".to_owned()],
            lengths: vec![2048],
            limit: Some(7),
            ..Overrides::default()
        };
        let changed = grid.clone().with(&flags).unwrap();
        assert_eq!(
            (changed.models, changed.samples, changed.limit),
            (vec!["b".to_owned()], Some(3), Some(7))
        );
        let Benchmark::Ruler(ruler) = &changed.examples[0] else {
            panic!("still RULER")
        };
        assert_eq!((ruler.lengths.as_slice(), ruler.tasks.len()), (&[2048][..], 1));
        let wrong = Overrides {
            tasks: vec!["v".to_owned()],
            ..Overrides::default()
        };
        assert!(grid.with(&wrong).unwrap_err().to_string().contains("niah_single_1"));
        let file: Grid = "[[examples]]\nbenchmark = \"file\"\npath = \"x\"\n".parse().unwrap();
        let lengths = Overrides {
            lengths: vec![1],
            ..Overrides::default()
        };
        assert!(file.with(&lengths).unwrap_err().to_string().contains("no lengths"));
    }

    #[test]
    fn paths_start_at_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grid.toml");
        std::fs::write(
            &path,
            "chinese = \"jieba\"\n[[examples]]\nbenchmark = \"file\"\npath = \"x\"\n",
        )
        .unwrap();
        let grid = Grid::read(&path).unwrap();
        assert_eq!(grid.chinese.unwrap(), folder.path().join("jieba"));
        let Benchmark::File(file) = &grid.examples[0] else {
            panic!("still a file")
        };
        assert_eq!(file.path, folder.path().join("x"));
        std::fs::write(&path, "x = 1").unwrap();
        assert!(Grid::read(&path).unwrap_err().to_string().contains("grid.toml"));
    }
}
