//! Do generated examples fit their length, hold their answers, and stay the same?

use std::cell::Cell;

use inertiakv_eval::Example;
use inertiakv_eval::ruler::{Ruler, RulerProfile, RulerTask};
use sha2::{Digest, Sha256};

/// About as many tokens as a model's tokenizer finds: pieces of words of five letters, digits by threes, single marks.
fn tokens(text: &str) -> usize {
    let pieces = |word: &str, size: usize| word.len().div_ceil(size);
    let kind = |c: char| (c.is_alphabetic(), c.is_ascii_digit(), c == ' ');
    let mut rest = text;
    let mut count = 0;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| kind(c) != kind(first)).unwrap_or(rest.len());
        count += match kind(first) {
            (true, ..) => pieces(&rest[..length], 5),
            (_, true, _) => pieces(&rest[..length], 3),
            (_, _, true) => 0,
            _ => rest[..length].chars().count(),
        };
        rest = &rest[length..];
    }
    count
}

fn example(profile: RulerProfile, task: RulerTask, length: usize, index: usize) -> Example {
    Ruler::new(profile, 42)
        .fit(task, length, 0, &tokens)
        .unwrap()
        .example(index, &tokens)
        .unwrap()
}

#[test]
fn prompts_fill_their_length_and_hold_their_answers() {
    for profile in RulerProfile::ALL {
        let ruler = Ruler::new(profile, 42);
        for (task, length) in RulerTask::BUILT_IN
            .into_iter()
            .flat_map(|task| [(task, 2048), (task, 16_384)])
        {
            let calls = Cell::new(0);
            let counted = |text: &str| {
                calls.set(calls.get() + 1);
                tokens(text)
            };
            let fitted = ruler.fit(task, length, 0, &counted).unwrap();
            assert!(
                calls.get() <= 24,
                "{task} in {length}: {} calls of the tokenizer",
                calls.get()
            );
            for index in 0..6 {
                let example = fitted.example(index, &tokens).unwrap();
                let used = tokens(&example.prompt()) + example.max_new_tokens;
                let overflows =
                    task == RulerTask::Fwe && profile != RulerProfile::Own && profile != RulerProfile::Ruler2026;
                let most = if overflows {
                    length + example.max_new_tokens
                } else {
                    length
                };
                assert!(used <= most, "{task} in {length} of {}: {used}", profile.name());
                // The official steps throw away up to 500 words at a time, and word lists can end.
                let ends = task == RulerTask::Cwe && length > 10_000;
                let fill = if profile == RulerProfile::Own {
                    0.97
                } else if ends {
                    0.3
                } else {
                    0.6
                };
                assert!(
                    used as f64 > fill * length as f64,
                    "{task} in {length} of {}: {used}",
                    profile.name()
                );
                let known = format!("{}{}", example.context, example.question);
                assert!(
                    example.answers.iter().all(|answer| known.contains(answer.as_str())),
                    "{task}"
                );
            }
        }
    }
}

#[test]
fn needles_are_as_many_as_the_task_says() {
    for (task, needles, answers) in [
        (RulerTask::NiahSingle1, 1, 1),
        (RulerTask::NiahSingle3, 1, 1),
        (RulerTask::NiahMultikey1, 4, 1),
        (RulerTask::NiahMultivalue, 4, 4),
        (RulerTask::NiahMultiquery, 4, 4),
    ] {
        let example = example(RulerProfile::Own, task, 4096, 0);
        assert_eq!(example.context.matches("One of the secret").count(), needles, "{task}");
        assert_eq!(example.answers.len(), answers, "{task}");
    }
    let uuids = example(RulerProfile::Own, RulerTask::NiahMultikey3, 4096, 0);
    assert!(uuids.context.matches("One of the secret uuids").count() > 30);
}

