//! Do files become the examples that the original scripts make of them, and do bad ones say what is wrong where?

use std::fs;
use std::path::{Path, PathBuf};

use inertiakv_eval::load::{
    KvpressData, LongBench, LongBenchV2, NeedleGrid, NeedleProfile, NeedleSource, TokenText, UserDefaults,
    kvpress_rows, ruler_file, user_file,
};
use inertiakv_eval::metrics::{Metric, ScoringProfile};
use inertiakv_eval::{Chat, EvalError, Example, Truncation};
use tempfile::TempDir;

/// A folder with one file in it.
fn file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn message<T>(result: Result<T, EvalError>) -> String {
    result.err().expect("the file is refused").to_string()
}

fn user(text: &str) -> Result<Vec<Example>, EvalError> {
    let (_folder, path) = file("mine.jsonl", text);
    user_file(&path, UserDefaults::default())
}

#[test]
fn a_users_file_needs_three_fields() {
    let text = concat!(
        "\u{feff}{\"context\": \"C\", \"question\": \"Q\", \"answers\": [\"a\", \"b\"], \"source\": \"web\", \"year\": 1999, \"level\": null}\r\n",
        "\n",
        r#"{"context": "C", "question": "Q", "answer": "a", "id": "x", "task": "t", "metric": "rouge_l", "max_new_tokens": 5}"#,
    );
    let examples = user(text).unwrap();
    assert_eq!(
        (
            examples[0].id.as_str(),
            examples[0].task.as_str(),
            examples[0].max_new_tokens
        ),
        ("1", "mine", 64)
    );
    assert_eq!(examples[0].answers, ["a", "b"]);
    assert_eq!(
        (
            examples[0].labels["source"].as_str(),
            examples[0].labels["year"].as_str()
        ),
        ("web", "1999")
    );
    assert_eq!(examples[0].labels.len(), 2, "null is no label");
    assert_eq!(
        (
            examples[1].id.as_str(),
            examples[1].scoring.metric,
            examples[1].max_new_tokens
        ),
        ("x", Metric::RougeL, 5)
    );
    let (_folder, path) = file("array.json", r#"[{"context": "", "question": "Q", "answers": "a"}]"#);
    assert_eq!(user_file(&path, UserDefaults::default()).unwrap()[0].task, "array");
}

#[test]
fn a_bad_row_is_named_by_its_line() {
    let good = r#"{"context": "C", "question": "Q", "answers": ["a"], "id": "x"}"#;
    for (bad, wanted) in [
        (r#"{"context": "C", "question": "Q"}"#, "answer"),
        (
            r#"{"context": "C", "question": "Q", "answers": [1]}"#,
            "answers must be a text or a list of texts",
        ),
        (
            r#"{"context": "C", "question": "Q", "answers": []}"#,
            "by the metric `string_match_part`: there is no right answer",
        ),
        (
            r#"{"context": "C", "question": "Q", "answers": "a", "metric": "f2"}"#,
            "unknown variant `f2`",
        ),
        (
            r#"{"context": "C", "question": "Q", "answers": "a", "metric": "classification"}"#,
            "classes",
        ),
        (r#"{"context": "C""#, "(column"),
        ("Some text.", "one JSON object per line"),
        (
            r#"{"context": "C", "question": "Q", "answers": "a", "answer_prefx": "x"}"#,
            "unknown key `answer_prefx`, is `answer_prefix` meant? The keys are context, question,",
        ),
        (
            r#"{"context": "C", "question": "Q", "answers": "a", "max_tokens": 1}"#,
            "is `max_new_tokens` meant?",
        ),
        (
            r#"{"context": "C", "question": "Q", "answers": "a", "words": ["x"]}"#,
            "unknown key `words`, which as a label must be a text",
        ),
        (
            r#"{"context": "C", "question": "Q", "answers": "a", "max_new_tokens": 0}"#,
            "`max_new_tokens` must be at least 1",
        ),
        (
            r#"{"context": "", "question": "", "answers": "a"}"#,
            "context and question are both empty",
        ),
        (good, "`x` occurs a second time"),
    ] {
        let error = message(user(&format!("{good}\n\n{bad}\n")));
        assert!(error.contains("mine.jsonl:3: ") && error.contains(wanted), "{error}");
    }
    assert!(message(user("\n")).contains("no rows"));
    assert!(message(user_file(Path::new("nowhere.jsonl"), UserDefaults::default())).contains("nowhere.jsonl"));
    let (_folder, path) = file("bytes.jsonl", "");
    fs::write(&path, b"\n{\"context\": \"\xff\"}").unwrap();
    let error = message(user_file(&path, UserDefaults::default()));
    assert!(error.contains("bytes.jsonl:2: this line is not UTF-8"), "{error}");
    let (folder, _path) = file("a", "");
    assert!(message(user_file(folder.path(), UserDefaults::default())).contains("cannot be read; check the path"));
}

#[test]
fn ruler_files_of_both_ages_are_split() {
    let current = r#"{"index": 500, "input": "Memorize. What is the special magic trick?\nWhat is the special magic number for a?", "outputs": ["1"], "length": 4000, "answer_prefix": " The special magic number for a is"}"#;
    let legacy = r#"{"index": 3, "input": "Text.\nQuestion: Find all variables that are 7. Answer: They are: ", "outputs": ["X", "Y"]}"#;
    let (_folder, path) = file("niah_single_2/validation.jsonl", &format!("{current}\n{current}\n"));
    let examples = ruler_file(&path).unwrap();
    assert_eq!(examples[1].id, "niah_single_2/2");
    assert_eq!(examples[0].context, "Memorize. What is the special magic trick?\n");
    assert_eq!(examples[0].question, "What is the special magic number for a?");
    assert_eq!(examples[0].answer_prefix, " The special magic number for a is");
    assert_eq!(
        (examples[0].max_new_tokens, examples[0].labels["tokens"].as_str()),
        (128, "4000")
    );

    let (_folder, path) = file("vt/validation.jsonl", legacy);
    let examples = ruler_file(&path).unwrap();
    assert_eq!(examples[0].question, "Question: Find all variables that are 7. ");
    assert_eq!(examples[0].answer_prefix, "Answer: They are: ");

    let (_folder, path) = file("vt/validation.jsonl", &format!("{legacy}\n{current}"));
    assert!(message(ruler_file(&path)).contains("validation.jsonl:2: the question should begin with"));
    let (_folder, path) = file("mine/validation.jsonl", legacy);
    assert!(message(ruler_file(&path)).contains("no task `mine`"));
}

#[test]
fn kvpress_rows_say_what_they_are_scored_by() {
    let ruler = r#"{"context": "C ", "question": "Q ", "answer_prefix": "A", "answer": ["1", "2"], "task": "TASK", "max_new_tokens": 128}"#;
    let (_folder, path) = file("r.jsonl", &ruler.replace("TASK", "qa_1"));
    let example = kvpress_rows(&path, KvpressData::Ruler).unwrap().remove(0);
    assert_eq!((example.prompt().as_str(), example.id.as_str()), ("C Q A", "qa_1/1"));
    assert_eq!(
        (example.scoring.metric, example.scoring.profile),
        (Metric::StringMatchPart, ScoringProfile::Kvpress)
    );
    let (_folder, path) = file("r.jsonl", &ruler.replace("TASK", "qa_7"));
    assert!(message(kvpress_rows(&path, KvpressData::Ruler)).contains("r.jsonl:1: there is no task `qa_7`"));

    let longbench = r#"{"context": "C", "question": "Q", "answer_prefix": "A", "answers": ["x"], "all_classes": ["x", "y"], "length": 3000, "dataset": "trec", "language": "en", "_id": "7f", "task": "trec", "max_new_tokens": 84}"#;
    let (_folder, path) = file("l.jsonl", longbench);
    let example = kvpress_rows(&path, KvpressData::LongBench).unwrap().remove(0);
    assert_eq!(
        (
            example.id.as_str(),
            example.scoring.first_line,
            example.labels["words"].as_str()
        ),
        ("7f", true, "3000")
    );
    assert_eq!(example.scoring.classes, ["x", "y"]);
    let (_folder, path) = file(
        "l.jsonl",
        &longbench.replace("\"task\": \"trec\"", "\"task\": \"trec-e\""),
    );
    let example = kvpress_rows(&path, KvpressData::LongBenchE).unwrap().remove(0);
    assert_eq!(example.scoring.profile, ScoringProfile::Official);

    let v2 = r#"{"context": "C", "question": "Q", "answer": "B", "difficulty": "hard", "length": "long", "_id": "9", "max_new_tokens": 16, "answer_prefix": ""}"#;
    let (_folder, path) = file("v2.jsonl", v2);
    let example = kvpress_rows(&path, KvpressData::LongBenchV2).unwrap().remove(0);
    assert_eq!(
        (example.answers[0].as_str(), example.labels["difficulty"].as_str()),
        ("B", "hard")
    );
}

const LONGBENCH_ROW: &str = r#"{"input": "Dialogue: {context}\nSummary:", "context": "SHOTS", "answers": ["x"], "length": 4000, "dataset": "samsum", "language": "en", "all_classes": null, "_id": "1"}"#;

#[test]
fn longbench_prompts_come_from_the_users_config() {
    let (folder, path) = file("samsum_e.jsonl", LONGBENCH_ROW);
    fs::write(
        folder.path().join("dataset2prompt.json"),
        r#"{"samsum": "Do it.\n\n{context}\n\n{input}"}"#,
    )
    .unwrap();
    fs::write(folder.path().join("dataset2maxlen.json"), r#"{"samsum": 128}"#).unwrap();
    let load = |profile| {
        LongBench::new(profile)
            .with_config(folder.path())
            .unwrap()
            .load(&path)
            .unwrap()
            .remove(0)
    };
    let official = load(ScoringProfile::Official);
    assert_eq!(official.prompt(), "Do it.\n\nSHOTS\n\nDialogue: {context}\nSummary:");
    assert_eq!(
        (official.question.as_str(), official.answer_prefix.as_str()),
        ("Dialogue: {context}\n", "Summary:")
    );
    assert_eq!(
        (official.chat, official.max_new_tokens, official.stop_at_newline),
        (Chat::Never, 128, true)
    );
    assert_eq!(
        (official.truncation, official.labels["bin"].as_str()),
        (Some(Truncation::Middle), "4-8k")
    );
    let kvpress = load(ScoringProfile::Kvpress);
    assert_eq!(
        (kvpress.chat, kvpress.max_new_tokens, kvpress.stop_at_newline),
        (Chat::AnswerPrefixApart, 148, false)
    );
    assert_eq!(
        (kvpress.scoring.profile, kvpress.prompt()),
        (ScoringProfile::Official, official.prompt())
    );

    fs::write(folder.path().join("dataset2maxlen.json"), "{\n\"lcc\": 64}").unwrap();
    let config = LongBench::new(ScoringProfile::Official)
        .with_config(folder.path())
        .unwrap();
    assert!(message(config.load(&path)).contains("no prompt and length for `samsum`"));
    fs::write(folder.path().join("dataset2maxlen.json"), "{\n\"lcc\": \"x\"}").unwrap();
    let error = message(LongBench::new(ScoringProfile::Official).with_config(folder.path()));
    assert!(error.contains("dataset2maxlen.json:2: "), "{error}");
}

#[test]
fn longbench_runs_without_a_config_in_our_words() {
    let own = LongBench::new(ScoringProfile::Official);
    let (folder, path) = file("samsum.jsonl", LONGBENCH_ROW);
    let example = own.load(&path).unwrap().remove(0);
    assert_eq!(
        (example.prompt().as_str(), example.labels["wording"].as_str()),
        ("SHOTS\nDialogue: {context}\nSummary:", "own")
    );
    assert!(!example.labels.contains_key("bin"));
    let wrong = folder.path().join("trec.jsonl");
    fs::write(&wrong, LONGBENCH_ROW).unwrap();
    assert!(message(own.load(&wrong)).contains("trec.jsonl:1: ") && message(own.load(&wrong)).contains("classes"));
    let unknown = folder.path().join("samsung.jsonl");
    fs::write(&unknown, LONGBENCH_ROW).unwrap();
    assert!(message(own.load(&unknown)).contains("no task `samsung`"));
}

#[test]
fn longbench_v2_fills_its_markers_one_after_the_other() {
    let row = r#"{"_id": "5", "domain": "D", "sub_domain": "S", "difficulty": "easy", "length": "short", "question": " Why? ", "choice_A": "a\n", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "C", "context": "\nDoc with $C_A$. "}"#;
    let (folder, path) = file("data.json", &format!("[{row}]"));
    let prompt = folder.path().join("0shot.txt");
    fs::write(
        &prompt,
        "Read.\n<text>\n$DOC$\n</text>\n\nAsk: $Q$\n(A) $C_A$ (B) $C_B$ (C) $C_C$ (D) $C_D$",
    )
    .unwrap();
    let benchmark = LongBenchV2::new(ScoringProfile::Official).with_prompt(&prompt).unwrap();
    let example = benchmark.load(&path).unwrap().remove(0);
    assert_eq!(example.context, "Read.\n<text>\nDoc with a.\n</text>\n\n");
    assert_eq!(example.question, "Ask: Why?\n(A) a (B) b (C) c (D) d");
    assert_eq!(
        (example.max_new_tokens, example.truncation),
        (128, Some(Truncation::MiddleExact))
    );
    assert_eq!(
        (example.labels["difficulty"].as_str(), example.labels["length"].as_str()),
        ("easy", "short")
    );
    let own = LongBenchV2::new(ScoringProfile::Kvpress).load(&path).unwrap().remove(0);
    assert!(own.question.starts_with("Question: Why?") && own.max_new_tokens == 16);

    fs::write(&prompt, "$DOC$ $Q$").unwrap();
    assert!(message(LongBenchV2::new(ScoringProfile::Official).with_prompt(&prompt)).contains("no `$C_A$`"));
    fs::write(
        &path,
        format!("[{row},\n{}]", row.replace("\"answer\": \"C\"", "\"answer\": \"c\"")),
    )
    .unwrap();
    assert!(message(benchmark.load(&path)).contains("data.json:2: the answer `c`"));
}

/// Every character is a token.
struct Characters;

impl TokenText for Characters {
    fn encode(&self, text: &str) -> Vec<u32> {
        text.chars().map(u32::from).collect()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        tokens.iter().filter_map(|token| char::from_u32(*token)).collect()
    }
}

fn source(context: &str) -> NeedleSource {
    NeedleSource {
        context: context.to_owned(),
        needle: "<N>".to_owned(),
        frame: "[{context}]".to_owned(),
        ..NeedleSource::built_in()
    }
}

fn contexts(profile: NeedleProfile, length: usize, text: &str) -> Vec<String> {
    let grid = NeedleGrid {
        lengths: vec![length],
        depths: vec![0.0, 45.0, 100.0],
        profile,
    };
    grid.examples(&source(text), &Characters)
        .unwrap()
        .into_iter()
        .map(|example| example.context)
        .collect()
}

#[test]
fn needles_lie_where_each_profile_puts_them() {
    // Ten tokens of text: the length less the needle and what is kept free.
    let text = "ab. cd. efgh.";
    assert_eq!(
        contexts(NeedleProfile::Kvpress, 163, text),
        ["[<N>ab. cd. ef]", "[ab. <N>cd. ef]", "[ab. cd. ef<N>]"]
    );
    assert_eq!(
        contexts(NeedleProfile::Kamradt, 213, text),
        ["[<N>ab. cd. ef]", "[ab.<N> cd. ef]", "[ab. cd. ef<N>]"]
    );
    // Only the original repeats a text that is too short.
    assert_eq!(contexts(NeedleProfile::Kamradt, 213, "x.")[2], "[x.x.x.x.x.<N>]");
    let grid = NeedleGrid {
        lengths: vec![163],
        depths: vec![0.0],
        profile: NeedleProfile::Kvpress,
    };
    assert!(message(grid.examples(&source("x."), &Characters)).contains("the text has 2 tokens"));
    let tiny = NeedleGrid {
        lengths: vec![153],
        ..grid.clone()
    };
    assert!(message(tiny.examples(&source(text), &Characters)).contains("no room"));
    let deep = NeedleGrid {
        depths: vec![101.0],
        ..grid
    };
    assert!(message(deep.examples(&source(text), &Characters)).contains("the depth 101"));
}

#[test]
fn the_papers_grid_has_108_cells() {
    let grid = NeedleGrid::paper();
    assert_eq!((grid.lengths.len(), grid.depths.len()), (12, 9));
    assert_eq!((grid.lengths[11], grid.depths[8]), (120_000, 100.0));
    let examples = NeedleGrid {
        lengths: vec![2000],
        ..grid
    }
    .examples(&NeedleSource::built_in(), &Characters)
    .unwrap();
    assert_eq!(examples[1].id, "niah/2000/12.5");
    assert!(
        examples
            .iter()
            .all(|example| example.context.contains(example.answers[0].trim()))
    );
}

#[test]
fn a_needle_row_of_kvpress_is_read() {
    let row = r#"{"context": "T", "needle": "N", "question": "Q", "answer_prefix": "A", "max_new_tokens": 50}"#;
    let (_folder, path) = file("essays.jsonl", row);
    let source = NeedleSource::from_file(&path).unwrap();
    assert_eq!((source.needle.as_str(), source.max_new_tokens), ("N", 50));
    let (_folder, path) = file("essays.json", "[]");
    assert!(message(NeedleSource::from_file(&path)).contains("no row"));
}
