//! Are scores equal to those of the original code? `metrics.json` comes from running it (`make_metrics.py` beside it),
//! `metric-cases.json` are worked values of the project's specification.

use inertiakv_eval::Truncation;
use inertiakv_eval::metrics::{
    ChineseWords, LineSimilarity, Metric, Rouge, Scorer, Scoring, ScoringProfile, bin_percent, task_percent,
};
use serde::Deserialize;
use serde_json::Value;

use crate::support::{golden, golden_path};

#[derive(Deserialize)]
struct Original {
    qa_f1: Vec<Case>,
    rouge_l: Vec<Case>,
    rouge: Vec<RougeCase>,
    code_similarity: Vec<Case>,
    retrieval: Vec<Case>,
    count: Vec<Case>,
    classification: Vec<Case>,
    chinese_words: Vec<Cut>,
    qa_f1_chinese: Vec<Case>,
    rouge_l_chinese: Vec<Case>,
    means: Vec<Mean>,
}

#[derive(Deserialize)]
struct Case {
    pred: String,
    #[serde(rename = "ref")]
    reference: String,
    #[serde(default)]
    classes: Vec<String>,
    expected: f64,
}

#[derive(Deserialize)]
struct RougeCase {
    pred: String,
    #[serde(rename = "ref")]
    reference: String,
    expected: Option<Rouge>,
}

#[derive(Deserialize)]
struct Cut {
    text: String,
    words: Vec<String>,
}

#[derive(Deserialize)]
struct Mean {
    values: Vec<f64>,
    task: f64,
    bin: f64,
}

#[test]
fn scores_are_the_bits_of_the_original_code() {
    let original: Original = golden("metrics.json");
    let chinese = ChineseWords::from_package(&golden_path("jieba")).unwrap();
    let scorer = Scorer {
        chinese: Some(&chinese),
        ..Scorer::default()
    };
    let check = |metric: Metric, cases: &[Case]| {
        assert!(
            cases.iter().filter(|case| case.expected > 0.0).count() > cases.len() / 3,
            "{metric:?} is hardly tested"
        );
        for case in cases {
            let scoring = Scoring {
                classes: case.classes.clone(),
                ..Scoring::new(metric)
            };
            let score = scorer
                .score(&scoring, &case.pred, std::slice::from_ref(&case.reference))
                .unwrap();
            assert_eq!(
                score, case.expected,
                "{metric:?} of {:?} against {:?}",
                case.pred, case.reference
            );
        }
    };
    check(Metric::QaF1, &original.qa_f1);
    check(Metric::RougeL, &original.rouge_l);
    check(Metric::CodeSimilarity, &original.code_similarity);
    check(Metric::Retrieval, &original.retrieval);
    check(Metric::Count, &original.count);
    check(Metric::Classification, &original.classification);
    check(Metric::QaF1Chinese, &original.qa_f1_chinese);
    check(Metric::RougeLChinese, &original.rouge_l_chinese);
    for case in &original.rouge {
        assert_eq!(
            Rouge::between(&case.pred, &case.reference),
            case.expected,
            "{:?}",
            case.pred
        );
    }
    for cut in &original.chinese_words {
        assert_eq!(chinese.cut(&cut.text), cut.words, "{:?}", cut.text);
    }
    for mean in &original.means {
        assert_eq!(task_percent(Metric::QaF1, &mean.values), Some(mean.task));
        assert_eq!(
            bin_percent(&mean.values),
            Some(mean.bin),
            "{} values",
            mean.values.len()
        );
    }
}

#[test]
fn worked_cases_of_the_specification() {
    let file: Value = golden("metric-cases.json");
    let mut checked = 0;
    for case in file["cases"].as_array().unwrap() {
        let metric = case["metric"].as_str().unwrap();
        for check in case["checks"].as_array().unwrap() {
            match case["id"].as_str().unwrap() {
                "C01" => score_equals(Metric::QaF1, check),
                "C02" => score_equals(Metric::RougeL, check),
                "C03" => code_equals(check),
                "C05" => score_equals(Metric::Retrieval, check),
                "C07" => string_match_equals(check),
                "C09" => first_line_equals(check),
                "C10" => truncation_equals(check),
                other => panic!("no test reads the cases {other} ({metric})"),
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 40);
}

fn score_equals(metric: Metric, check: &Value) {
    assert_eq!(
        score(Scorer::default(), &Scoring::new(metric), check),
        check["expected"].as_f64().unwrap(),
        "{check}"
    );
}

fn code_equals(check: &Value) {
    score_equals(Metric::CodeSimilarity, check);
    let indel = Scorer {
        line_similarity: LineSimilarity::Indel,
        ..Scorer::default()
    };
    let expected = check["expected_if_python_levenshtein"].as_f64().unwrap();
    assert_eq!(
        score(indel, &Scoring::new(Metric::CodeSimilarity), check),
        expected,
        "{check}"
    );
}

fn string_match_equals(check: &Value) {
    let metric = if check["kind"] == "all" {
        Metric::StringMatchAll
    } else {
        Metric::StringMatchPart
    };
    for (profile, expected) in [
        (ScoringProfile::Official, "expected"),
        (ScoringProfile::Kvpress, "expected_kvpress"),
    ] {
        let scoring = Scoring {
            profile,
            ..Scoring::new(metric)
        };
        let predictions = strings(&check["preds"]);
        let references = check["refs"].as_array().unwrap().iter().map(strings);
        let scores: Vec<f64> = predictions
            .iter()
            .zip(references)
            .map(|(prediction, references)| Scorer::default().score(&scoring, prediction, &references).unwrap())
            .collect();
        assert_eq!(task_percent(metric, &scores), check[expected].as_f64(), "{check}");
    }
}

fn first_line_equals(check: &Value) {
    let mut scoring = Scoring {
        first_line: true,
        ..Scoring::new(Metric::QaF1)
    };
    let prediction = check["pred"].as_str().unwrap();
    assert_eq!(scoring.cleaned(prediction), check["first_line"].as_str().unwrap());
    if let Some(expected) = check["first_line_kvpress"].as_str() {
        scoring.profile = ScoringProfile::Kvpress;
        assert_eq!(scoring.cleaned(prediction), expected);
    }
}

fn truncation_equals(check: &Value) {
    let numbers = |key: &str| -> Vec<u64> {
        check[key]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .collect()
    };
    let limit = check["max_len"].as_u64().unwrap() as usize;
    for (rule, expected) in [(Truncation::Middle, "v1"), (Truncation::MiddleExact, "v2")] {
        let ids = numbers("ids");
        let (head, tail) = rule.keep(&ids, limit);
        assert_eq!([head, tail].concat(), numbers(expected), "{check}");
    }
}

fn score(scorer: Scorer<'_>, scoring: &Scoring, check: &Value) -> f64 {
    scorer
        .score(scoring, check["pred"].as_str().unwrap(), &strings(&check["refs"]))
        .unwrap()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap().to_owned())
        .collect()
}
