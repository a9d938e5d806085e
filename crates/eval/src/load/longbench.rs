//! How do `LongBench`'s files become examples?

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checked;
use crate::file::{json, json_lines};
use crate::metrics::{Metric, Scoring, ScoringProfile};
use crate::ruler::fill;
use crate::{Chat, EvalError, Example, Truncation};

/// One of the 21 tasks and how it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LongBenchTask {
    /// The name in files and results.
    pub name: &'static str,
    /// The official average is the mean of the means of these.
    pub category: &'static str,
    /// How answers are scored.
    pub metric: Metric,
    /// Most tokens of an answer.
    pub max_new_tokens: usize,
    /// Is the prompt put into a chat template?
    pub chat: bool,
    /// Does only the first line of an answer count?
    pub first_line: bool,
}

impl LongBenchTask {
    /// All tasks, in the official order.
    pub const ALL: [Self; 21] = [
        Self::new("narrativeqa", &SINGLE_DOCUMENT, Metric::QaF1, 128),
        Self::new("qasper", &SINGLE_DOCUMENT, Metric::QaF1, 128),
        Self::new("multifieldqa_en", &SINGLE_DOCUMENT, Metric::QaF1, 64),
        Self::new("multifieldqa_zh", &SINGLE_DOCUMENT, Metric::QaF1Chinese, 64),
        Self::new("hotpotqa", &MANY_DOCUMENTS, Metric::QaF1, 32),
        Self::new("2wikimqa", &MANY_DOCUMENTS, Metric::QaF1, 32),
        Self::new("musique", &MANY_DOCUMENTS, Metric::QaF1, 32),
        Self::new("dureader", &MANY_DOCUMENTS, Metric::RougeLChinese, 128),
        Self::new("gov_report", &SUMMARY, Metric::RougeL, 512),
        Self::new("qmsum", &SUMMARY, Metric::RougeL, 512),
        Self::new("multi_news", &SUMMARY, Metric::RougeL, 512),
        Self::new("vcsum", &SUMMARY, Metric::RougeLChinese, 512),
        Self::new("trec", &FEW_SHOT, Metric::Classification, 64),
        Self::new("triviaqa", &FEW_SHOT, Metric::QaF1, 32),
        Self::new("samsum", &FEW_SHOT, Metric::RougeL, 128),
        Self::new("lsht", &FEW_SHOT, Metric::Classification, 64),
        Self::new("passage_count", &SYNTHETIC, Metric::Count, 32),
        Self::new("passage_retrieval_en", &SYNTHETIC, Metric::Retrieval, 32),
        Self::new("passage_retrieval_zh", &SYNTHETIC, Metric::RetrievalChinese, 32),
        Self::new("lcc", &CODE, Metric::CodeSimilarity, 64),
        Self::new("repobench-p", &CODE, Metric::CodeSimilarity, 64),
    ];

    const fn new(name: &'static str, category: &Category, metric: Metric, max_new_tokens: usize) -> Self {
        Self {
            name,
            category: category.name,
            metric,
            max_new_tokens,
            chat: category.chat,
            first_line: category.first_line,
        }
    }

    /// The task of a name.
    ///
    /// # Errors
    ///
    /// There is no such task.
    pub fn named(name: &str) -> Result<Self, EvalError> {
        Self::ALL
            .into_iter()
            .find(|task| task.name == name)
            .ok_or_else(|| EvalError::UnknownTask {
                name: name.to_owned(),
                known: Self::ALL.map(|task| task.name).join(", "),
            })
    }

    /// How answers are scored.
    #[must_use]
    pub fn scoring(self, profile: ScoringProfile, classes: Vec<String>) -> Scoring {
        Scoring {
            metric: self.metric,
            profile,
            first_line: self.first_line,
            classes,
        }
    }
}

/// What the tasks of a category have in common.
struct Category {
    name: &'static str,
    chat: bool,
    first_line: bool,
}

const SINGLE_DOCUMENT: Category = Category::new("single-document QA", true, false);
const MANY_DOCUMENTS: Category = Category::new("multi-document QA", true, false);
const SUMMARY: Category = Category::new("summarization", true, false);
const FEW_SHOT: Category = Category::new("few-shot", false, true);
const SYNTHETIC: Category = Category::new("synthetic", true, false);
const CODE: Category = Category::new("code", false, false);

impl Category {
    const fn new(name: &'static str, chat: bool, first_line: bool) -> Self {
        Self { name, chat, first_line }
    }
}

/// Prompts and lengths, ours or those of a checkout.
#[derive(Debug, Clone, Default)]
pub struct LongBench {
    /// Prompts by task, and most new tokens; ours where there are none.
    config: Option<(BTreeMap<String, String>, BTreeMap<String, usize>)>,
    profile: ScoringProfile,
}

