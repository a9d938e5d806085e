//! Which document answers a question, and among which others does it stand?

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use super::{Draft, Ruler};
use crate::EvalError;
use crate::dice::Dice;
use crate::file;

/// Questions over a corpus of documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionSet {
    documents: Vec<String>,
    questions: Vec<Question>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Question {
    text: String,
    answers: Vec<String>,
    /// Documents that hold the answer, and documents about the same thing.
    gold: Vec<usize>,
    near: Vec<usize>,
}

impl QuestionSet {
    /// `SQuAD` 2.0 (`dev-v2.0.json`): one gold paragraph, the others of its article near, impossible questions left out.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is of another format, or has no question with an answer.
    pub fn from_squad(path: &Path) -> Result<Self, EvalError> {
        let squad: squad::File = file::json(path)?;
        let paragraphs = || squad.data.iter().flat_map(|article| &article.paragraphs);
        let (documents, index) = corpus(paragraphs().map(|paragraph| paragraph.context.clone()));
        let mut questions = Vec::new();
        for article in &squad.data {
            let all: Vec<usize> = article
                .paragraphs
                .iter()
                .map(|paragraph| index[&paragraph.context])
                .collect();
            for paragraph in &article.paragraphs {
                let gold = index[&paragraph.context];
                questions.extend(paragraph.qas.iter().filter(|qa| !qa.is_impossible).map(|qa| Question {
                    text: qa.question.clone(),
                    answers: qa.answers.iter().map(|answer| answer.text.clone()).collect(),
                    gold: vec![gold],
                    near: all.iter().copied().filter(|document| *document != gold).collect(),
                }));
            }
        }
        Self { documents, questions }.checked(path)
    }

    /// `HotpotQA` (`hotpot_dev_distractor_v1.json`): the ten listed documents are gold.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is of another format, or has no question with an answer.
    pub fn from_hotpotqa(path: &Path) -> Result<Self, EvalError> {
        let items: Vec<hotpotqa::Item> = file::json(path)?;
        let text = |(title, sentences): &(String, Vec<String>)| format!("{title}\n{}", sentences.concat());
        let (documents, index) = corpus(items.iter().flat_map(|item| &item.context).map(text));
        let questions = items.iter().map(|item| Question {
            text: item.question.clone(),
            answers: vec![item.answer.clone()],
            gold: item.context.iter().map(|document| index[&text(document)]).collect(),
            near: Vec::new(),
        });
        Self {
            questions: questions.collect(),
            documents,
        }
        .checked(path)
    }

    /// Our own facts about people that do not exist. With two hops a person's document names an employer, and another
    /// document the town that employer is in.
    #[must_use]
    pub fn facts(two_hops: bool) -> &'static Self {
        static FACTS: [LazyLock<QuestionSet>; 2] = [
            LazyLock::new(|| facts::generate(false)),
            LazyLock::new(|| facts::generate(true)),
        ];
        &FACTS[usize::from(two_hops)]
    }

    /// How many questions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    /// Fewest documents of any question.
    pub(super) fn least_units(&self, index: usize) -> usize {
        self.questions[index].gold.len()
    }

    /// A question among so many documents; the corpus repeats if there are more.
    pub(super) fn draft(&self, ruler: &Ruler, index: usize, units: usize, dice: &mut Dice) -> Draft {
        let question = &self.questions[index];
        let mut chosen = if units < self.documents.len() {
            let free = units.saturating_sub(question.gold.len());
            let others = if free > question.near.len() {
                let taken: BTreeSet<usize> = question.gold.iter().chain(&question.near).copied().collect();
                let rest: Vec<usize> = (0..self.documents.len())
                    .filter(|document| !taken.contains(document))
                    .collect();
                let picked = dice.distinct(rest.len(), (free - question.near.len()).min(rest.len()));
                [
                    question.near.clone(),
                    picked.into_iter().map(|index| rest[index]).collect(),
                ]
                .concat()
            } else {
                dice.distinct(question.near.len(), free)
                    .into_iter()
                    .map(|index| question.near[index])
                    .collect()
            };
            [question.gold.clone(), others].concat()
        } else {
            (0..self.documents.len()).cycle().take(units).collect()
        };
        ruler.shuffle(&mut chosen, dice);
        let place = chosen.iter().position(|document| question.gold.contains(document));
        let numbered =
            |(place, document): (usize, &usize)| format!("Document {}:\n{}", place + 1, self.documents[*document]);
        Draft {
            context: chosen.iter().enumerate().map(numbered).collect::<Vec<_>>().join("\n\n"),
            slots: vec![("query", question.text.clone())],
            answers: question.answers.clone(),
            depth: place.map(|place| 100.0 * place as f64 / (chosen.len().max(2) - 1) as f64),
            ..Draft::default()
        }
    }

    fn checked(self, path: &Path) -> Result<Self, EvalError> {
        let bad = |what: String| EvalError::Format {
            path: path.to_owned(),
            line: 1,
            what,
        };
        if self.is_empty() {
            return Err(bad("there is no question with an answer in it".into()));
        }
        match self.questions.iter().find(|question| question.answers.is_empty()) {
            Some(question) => Err(bad(format!("the question `{}` has no answer", question.text))),
            None => Ok(self),
        }
    }
}

