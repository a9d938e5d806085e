//! Which examples does a benchmark give?

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use inertiakv::Engine;
use inertiakv::tokenizer::Tokenizer;
use serde::Deserialize;

use super::values;
use crate::load::{
    KvpressData, LongBench, LongBenchTask, LongBenchV2, NeedleGrid, NeedleProfile, NeedleSource, TokenText,
    UserDefaults, kvpress_rows, ruler_file, user_file,
};
use crate::metrics::ScoringProfile;
use crate::ruler::{Prose, QuestionSet, Ruler, RulerProfile, RulerTask, WordLists, Wording};
use crate::{EvalError, Example};

/// Where examples come from; in TOML told apart by `benchmark = "…"`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "benchmark", rename_all = "kebab-case")]
pub enum Benchmark {
    /// `ruler`: tasks of RULER, generated for the model.
    Ruler(RulerExamples),
    /// `ruler-files`: tasks of RULER that the official generator prepared.
    RulerFiles(RulerFiles),
    /// `longbench`: the original files.
    #[serde(rename = "longbench")]
    LongBench(LongBenchExamples),
    /// `longbench-v2`: the original file.
    #[serde(rename = "longbench-v2")]
    LongBenchV2(LongBenchV2Examples),
    /// `needle`: a sentence in a long text, lengths × depths.
    Needle(NeedleExamples),
    /// `kvpress`: rows of a data set for kvpress.
    Kvpress(KvpressExamples),
    /// `file`: one's own questions.
    File(OwnExamples),
}

/// Tasks of RULER to generate.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RulerExamples {
    /// By their official names; none stands for all, with our fact sets in place of question tasks without their file.
    #[serde(deserialize_with = "values::all_parsed")]
    pub tasks: Vec<RulerTask>,
    /// Lengths of the prompts in tokens, answer included; none stands for 1024.
    pub lengths: Vec<usize>,
    /// Whose rules.
    pub profile: RulerProfile,
    /// A checkout of RULER whose prompt texts are used instead of ours.
    pub wording: Option<PathBuf>,
    /// A folder of word lists instead of ours.
    pub words: Option<PathBuf>,
    /// A text as haystack instead of ours: plain, or RULER's JSON with `text`.
    pub essays: Option<PathBuf>,
    /// `SQuAD` 2.0 (`dev-v2.0.json`), for `qa_1`.
    pub squad: Option<PathBuf>,
    /// `HotpotQA` (`hotpot_dev_distractor_v1.json`), for `qa_2`.
    pub hotpotqa: Option<PathBuf>,
}

/// Prepared files of RULER.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RulerFiles {
    /// A folder of task folders with `validation.jsonl` in each, or one that holds such folders by length (`4096/data`).
    pub path: PathBuf,
    /// Which tasks; none stands for all that are there.
    #[serde(default, deserialize_with = "values::all_parsed")]
    pub tasks: Vec<RulerTask>,
    /// Which lengths; none stands for all that are there.
    #[serde(default)]
    pub lengths: Vec<usize>,
}

/// The original files of `LongBench`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongBenchExamples {
    /// `TASK.jsonl` or `TASK_e.jsonl`, or a folder of them.
    pub path: PathBuf,
    /// Which tasks, with `_e` for `LongBench`-E; none stands for all files that are there.
    #[serde(default)]
    pub tasks: Vec<String>,
    /// `LongBench/config` of a checkout, for the official prompts and lengths of answers.
    pub config: Option<PathBuf>,
    /// `official` or `kvpress`.
    #[serde(default)]
    pub profile: ScoringProfile,
}

/// The original file of `LongBench`-v2.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongBenchV2Examples {
    /// `data.json`.
    pub path: PathBuf,
    /// `prompts/0shot.txt` of a checkout, for the official prompt.
    pub prompt: Option<PathBuf>,
    /// `official` or `kvpress`.
    #[serde(default)]
    pub profile: ScoringProfile,
}

/// A needle in a haystack.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NeedleExamples {
    /// Lengths of the prompts in tokens; none stands for the paper's, 10k to 120k.
    pub lengths: Vec<usize>,
    /// Depths in percent; none stands for nine from start to end.
    pub depths: Vec<f64>,
    /// Whose rule puts the needle: `kvpress` or `kamradt`.
    pub profile: NeedleProfile,
    /// A row of kvpress's essays (JSON) with context, needle and question, instead of ours.
    pub source: Option<PathBuf>,
    /// A text as haystack, with our needle.
    pub essays: Option<PathBuf>,
}