#[derive(Deserialize)]
struct Row {
    input: String,
    context: String,
    answers: Vec<String>,
    length: Option<usize>,
    language: Option<String>,
    all_classes: Option<Vec<String>>,
    #[serde(rename = "_id")]
    id: Option<String>,
}

impl LongBench {
    /// Our own prompts.
    #[must_use]
    pub fn new(profile: ScoringProfile) -> Self {
        Self { config: None, profile }
    }

    /// The official prompts: `LongBench/config` of a checkout, with `dataset2prompt.json` and `dataset2maxlen.json`.
    ///
    /// # Errors
    ///
    /// A file is missing or not a table of texts and of numbers.
    pub fn with_config(self, folder: &Path) -> Result<Self, EvalError> {
        let config = (
            json(&folder.join("dataset2prompt.json"))?,
            json(&folder.join("dataset2maxlen.json"))?,
        );
        Ok(Self {
            config: Some(config),
            ..self
        })
    }

    /// Reads a data file; its name is the task, with `_e` for `LongBench`-E.
    ///
    /// Officially an example keeps its middle out of a prompt that is too long, some tasks use no chat template, and
    /// summaries of dialogues stop at a newline. kvpress opens the model's turn with the cue, cuts the end of the context
    /// and grants 20 tokens more; it scores `LongBench`-E by the official rules.
    ///
    /// # Errors
    ///
    /// The file's name is no task, a row is not of the published form, or the configuration lacks the task.
    pub fn load(&self, path: &Path) -> Result<Vec<Example>, EvalError> {
        // The name of a file that is not there says nothing.
        std::fs::metadata(path).map_err(|source| EvalError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = stem.strip_suffix("_e");
        let is_e = name.is_some();
        let task = LongBenchTask::named(name.unwrap_or(&stem))?;
        let (template, max_new_tokens) = self.prompt(task)?;
        let kvpress = self.profile == ScoringProfile::Kvpress;
        let mut examples = Vec::new();
        for (line, row) in json_lines::<Row>(path)? {
            let parts = template.fill(&row);
            let mut labels = BTreeMap::from([
                ("category".to_owned(), task.category.to_owned()),
                (
                    "wording".to_owned(),
                    if self.config.is_some() { "official" } else { "own" }.to_owned(),
                ),
            ]);
            labels.extend(row.length.map(|length| ("words".to_owned(), length.to_string())));
            labels.extend(
                row.length
                    .filter(|_| is_e)
                    .map(|length| ("bin".to_owned(), bin(length).to_owned())),
            );
            labels.extend(row.language.map(|language| ("language".to_owned(), language)));
            let scoring_profile = if is_e { ScoringProfile::Official } else { self.profile };
            let example = Example {
                id: row.id.unwrap_or_else(|| format!("{stem}/{line}")),
                task: stem.to_string(),
                context: parts[0].clone(),
                question: parts[1].clone(),
                answer_prefix: parts[2].clone(),
                answers: row.answers,
                max_new_tokens: max_new_tokens + if kvpress { 20 } else { 0 },
                scoring: task.scoring(scoring_profile, row.all_classes.unwrap_or_default()),
                chat: match (kvpress, task.chat) {
                    (true, _) => Chat::AnswerPrefixApart,
                    (false, true) => Chat::WholePrompt,
                    (false, false) => Chat::Never,
                },
                truncation: Some(if kvpress { Truncation::End } else { Truncation::Middle }),
                stop_at_newline: task.name == "samsum" && !kvpress,
                labels,
            };
            examples.push((line, example));
        }
        checked(path, examples)
    }

    fn prompt(&self, task: LongBenchTask) -> Result<(Template, usize), EvalError> {
        let Some((prompts, lengths)) = &self.config else {
            return Ok((Template::of(own_prompt(task)), task.max_new_tokens));
        };
        match (prompts.get(task.name), lengths.get(task.name)) {
            (Some(prompt), Some(length)) => Ok((Template::of(prompt), *length)),
            _ => Err(EvalError::NoPrompt {
                task: task.name.to_owned(),
            }),
        }
    }
}

/// The bin of `LongBench`-E, by words.
fn bin(length: usize) -> &'static str {
    match length {
        0..4000 => "0-4k",
        4000..8000 => "4-8k",
        _ => "8k+",
    }
}

/// A prompt in three parts: up to the question, the question, and the cue on the last line.
struct Template {
    context: String,
    question: String,
    cue: String,
}

impl Template {
    /// Cuts a prompt where kvpress's data sets do: the question is the line of the input and what follows it, or all that
    /// follows the context if there is no input; the cue is the last line that is not blank.
    fn of(prompt: &str) -> Self {
        let context_end = prompt.find(CONTEXT).map_or(0, |at| at + CONTEXT.len());
        let tail = &prompt[context_end..];
        let written = tail.trim_end_matches('\n');
        let last_line = written.rfind('\n').map_or(0, |at| at + 1);
        // Where the input ends the prompt, the cue is its own last line.
        let cue = tail[last_line..]
            .find(INPUT)
            .map_or(last_line, |at| last_line + at + INPUT.len());
        let question = match tail.find(INPUT) {
            Some(input) => tail[..input].rfind('\n').map_or(0, |at| at + 1),
            None => (tail.len() - tail.trim_start_matches('\n').len()).min(cue),
        };
        Self {
            context: prompt[..context_end + question].to_owned(),
            question: tail[question..cue].to_owned(),
            cue: tail[cue..].to_owned(),
        }
    }