/// Sorted documents without repeats, and where each is.
fn corpus(documents: impl Iterator<Item = String>) -> (Vec<String>, BTreeMap<String, usize>) {
    let documents: BTreeSet<String> = documents.collect();
    let index = documents.iter().cloned().zip(0..).collect();
    (documents.into_iter().collect(), index)
}

mod squad {
    use super::Deserialize;

    #[derive(Deserialize)]
    pub(super) struct File {
        pub(super) data: Vec<Article>,
    }

    #[derive(Deserialize)]
    pub(super) struct Article {
        pub(super) paragraphs: Vec<Paragraph>,
    }

    #[derive(Deserialize)]
    pub(super) struct Paragraph {
        pub(super) context: String,
        pub(super) qas: Vec<Qa>,
    }

    #[derive(Deserialize)]
    pub(super) struct Qa {
        pub(super) question: String,
        pub(super) answers: Vec<Answer>,
        pub(super) is_impossible: bool,
    }

    #[derive(Deserialize)]
    pub(super) struct Answer {
        pub(super) text: String,
    }
}

mod hotpotqa {
    use super::Deserialize;

    #[derive(Deserialize)]
    pub(super) struct Item {
        pub(super) question: String,
        pub(super) answer: String,
        pub(super) context: Vec<(String, Vec<String>)>,
    }
}

mod facts {
    use super::{Question, QuestionSet};
    use crate::dice::Dice;

    /// People of one family name are near each other: their documents differ in what is asked.
    pub(super) fn generate(two_hops: bool) -> QuestionSet {
        let mut dice = Dice::new(0, "facts");
        let mut documents = Vec::new();
        let mut questions = Vec::new();
        for (f, family) in FAMILY_NAMES.into_iter().enumerate() {
            let first_of_family = documents.len();
            for (g, given) in GIVEN_NAMES.into_iter().enumerate() {
                let (town, trade, hobby) = (town(&mut dice), dice.pick(&TRADES), dice.pick(&HOBBIES));
                let year = 1850 + dice.below(120);
                // Every person has a firm of another name.
                let partner = FAMILY_NAMES[(f + 7) % FAMILY_NAMES.len()];
                let firm = format!("{partner} & {}", GIVEN_NAMES[(g + 5) % GIVEN_NAMES.len()]);
                let person = documents.len();
                let text = if two_hops {
                    documents.push(format!(
                        "{given} {family} was born in {year}, works as a {trade} for the firm {firm}, and spends the evenings with \
                         {hobby}."
                    ));
                    documents.push(format!(
                        "The firm {firm} was founded in {} and has its workshop in {town}.",
                        year + 25
                    ));
                    format!("In which town is the workshop of the firm that {given} {family} works for?")
                } else {
                    documents.push(format!(
                        "{given} {family} was born in {year} in {town}, learned the trade of a {trade}, and spends the evenings \
                         with {hobby}."
                    ));
                    format!("In which town was {given} {family} born?")
                };
                let gold = (person..documents.len()).collect();
                questions.push(Question {
                    text,
                    answers: vec![town],
                    gold,
                    near: Vec::new(),
                });
            }
            let last = questions.len() - GIVEN_NAMES.len();
            for question in &mut questions[last..] {
                let is_gold = |document: &usize| question.gold.contains(document);
                question.near = (first_of_family..documents.len())
                    .filter(|document| !is_gold(document))
                    .collect();
            }
        }
        dice.shuffle(&mut questions);
        QuestionSet { documents, questions }
    }

    fn town(dice: &mut Dice) -> String {
        [dice.pick(&TOWN_STARTS), dice.pick(&TOWN_ENDS)].concat()
    }

