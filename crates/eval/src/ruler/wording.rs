//! In which words is a task put?

use std::collections::HashMap;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::Family;
use crate::EvalError;
use crate::file;

/// Prompt texts of all tasks. Ours are built in; the official ones are read from a checkout of NVIDIA/RULER.
#[derive(Debug, Clone)]
pub struct Wording {
    /// `own` or `official`, for results.
    pub(super) name: &'static str,
    templates: HashMap<Family, Template>,
    /// The needle task when there is one answer.
    one_needle: Template,
    needle: String,
    pub(super) noise: String,
}

/// A prompt: what stands before the context, after it (space between them included), and the beginning of the answer.
#[derive(Debug, Clone)]
struct Template {
    before: String,
    after: String,
    prefix: String,
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) context: String,
    pub(super) question: String,
    pub(super) answer_prefix: String,
}

impl Parts {
    pub(super) fn text(&self) -> String {
        [self.context.as_str(), &self.question, &self.answer_prefix].concat()
    }
}

impl Wording {
    /// Our own words.
    #[must_use]
    pub fn own() -> Self {
        let needles = |values: &str, are: &str, which: &str| Template {
            before: format!(
                "Secret {values} are hidden in the text below, each with the name it belongs to. Read carefully, you \
                             will be asked for {which}.\n"
            ),
            after: "\nWhich secret {type_needle_v} does the text give for {query}?".into(),
            prefix: format!(" The secret {{type_needle_v}} that the text gives for {{query}} {are}"),
        };
        let template = |before: &str, after: &str, prefix: &str| Template {
            before: before.into(),
            after: after.into(),
            prefix: prefix.into(),
        };
        let question = "Answer the question from the documents alone, with the answer and nothing else.";
        Self {
            name: "own",
            one_needle: needles("{type_needle_v}s", "is", "one of them"),
            templates: HashMap::from([
                (Family::Needles, needles("{type_needle_v}", "are", "some of them")),
                (
                    Family::Variables,
                    template(
                        "In the text below some variables are set to a number and others to the value of another variable. \
                         Follow them.\n\n",
                        "\nQuestion: Which variables have the value {query}, directly or through others?",
                        " Answer: The {num_v} variables that have the value {query} are:",
                    ),
                ),
                (
                    Family::CommonWords,
                    template(
                        "Here is a numbered list of words, in which some words stand more often than others. Keep those in \
                         mind.\n",
                        "\nQuestion: Which 10 words stand in the list most often?",
                        " Answer: The 10 most frequent words of the list are:",
                    ),
                ),
                (
                    Family::CodedWords,
                    template(
                        "Here is a text in code. Count how often each coded word stands in it.\n",
                        "\nQuestion: Leave out the dots. Which three coded words are the most frequent?",
                        " Answer: The three most frequent coded words are:",
                    ),
                ),
                (
                    Family::Questions,
                    template(
                        &format!("{question}\n\nDocuments:\n\n"),
                        &format!("\n\n{question}\n\nQuestion: {{query}}"),
                        " Answer:",
                    ),
                ),
            ]),
            needle: "One of the secret {type_needle_v} of {key} is: {value}.".into(),
            noise: "The rain is soft. The road is long. A bird is singing. We walk on. Then we rest.".into(),
        }
    }

    /// The official words, recognised by their hashes in the Python files of `scripts/data/synthetic`.
    ///
    /// # Errors
    ///
    /// A file is missing or does not contain the text of the version that is known.
    pub fn from_checkout(ruler: &Path) -> Result<Self, EvalError> {
        let folder = ruler.join("scripts/data/synthetic");
        let literals = |name: &str| {
            let path = folder.join(name);
            let text = file::text(&path)?;
            let literals = string_literals(&text);
            Ok::<_, EvalError>(move |what: &str, hash: &str| {
                let found = literals.iter().find(|literal| short_hash(literal) == hash).cloned();
                found.ok_or_else(|| EvalError::Format {
                    path: path.clone(),
                    line: 1,
                    what: format!("it does not contain {what} as of 2026 (SHA-256 {hash}…); check out that version"),
                })
            })
        };
        let constants = literals("constants.py")?;
        let mut templates = HashMap::new();
        for (family, template, prefix) in OFFICIAL {
            let template = constants(&format!("the prompt of {family:?}"), template)?;
            let prefix = constants(&format!("the answer's beginning of {family:?}"), prefix)?;
            // The hash fixes the text, so the context is there.
            let (before, after) = template.split_once("{context}").unwrap_or((&template, ""));
            templates.insert(
                family,
                Template {
                    before: before.into(),
                    after: after.into(),
                    prefix,
                },
            );
        }
        let niah = literals("niah.py")?;
        Ok(Self {
            name: "official",
            one_needle: templates[&Family::Needles].singular(),
            templates,
            needle: niah("the needle", OFFICIAL_NEEDLE)?,
            noise: niah("the noise", OFFICIAL_NOISE)?,
        })
    }

    /// A needle sentence; the kind is in the plural in all tasks.
    pub(super) fn needle(&self, kind: &str, key: &str, value: &str) -> String {
        fill(&self.needle, &[("type_needle_v", kind), ("key", key), ("value", value)])
    }

    /// Puts a context and what is asked into a template.
    pub(super) fn render(&self, family: Family, one_answer: bool, context: &str, slots: &[(&str, &str)]) -> Parts {
        let template = if family == Family::Needles && one_answer {
            &self.one_needle
        } else {
            &self.templates[&family]
        };
        let question = template.after.trim_start();
        let space = &template.after[..template.after.len() - question.len()];
        Parts {
            context: [&fill(&template.before, slots), context, space].concat(),
            question: fill(question, slots),
            answer_prefix: fill(&template.prefix, slots),
        }
    }
}