/// Rows of a data set for kvpress.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvpressExamples {
    /// The rows as JSON Lines, or as a JSON array in a `.json` file.
    pub path: PathBuf,
    /// Which data set: `ruler`, `longbench`, `longbench-e` or `longbench-v2`.
    pub data: KvpressData,
    /// Which tasks; none stands for all that are there.
    #[serde(default)]
    pub tasks: Vec<String>,
}

/// One's own questions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnExamples {
    /// JSON Lines, or a JSON array in a `.json` file, with context, question and answers.
    pub path: PathBuf,
    /// Which tasks; none stands for all that are there.
    #[serde(default)]
    pub tasks: Vec<String>,
}

/// Generated where nothing says how many.
const GENERATED: usize = 5;

impl Benchmark {
    /// The examples, `samples` of each task and length: of a file the first ones.
    ///
    /// # Errors
    ///
    /// A file cannot be read, a task cannot be made or is not there, or a length exceeds the model's context.
    pub fn examples(&self, engine: &Engine, samples: Option<usize>, seed: u64) -> Result<Vec<Example>, EvalError> {
        let examples = match self {
            Self::Ruler(ruler) => return ruler.examples(engine, samples.unwrap_or(GENERATED), seed),
            Self::Needle(needle) => return needle.examples(engine),
            Self::RulerFiles(files) => files.examples()?,
            Self::LongBench(bench) => bench.examples()?,
            Self::LongBenchV2(bench) => {
                let loader = LongBenchV2::new(bench.profile);
                let loader = match &bench.prompt {
                    Some(path) => loader.with_prompt(path)?,
                    None => loader,
                };
                loader.load(&bench.path)?
            }
            Self::Kvpress(rows) => of_tasks(kvpress_rows(&rows.path, rows.data)?, &rows.tasks)?,
            Self::File(file) => of_tasks(user_file(&file.path, UserDefaults::default())?, &file.tasks)?,
        };
        Ok(first_of_each_task(examples, samples))
    }

