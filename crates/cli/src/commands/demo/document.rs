//! The document of the demo: a made-up chronicle of a small town with a few facts hidden in it.
//!
//! The same seed gives the same document. What is hidden was chosen by measurement: with its whole cache the default
//! model of 135 million weights answered all of them on each of 16 seeds (on longer documents, or with more facts, it
//! misses some). It mixes up facts of one kind (several codes, several names), so every fact here is of another kind, and
//! the question comes with the beginning of its answer, as in the RULER benchmark: what it says next is then the fact or
//! nothing.

/// A document that hides facts.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) text: String,
    pub(super) facts: Vec<Fact>,
}

/// Something to find.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    /// What is asked.
    pub(super) question: &'static str,
    /// The beginning of the answer, which the document has word for word.
    pub(super) lead: &'static str,
    /// The number a right answer goes on with.
    pub(super) answer: String,
    /// How the sentence ends in the document.
    tail: &'static str,
}

impl Fact {
    /// Whether a text that follows the lead names the answer, as a whole number.
    pub(super) fn is_found_in(&self, text: &str) -> bool {
        text.split(|letter: char| !letter.is_alphanumeric())
            .any(|word| word == self.answer)
    }

    fn sentence(&self) -> String {
        format!("{} {}{}", self.lead, self.answer, self.tail)
    }
}

/// Facts of a document.
const FACTS: usize = 5;
/// Paragraphs of a document, about 40 tokens each.
const PARAGRAPHS: usize = 42;
/// Sentences of a paragraph.
const SENTENCES: usize = 3;

const PEOPLE: &[&str] = &[
    "The baker",
    "A young sailor",
    "The schoolteacher",
    "An old fisherman",
    "A travelling painter",
    "The miller",
    "The postwoman",
    "A group of children",
    "The carpenter",
    "A farmer from the hills",
    "The innkeeper",
    "The gardener",
    "The clockmaker",
];
const DOINGS: &[&str] = &[
    "walked along the quay",
    "repaired a wooden boat",
    "sang an old song",
    "sold apples at the market",
    "told a story about the sea",
    "swept the stone steps",
    "watched the clouds drift by",
    "mended a torn net",
    "carried baskets of bread",
    "painted the garden fence",
    "waited for the evening ferry",
    "played cards with friends",
    "wrote a long letter home",
    "fed the gulls near the pier",
    "polished the brass bell",
    "planted roses by the wall",
    "cooked a pot of fish soup",
    "read the newspaper aloud",
];
const TIMES: &[&str] = &[
    "in the morning",
    "after lunch",
    "before the rain began",
    "late in the evening",
    "while the tide was low",
    "on the first warm day of spring",
    "during the harvest",
    "when the fog lifted",
    "at sunset",
    "in the quiet of winter",
    "as the church bells rang",
    "all through the afternoon",
];
const REMARKS: &[&str] = &[
    "Nobody in the street paid much attention.",
    "The wind smelled of salt and smoke.",
    "Everyone agreed that it was a good day.",
    "A dog barked somewhere behind the houses.",
    "The harbour was calm and the water was grey.",
    "Later the neighbours talked about it over tea.",
    "The market square slowly filled with people.",
    "It was the kind of day that is soon forgotten.",
    "Some said that the weather would change.",
    "The smell of fresh bread drifted through the lanes.",
    "Far out on the water a foghorn sounded.",
    "The lamps were lit one after another.",
];
/// Generates the document of a seed.
pub(super) fn generate(seed: u64) -> Document {
    let mut random = Random(seed);
    let mut facts = facts(&mut random);
    random.shuffle(&mut facts);
    let mut paragraphs: Vec<Vec<String>> = (0..PARAGRAPHS)
        .map(|_| (0..SENTENCES).map(|_| prose(&mut random)).collect())
        .collect();
    // Facts are spread evenly, away from both ends, and neither begin nor end a paragraph.
    for (index, fact) in facts.iter().enumerate() {
        let paragraph = (index + 1) * PARAGRAPHS / (FACTS + 1);
        let sentence = 1 + random.below(SENTENCES - 1);
        paragraphs[paragraph].insert(sentence, fact.sentence());
    }
    let paragraphs: Vec<String> = paragraphs.iter().map(|sentences| sentences.join(" ")).collect();
    Document {
        text: paragraphs.join("\n\n"),
        facts: facts.to_vec(),
    }
}

/// What is hidden. All are numbers of several tokens: the first token of an answer is chosen while everything is
/// still in the cache (entries leave at the end of a step), so a fact of one token would survive any method.
fn facts(random: &mut Random) -> [Fact; FACTS] {
    let mut fact = |question, lead, (from, to): (usize, usize), tail| Fact {
        question,
        lead,
        answer: (from + random.below(to - from)).to_string(),
        tail,
    };
    [
        fact(
            "In which year was the old stone bridge built?",
            "The old stone bridge was built in the year",
            (1100, 1900),
            ".",
        ),
        fact(
            "In which year was the king crowned?",
            "The king was crowned in the year",
            (1100, 1900),
            ".",
        ),
        fact(
            "Which number does the flight to the island have?",
            "The flight to the island has the number",
            (1000, 9990),
            ".",
        ),
        fact(
            "How deep is the silver mine?",
            "The silver mine is",
            (1000, 9990),
            " feet deep.",
        ),
        fact(
            "How much does the old violin cost?",
            "The old violin costs",
            (1000, 9990),
            " pounds.",
        ),
    ]
}

fn prose(random: &mut Random) -> String {
    if random.below(3) == 0 {
        return random.choose(REMARKS).to_owned();
    }
    let (person, doing, time) = (random.choose(PEOPLE), random.choose(DOINGS), random.choose(TIMES));
    format!("{person} {doing} {time}.")
}

/// `SplitMix64`: enough randomness for prose, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn choose(&mut self, texts: &[&'static str]) -> &'static str {
        texts[self.below(texts.len())]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FACTS, generate};

    #[test]
    fn every_fact_is_in_the_text_once() {
        for seed in 0..50 {
            let document = generate(seed);
            assert_eq!(document.facts.len(), FACTS);
            for fact in &document.facts {
                assert_eq!(document.text.matches(fact.lead).count(), 1, "{fact:?}");
                assert_eq!(document.text.matches(&fact.sentence()).count(), 1, "{fact:?}");
            }
            let facts: usize = document.facts.iter().map(|fact| fact.sentence().len()).sum();
            assert!(document.text.len() > 20 * facts, "facts are a small part");
        }
    }

    #[test]
    fn only_the_whole_word_counts() {
        let document = generate(0);
        let mut fact = document.facts[0].clone();
        fact.answer = "17".to_owned();
        assert!(fact.is_found_in(" 17."));
        assert!(fact.is_found_in("… is **17**"));
        assert!(!fact.is_found_in(" 1724."));
    }

    #[test]
    fn a_seed_fixes_the_document() {
        assert_eq!(generate(1).text, generate(1).text);
        assert_ne!(generate(1).text, generate(2).text);
    }
}