    fn fill(&self, row: &Row) -> [String; 3] {
        let mut input = row.input.as_str();
        let mut cue = self.cue.clone();
        if cue.is_empty() {
            let at = input.trim_end_matches('\n').rfind('\n').map_or(0, |at| at + 1);
            (input, cue) = (&input[..at], input[at..].to_owned());
        }
        let slots = [("context", row.context.as_str()), ("input", input)];
        [fill(&self.context, &slots), fill(&self.question, &slots), cue]
    }
}

const CONTEXT: &str = "{context}";
const INPUT: &str = "{input}";

/// Our own prompts, for those without a checkout.
fn own_prompt(task: LongBenchTask) -> &'static str {
    match task.name {
        "multifieldqa_zh" | "dureader" => {
            "请阅读下面的资料，然后用几个字回答问题。\n\n{context}\n\n问题：{input}\n答案："
        }
        "vcsum" => "请阅读下面的会议内容。\n\n{context}\n\n请概括以上会议。\n\n概括：",
        "passage_retrieval_zh" => {
            "下面有若干个编号的段落，最后是其中一段的概要。\n\n{context}\n\n概要：{input}\n\n概要属于哪一段？请用“段落1”的形式回答。\n\n答案："
        }
        "qmsum" => "Read the minutes of a meeting.\n\n{context}\n\nRequest: {input}\nAnswer:",
        "gov_report" | "multi_news" => {
            "Read the following text.\n\n{context}\n\nSum it up on about one page.\n\nSummary:"
        }
        "trec" | "triviaqa" | "samsum" | "lsht" => "{context}\n{input}",
        "passage_count" => {
            "Some of the paragraphs below stand there more than once.\n\n{context}\n\nHow many different paragraphs are there? Give \
             only the number.\n\nNumber: "
        }
        "passage_retrieval_en" => {
            "Below are numbered paragraphs, and after them the abstract of one.\n\n{context}\n\nAbstract: {input}\n\nWhich \
             paragraph is it of? Answer in the form `Paragraph 1`.\n\nAnswer: "
        }
        "lcc" | "repobench-p" => "Continue this code with its next line.\n{context}{input}Next line:\n",
        _ => {
            "Read the following text and answer the question after it in as few words as possible.\n\n{context}\n\nQuestion: {input}\nAnswer:"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LongBenchTask, Template, own_prompt};

    fn parts(prompt: &str) -> [String; 3] {
        let template = Template::of(prompt);
        [template.context, template.question, template.cue]
    }

    #[test]
    fn prompts_are_cut_at_question_and_cue() {
        assert_eq!(
            parts("I\n{context}\n\n I again.\n\nQ: {input}\n\nA:"),
            ["I\n{context}\n\n I again.\n\n", "Q: {input}\n\n", "A:"]
        );
        assert_eq!(
            parts("I\n{context}\n\nNow do.\n\nSummary:"),
            ["I\n{context}\n\n", "Now do.\n\n", "Summary:"]
        );
        assert_eq!(parts("I\n{context}\n\nSummary:"), ["I\n{context}\n\n", "", "Summary:"]);
        assert_eq!(parts("I\n{context}\n{input}"), ["I\n{context}\n", "{input}", ""]);
        assert_eq!(
            parts("I\n{context}{input}Next:\n"),
            ["I\n{context}", "{input}", "Next:\n"]
        );
        assert_eq!(parts("I\n{context}Next:\n"), ["I\n{context}", "", "Next:\n"]);
        assert_eq!(
            parts("{context}\n\n{input}\n\nForm.\n\nIs: "),
            ["{context}\n\n", "{input}\n\nForm.\n\n", "Is: "]
        );
    }

    #[test]
    fn cut_prompts_are_whole_again() {
        for task in LongBenchTask::ALL {
            assert_eq!(parts(own_prompt(task)).concat(), own_prompt(task), "{}", task.name);
        }
    }

    #[test]
    fn six_tasks_go_without_a_chat_template_and_four_by_their_first_line() {
        let names = |wanted: fn(&LongBenchTask) -> bool| -> Vec<&str> {
            LongBenchTask::ALL
                .iter()
                .filter(|task| wanted(task))
                .map(|task| task.name)
                .collect()
        };
        assert_eq!(
            names(|task| !task.chat),
            ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"]
        );
        assert_eq!(names(|task| task.first_line), ["trec", "triviaqa", "samsum", "lsht"]);
    }
}