    /// Every path, so that relative ones can be moved.
    pub(super) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let paths = match self {
            Self::Ruler(ruler) => vec![
                ruler.wording.as_mut(),
                ruler.words.as_mut(),
                ruler.essays.as_mut(),
                ruler.squad.as_mut(),
                ruler.hotpotqa.as_mut(),
            ],
            Self::RulerFiles(files) => vec![Some(&mut files.path)],
            Self::LongBench(bench) => vec![Some(&mut bench.path), bench.config.as_mut()],
            Self::LongBenchV2(bench) => vec![Some(&mut bench.path), bench.prompt.as_mut()],
            Self::Needle(needle) => vec![needle.source.as_mut(), needle.essays.as_mut()],
            Self::Kvpress(rows) => vec![Some(&mut rows.path)],
            Self::File(file) => vec![Some(&mut file.path)],
        };
        paths.into_iter().flatten().collect()
    }

    /// Chooses tasks; says whether this benchmark has any.
    pub(super) fn set_tasks(&mut self, tasks: &[String]) -> Result<bool, EvalError> {
        let ruler_tasks = || -> Result<Vec<RulerTask>, EvalError> { tasks.iter().map(|task| task.parse()).collect() };
        match self {
            Self::Ruler(ruler) => ruler.tasks = ruler_tasks()?,
            Self::RulerFiles(files) => files.tasks = ruler_tasks()?,
            Self::LongBench(bench) => tasks.clone_into(&mut bench.tasks),
            Self::Kvpress(rows) => tasks.clone_into(&mut rows.tasks),
            Self::File(file) => tasks.clone_into(&mut file.tasks),
            Self::LongBenchV2(_) | Self::Needle(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Chooses lengths; says whether this benchmark has any.
    pub(super) fn set_lengths(&mut self, lengths: &[usize]) -> bool {
        let own = match self {
            Self::Ruler(ruler) => &mut ruler.lengths,
            Self::RulerFiles(files) => &mut files.lengths,
            Self::Needle(needle) => &mut needle.lengths,
            _ => return false,
        };
        lengths.clone_into(own);
        true
    }
}

impl RulerExamples {
    fn examples(&self, engine: &Engine, samples: usize, seed: u64) -> Result<Vec<Example>, EvalError> {
        let ruler = self.ruler(seed)?;
        let tokenizer = engine.tokenizer();
        let tokens = |text: &str| tokenizer.encode(text, false).len();
        let reserved = match engine.chat_template() {
            Some(template) => {
                let around = template.around(false, &[]).map_err(inertiakv::Error::from)?;
                let control: usize = around.iter().map(|text| tokenizer.encode(text, true).len()).sum();
                control + 1
            }
            None => 1,
        };
        let default = [1024];
        let lengths = if self.lengths.is_empty() {
            &default[..]
        } else {
            &self.lengths
        };
        let mut examples = Vec::new();
        for &length in lengths {
            if length > engine.context() {
                return Err(EvalError::Setting(format!(
                    "a length of {length} does not fit into the context of {}; choose shorter lengths",
                    engine.context()
                )));
            }
            for task in self.tasks() {
                let fitted = ruler.fit(task, length, reserved, &tokens)?;
                for index in 0..samples {
                    examples.push(fitted.example(index, &tokens)?);
                }
            }
        }
        Ok(examples)
    }

    /// The generator, without examples yet.
    fn ruler(&self, seed: u64) -> Result<Ruler, EvalError> {
        let mut ruler = Ruler::new(self.profile, seed);
        if let Some(checkout) = &self.wording {
            ruler = ruler.with_wording(Wording::from_checkout(checkout)?);
        }
        if let Some(folder) = &self.words {
            ruler = ruler.with_words(WordLists::from_folder(folder)?);
        }
        if let Some(path) = &self.essays {
            ruler = ruler.with_prose(Prose::from_file(path)?);
        }
        if let Some(path) = &self.squad {
            ruler = ruler.with_squad(QuestionSet::from_squad(path)?);
        }
        if let Some(path) = &self.hotpotqa {
            ruler = ruler.with_hotpotqa(QuestionSet::from_hotpotqa(path)?);
        }
        Ok(ruler)
    }

    fn tasks(&self) -> Vec<RulerTask> {
        if !self.tasks.is_empty() {
            return self.tasks.clone();
        }
        let official = |task| match task {
            RulerTask::Facts1 if self.squad.is_some() => RulerTask::Qa1,
            RulerTask::Facts2 if self.hotpotqa.is_some() => RulerTask::Qa2,
            task => task,
        };
        RulerTask::BUILT_IN.map(official).to_vec()
    }
}

impl RulerFiles {
    fn examples(&self) -> Result<Vec<Example>, EvalError> {
        let mut examples = Vec::new();
        for (length, folder) in self.folders()? {
            let present = RulerTask::OFFICIAL
                .into_iter()
                .filter(|task| folder.join(task.name()).is_dir());
            let tasks = if self.tasks.is_empty() {
                present.collect()
            } else {
                self.tasks.clone()
            };
            if tasks.is_empty() {
                return Err(EvalError::Setting(format!(
                    "{} has no folder named after a task of RULER, such as niah_single_1; give the folder that the official \
                     prepare.py wrote to",
                    folder.display()
                )));
            }
            for task in tasks {
                let of_task = ruler_file(&folder.join(task.name()).join("validation.jsonl"))?;
                examples.extend(of_task.into_iter().map(|example| match length {
                    None => example,
                    Some(length) => {
                        let mut labels = example.labels;
                        labels.insert("length".to_owned(), length.to_string());
                        let id = example.id.replacen('/', &format!("/{length}/"), 1);
                        Example { id, labels, ..example }
                    }
                }));
            }
        }
        Ok(examples)
    }

    /// Folders of task folders, by length where they are apart.
    fn folders(&self) -> Result<Vec<(Option<usize>, PathBuf)>, EvalError> {
        let mut by_length = BTreeMap::new();
        for path in entries(&self.path)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Ok(length) = name.parse::<usize>() {
                let data = path.join("data");
                by_length.insert(length, if data.is_dir() { data } else { path });
            }
        }
        if by_length.is_empty() && self.lengths.is_empty() {
            return Ok(vec![(None, self.path.clone())]);
        }
        let lengths: Vec<usize> = if self.lengths.is_empty() {
            by_length.keys().copied().collect()
        } else {
            self.lengths.clone()
        };
        let folder = |length: usize| {
            let found = by_length.get(&length).cloned();
            found.map(|folder| (Some(length), folder)).ok_or_else(|| {
                EvalError::Setting(format!(
                    "{} has no folder named {length}; lengths can be chosen where each has its folder",
                    self.path.display()
                ))
            })
        };
        lengths.into_iter().map(folder).collect()
    }
}

impl LongBenchExamples {
    fn examples(&self) -> Result<Vec<Example>, EvalError> {
        let loader = LongBench::new(self.profile);
        let loader = match &self.config {
            Some(folder) => loader.with_config(folder)?,
            None => loader,
        };
        if !self.path.is_dir() {
            return of_tasks(loader.load(&self.path)?, &self.tasks);
        }
        let tasks = if self.tasks.is_empty() {
            let names = LongBenchTask::ALL.map(|task| [task.name.to_owned(), format!("{}_e", task.name)]);
            let is_there = |name: &String| self.path.join(format!("{name}.jsonl")).is_file();
            names.into_iter().flatten().filter(is_there).collect()
        } else {
            self.tasks.clone()
        };
        if tasks.is_empty() {
            return Err(EvalError::Setting(format!(
                "{} has no file named after a task of LongBench, such as qasper.jsonl; give the folder of data.zip",
                self.path.display()
            )));
        }
        let mut examples = Vec::new();
        for task in tasks {
            examples.extend(loader.load(&self.path.join(format!("{task}.jsonl")))?);
        }
        Ok(examples)
    }
}

impl NeedleExamples {
    fn examples(&self, engine: &Engine) -> Result<Vec<Example>, EvalError> {
        let mut source = match &self.source {
            Some(path) => NeedleSource::from_file(path)?,
            None => NeedleSource::built_in(),
        };
        if let Some(path) = &self.essays {
            source.context = Prose::from_file(path)?.text();
        }
        let paper = NeedleGrid::paper();
        let given = |own: &[f64], default: Vec<f64>| if own.is_empty() { default } else { own.to_vec() };
        let grid = NeedleGrid {
            lengths: if self.lengths.is_empty() {
                paper.lengths
            } else {
                self.lengths.clone()
            },
            depths: given(&self.depths, paper.depths),
            profile: self.profile,
        };
        if let Some(length) = grid.lengths.iter().find(|length| **length > engine.context()) {
            return Err(EvalError::Setting(format!(
                "a length of {length} does not fit into the context of {}; choose shorter lengths",
                engine.context()
            )));
        }
        grid.examples(&source, &PlainText(engine.tokenizer()))
    }
}

/// A tokenizer without special tokens.
struct PlainText<'a>(&'a Tokenizer);