    const GIVEN_NAMES: [&str; 24] = [
        "Amalia",
        "Bertram",
        "Clarissa",
        "Dietmar",
        "Eleonora",
        "Fabian",
        "Gisela",
        "Hector",
        "Isolde",
        "Joachim",
        "Klara",
        "Lorenz",
        "Mathilda",
        "Norbert",
        "Olympia",
        "Quentin",
        "Rosalind",
        "Sebald",
        "Theodora",
        "Ulrich",
        "Valerie",
        "Wendelin",
        "Xenia",
        "Zacharias",
    ];
    const FAMILY_NAMES: [&str; 48] = [
        "Abendroth",
        "Birkenshaw",
        "Castellan",
        "Drosselmeyer",
        "Eisenhart",
        "Fairweather",
        "Goldacker",
        "Haverstock",
        "Immergrun",
        "Jarrow",
        "Kesselring",
        "Lindqvist",
        "Merryweather",
        "Nettleton",
        "Ostrander",
        "Pennywhistle",
        "Quistgaard",
        "Rosenzweig",
        "Silberling",
        "Thistlewood",
        "Underhay",
        "Vandermeer",
        "Winterbottom",
        "Yellowlees",
        "Zimmerling",
        "Ashcombe",
        "Brandvold",
        "Copperfield",
        "Dunmore",
        "Everard",
        "Featherstone",
        "Grimshaw",
        "Hollander",
        "Ironside",
        "Jessop",
        "Kingfisher",
        "Lockwood",
        "Marchbanks",
        "Northcote",
        "Oakhurst",
        "Ploughman",
        "Ravenscroft",
        "Saltmarsh",
        "Tannenbaum",
        "Vogelsang",
        "Whitlock",
        "Wolfram",
        "Yardley",
    ];
    const TRADES: [&str; 16] = [
        "baker",
        "bookbinder",
        "cartographer",
        "chemist",
        "clockmaker",
        "dyer",
        "engraver",
        "gardener",
        "glazier",
        "saddler",
        "shipwright",
        "stonemason",
        "surveyor",
        "tailor",
        "typesetter",
        "weaver",
    ];
    const HOBBIES: [&str; 12] = [
        "the violin",
        "old maps",
        "chess problems",
        "pressed ferns",
        "amateur theatricals",
        "the telescope",
        "choral music",
        "model boats",
        "watercolours",
        "crossword puzzles",
        "a stamp album",
        "the rose garden",
    ];
    const TOWN_STARTS: [&str; 24] = [
        "Alder", "Barrow", "Cray", "Drum", "Elm", "Fal", "Glen", "Harl", "Inver", "Kelm", "Lang", "Mar", "Nor", "Ober",
        "Pel", "Quarn", "Ros", "Sel", "Thorn", "Ulver", "Vel", "Wald", "Yar", "Zell",
    ];
    const TOWN_ENDS: [&str; 16] = [
        "bach", "bourne", "bridge", "by", "dale", "feld", "ford", "haven", "heim", "hurst", "mouth", "stead", "stoke",
        "thorpe", "wick", "worth",
    ];
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::QuestionSet;
    use crate::dice::Dice;
    use crate::ruler::{Ruler, RulerProfile};

    fn ruler(profile: RulerProfile) -> Ruler {
        Ruler::new(profile, 42)
    }

    #[test]
    fn gold_documents_are_always_there() {
        for two_hops in [false, true] {
            let facts = QuestionSet::facts(two_hops);
            for index in 0..100 {
                let least = facts.least_units(index);
                for units in [least, least + 1, 40, 200] {
                    let draft = facts.draft(&ruler(RulerProfile::Own), index, units, &mut Dice::new(7, "sample"));
                    assert!(draft.context.contains(&draft.answers[0]), "{units} documents");
                    assert_eq!(draft.context.matches("Document ").count(), units);
                }
            }
        }
    }

    #[test]
    fn official_profiles_keep_the_gold_document_at_one_place() {
        let facts = QuestionSet::facts(false);
        let depths = |profile: RulerProfile| {
            let depth = |index: usize| {
                let draft = facts.draft(&ruler(profile), index, 60, &mut Dice::new(index as u64, "sample"));
                draft.depth.unwrap() as usize
            };
            (0..20).map(depth).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!(depths(RulerProfile::Ruler2026), 1);
        assert!(depths(RulerProfile::Own) > 5);
    }

    #[test]
    fn files_of_both_formats_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("squad.json");
        let squad = r#"{"data": [{"title": "T", "paragraphs": [
            {"context": "B is here.", "qas": [
                {"question": "Who?", "id": "1", "answers": [{"text": "B", "answer_start": 0}, {"text": "B", "answer_start": 0}], "is_impossible": false},
                {"question": "Why?", "id": "2", "answers": [], "is_impossible": true}]},
            {"context": "A is there.", "qas": []}]}]}"#;
        fs::write(&path, squad).unwrap();
        let set = QuestionSet::from_squad(&path).unwrap();
        assert_eq!(set.len(), 1);
        assert_eq!(set.questions[0].answers, ["B", "B"]);
        assert_eq!(
            (set.questions[0].gold.clone(), set.questions[0].near.clone()),
            (vec![1], vec![0])
        );

        let hotpot = r#"[{"_id": "5", "question": "Who?", "answer": "yes", "context": [["T", ["One.", " Two."]], ["S", ["Three."]]],
            "supporting_facts": [], "type": "bridge", "level": "hard"}]"#;
        fs::write(&path, hotpot).unwrap();
        let set = QuestionSet::from_hotpotqa(&path).unwrap();
        assert_eq!(set.documents, ["S\nThree.", "T\nOne. Two."]);
        assert_eq!(set.questions[0].gold, [1, 0]);

        let error = QuestionSet::from_squad(&path).unwrap_err().to_string();
        assert!(error.contains("squad.json:1"), "{error}");
        fs::write(&path, r#"{"data": []}"#).unwrap();
        assert!(
            QuestionSet::from_squad(&path)
                .unwrap_err()
                .to_string()
                .contains("no question")
        );
    }
}