#[test]
fn frequent_words_are_the_most_frequent() {
    for index in 0..5 {
        let common = example(RulerProfile::Own, RulerTask::Cwe, 4096, index);
        let (_, list) = common.context.rsplit_once("in mind.\n").unwrap();
        let count = |word: &str| list.split_whitespace().filter(|other| *other == word).count();
        assert!(
            common.answers.iter().all(|word| count(word) == 30),
            "{:?}",
            common.answers
        );
        let coded = example(RulerProfile::Own, RulerTask::Fwe, 4096, index);
        let count = |word: &str| coded.context.split_whitespace().filter(|other| *other == word).count();
        let counts: Vec<usize> = coded.answers.iter().map(|word| count(word)).collect();
        assert!(
            counts[0] > counts[1] && counts[1] > counts[2] && count("...") > counts[0],
            "{counts:?}"
        );
    }
}

#[test]
fn variables_follow_one_chain() {
    let example = example(RulerProfile::Own, RulerTask::Vt, 4096, 3);
    let (_, text) = example.context.rsplit_once("Follow them.\n\n").unwrap();
    let assignments: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("VAR "))
        .map(str::trim_end)
        .collect();
    assert_eq!(assignments.len(), 5);
    for (index, pair) in example.answers.windows(2).enumerate() {
        assert_eq!(assignments[index + 1], format!("VAR {} = VAR {}", pair[1], pair[0]));
    }
    let value = assignments[0].rsplit(' ').next().unwrap();
    assert!(example.question.contains(value) && assignments[0].starts_with(&format!("VAR {} = ", example.answers[0])));
}

#[test]
fn the_solved_example_is_shared_only_by_the_rules_of_2024() {
    let front = |profile, index| {
        let example = example(profile, RulerTask::Vt, 4096, index);
        example.context.split("Question:").next().unwrap().to_owned()
    };
    for (profile, shared) in [
        (RulerProfile::Own, false),
        (RulerProfile::Ruler2026, false),
        (RulerProfile::RulerLegacy, true),
    ] {
        assert_eq!(front(profile, 0) == front(profile, 1), shared, "{}", profile.name());
    }
}

#[test]
fn kvpress_moves_the_space_to_the_question() {
    let legacy = example(RulerProfile::RulerLegacy, RulerTask::NiahSingle2, 4096, 0);
    let kvpress = example(RulerProfile::Kvpress, RulerTask::NiahSingle2, 4096, 0);
    assert_eq!(legacy.prompt(), kvpress.prompt());
    assert!(legacy.answer_prefix.starts_with(' ') && !kvpress.answer_prefix.starts_with(' '));
    assert!(kvpress.question.ends_with("? ") && kvpress.context.ends_with('\n'));
    assert_ne!(legacy.scoring, kvpress.scoring);
}

#[test]
fn what_does_not_fit_says_how_much_it_needs() {
    let ruler = Ruler::new(RulerProfile::Own, 42);
    for task in RulerTask::BUILT_IN {
        let error = ruler.fit(task, 100, 0, &tokens).unwrap_err().to_string();
        assert!(error.contains("does not fit into 100 tokens"), "{error}");
        assert!(ruler.fit(task, 0, 0, &tokens).is_err());
    }
    let error = ruler.fit(RulerTask::Qa1, 4096, 0, &tokens).unwrap_err().to_string();
    assert!(error.contains("SQuAD") && error.contains("facts_1"), "{error}");
    let facts = ruler.fit(RulerTask::Facts1, 4096, 0, &tokens).unwrap();
    assert!(
        facts
            .example(1_000_000, &tokens)
            .unwrap_err()
            .to_string()
            .contains("1152 questions")
    );
    assert!("qa_3".parse::<RulerTask>().unwrap_err().to_string().contains("facts_2"));
    assert_eq!(
        "niah_multikey_3".parse::<RulerTask>().unwrap(),
        RulerTask::NiahMultikey3
    );
}

/// Published numbers belong to these texts: a change of generator, words or rules must be seen.
#[test]
fn a_seed_gives_the_same_texts_forever() {
    let mut hash = Sha256::new();
    for profile in RulerProfile::ALL {
        for task in RulerTask::BUILT_IN {
            let example = example(profile, task, 2048, 1);
            hash.update(example.prompt());
            hash.update(example.answers.join("\n"));
        }
    }
    let digest = hash.finalize();
    assert_eq!(digest[..4], [110, 226, 228, 25], "{:?}", &digest[..4]);
}