impl TokenText for PlainText<'_> {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.0.encode(text, false)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.0.decode(tokens)
    }
}

/// Those of the tasks that were asked for, each of which must be there.
fn of_tasks(mut examples: Vec<Example>, tasks: &[String]) -> Result<Vec<Example>, EvalError> {
    if tasks.is_empty() {
        return Ok(examples);
    }
    if let Some(missing) = tasks.iter().find(|task| examples.iter().all(|e| e.task != **task)) {
        let mut known: Vec<&str> = examples.iter().map(|example| example.task.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        return Err(EvalError::UnknownTask {
            name: missing.clone(),
            known: known.join(", "),
        });
    }
    examples.retain(|example| tasks.contains(&example.task));
    Ok(examples)
}

fn first_of_each_task(mut examples: Vec<Example>, samples: Option<usize>) -> Vec<Example> {
    let Some(samples) = samples else { return examples };
    let mut taken: BTreeMap<(String, Option<String>), usize> = BTreeMap::new();
    examples.retain(|example| {
        let group = (example.task.clone(), example.labels.get("length").cloned());
        let taken = taken.entry(group).or_default();
        *taken += 1;
        *taken <= samples
    });
    examples
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, EvalError> {
    let unreadable = |source| EvalError::Unreadable {
        path: folder.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    Ok(paths)
}