impl Template {
    /// The official way to the singular: replacements all over the text, in this order.
    fn singular(&self) -> Self {
        let singular = |text: &str| {
            let text = text.replace("Some", "A").replace("are all", "is");
            text.replace("are", "is").replace("answers", "answer")
        };
        Self {
            before: singular(&self.before),
            after: singular(&self.after),
            prefix: singular(&self.prefix),
        }
    }
}

/// Prompt and answer's beginning of each family: the first 16 hexadecimal digits of the SHA-256 of the text.
const OFFICIAL: [(Family, &str, &str); 5] = [
    (Family::Needles, "b373c00e238df12b", "994f3a46e763414f"),
    (Family::Variables, "fcfaf2eab2bc3e35", "4a4e9010ec4141a3"),
    (Family::CommonWords, "45fff5d17627b65a", "8ee526599bbc7372"),
    (Family::CodedWords, "a0c7b873cf500d6c", "9a72271c5762c96d"),
    (Family::Questions, "18a659c9723f24f1", "255204f061d7e266"),
];
const OFFICIAL_NEEDLE: &str = "8b1728a938426e42";
const OFFICIAL_NOISE: &str = "c2fcf70de6081e6f";

fn short_hash(text: &str) -> String {
    let mut hash = inertiakv::catalog::hexadecimal(&Sha256::digest(text.as_bytes()));
    hash.truncate(16);
    hash
}

/// Replaces `{name}` by its value; what is inserted is not looked at again.
pub(crate) fn fill(template: &str, slots: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        rest = &rest[open..];
        let slot = slots.iter().find_map(|(name, value)| {
            let after = rest[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((*value, after))
        });
        if let Some((value, after)) = slot {
            filled.push_str(value);
            rest = after;
        } else {
            filled.push('{');
            rest = &rest[1..];
        }
    }
    filled + rest
}

/// String literals of a Python source, as far as it needs to be understood here: one or three quotes, simple escapes, no
/// comments with quotes in them before the strings that are looked for.
fn string_literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find(['"', '\'', '#']) {
        rest = &rest[start..];
        if rest.starts_with('#') {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            continue;
        }
        let quote = &rest[..1];
        let triple = quote.repeat(3);
        let quote = if rest.starts_with(&triple) {
            triple.as_str()
        } else {
            quote
        };
        rest = &rest[quote.len()..];
        let mut literal = String::new();
        while let Some(character) = rest.chars().next() {
            if rest.starts_with(quote) {
                rest = &rest[quote.len()..];
                break;
            }
            rest = &rest[character.len_utf8()..];
            if character != '\\' {
                literal.push(character);
                continue;
            }
            let escaped = rest.chars().next();
            rest = &rest[escaped.map_or(0, char::len_utf8)..];
            match escaped {
                Some('n') => literal.push('\n'),
                Some('t') => literal.push('\t'),
                Some(quoted @ ('\\' | '\'' | '"')) => literal.push(quoted),
                Some(other) => literal.extend(['\\', other]),
                None => {}
            }
        }
        literals.push(literal);
    }
    literals
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Family, Template, Wording, fill, short_hash, string_literals};

    #[test]
    fn python_strings_are_understood() {
        let source = "a = \"x\\n'y'\" # don't\nb = '''p\"q\n\\'r'''\nc = ''\nd = \"\\d\"";
        assert_eq!(string_literals(source), ["x\n'y'", "p\"q\n'r", "", "\\d"]);
        assert_eq!(string_literals("'open"), ["open"]);
    }

    #[test]
    fn what_is_inserted_is_not_a_slot() {
        assert_eq!(fill("{a} {b} {c} {", &[("a", "{b}"), ("b", "x")]), "{b} x {c} {");
    }

    #[test]
    fn one_answer_is_asked_for_in_the_singular() {
        let wording = Wording::own();
        let slots = [("type_needle_v", "number"), ("query", "old-oak")];
        let parts = wording.render(Family::Needles, true, "TEXT", &slots);
        assert!(parts.context.starts_with("Secret numbers are") && parts.context.ends_with("TEXT\n"));
        assert_eq!(parts.question, "Which secret number does the text give for old-oak?");
        assert_eq!(
            parts.answer_prefix,
            " The secret number that the text gives for old-oak is"
        );
        let template = Template {
            before: "Some are".into(),
            after: "are all answers".into(),
            prefix: "care".into(),
        };
        let singular = template.singular();
        assert_eq!(
            (singular.before, singular.after, singular.prefix),
            ("A is".into(), "is answer".into(), "cis".into())
        );
    }

    #[test]
    fn another_version_of_the_official_words_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Wording::from_checkout(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("constants.py"), "{missing}");
        let synthetic = folder.path().join("scripts/data/synthetic");
        fs::create_dir_all(&synthetic).unwrap();
        fs::write(
            synthetic.join("constants.py"),
            "TASKS = {'niah': {'template': '''changed {context}'''}}",
        )
        .unwrap();
        let changed = Wording::from_checkout(folder.path()).unwrap_err().to_string();
        assert!(
            changed.contains("the prompt of Needles") && changed.contains("b373c00e238df12b"),
            "{changed}"
        );
        assert_eq!(short_hash(""), "e3b0c44298fc1c14");
    }
}
