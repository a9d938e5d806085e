//! The document of the demo: a made-up chronicle of a small town with a few facts hidden in it.
//!
//! The same seed gives the same document. Facts and prose share their style, so a fact does not stand out by its form;
//! every fact has its own place and number, and no other sentence has a number.

/// A document that hides facts.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) text: String,
    pub(super) facts: Vec<Fact>,
}

/// Something to find.
#[derive(Debug)]
pub(super) struct Fact {
    /// What to ask.
    pub(super) question: String,
    /// What a right answer contains.
    pub(super) answer: String,
}

/// Facts of a document.
const FACTS: usize = 5;
/// Paragraphs of a document, about 45 tokens each.
const PARAGRAPHS: usize = 40;
/// Sentences of a paragraph.
const SENTENCES: usize = 3;

const HIDING_PLACES: &[&str] = &[
    "lighthouse",
    "library",
    "greenhouse",
    "museum",
    "bakery",
    "windmill",
    "chapel",
    "observatory",
    "shipyard",
    "theatre",
    "orchard",
    "brewery",
];
const PEOPLE: &[&str] = &[
    "The baker",
    "A young sailor",
    "The schoolteacher",
    "An old fisherman",
    "The mayor",
    "A travelling painter",
    "The miller",
    "The postwoman",
    "A group of children",
    "The carpenter",
    "The doctor",
    "A farmer from the hills",
    "The innkeeper",
    "The gardener",
    "A retired captain",
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
    "Far out on the water a ship sounded its horn.",
    "The lamps were lit one after another.",
];

/// Generates the document of a seed.
pub(super) fn generate(seed: u64) -> Document {
    let mut random = Random(seed);
    let mut places = HIDING_PLACES.to_vec();
    let mut numbers: Vec<u64> = Vec::new();
    let mut facts = Vec::new();
    let mut sentences = Vec::new();
    for _ in 0..FACTS {
        let place = places.swap_remove(random.below(places.len()));
        let number = loop {
            let number = 1000 + random.below(9000) as u64;
            if !numbers.contains(&number) {
                break number;
            }
        };
        numbers.push(number);
        sentences.push(format!("The secret code of the {place} is {number}."));
        facts.push(Fact {
            question: format!("What is the secret code of the {place}?"),
            answer: number.to_string(),
        });
    }
    let mut paragraphs = Vec::new();
    for index in 0..PARAGRAPHS {
        let mut paragraph: Vec<String> = (0..SENTENCES).map(|_| prose(&mut random)).collect();
        // Facts are spread evenly, away from both ends, and never begin or end a paragraph.
        let slot = (index * (FACTS + 1)) / PARAGRAPHS;
        let begins = index > 0 && slot != ((index - 1) * (FACTS + 1)) / PARAGRAPHS;
        if begins && let Some(fact) = sentences.get(slot - 1) {
            paragraph.insert(1 + random.below(SENTENCES - 1), fact.clone());
        }
        paragraphs.push(paragraph.join(" "));
    }
    Document {
        text: paragraphs.join("\n\n"),
        facts,
    }
}

fn prose(random: &mut Random) -> String {
    let remark = random.below(3) == 0;
    if remark {
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
}

#[cfg(test)]
mod tests {
    use super::{FACTS, generate};

    #[test]
    fn every_fact_is_in_the_text_once() {
        for seed in 0..20 {
            let document = generate(seed);
            assert_eq!(document.facts.len(), FACTS);
            for fact in &document.facts {
                assert_eq!(document.text.matches(&fact.answer).count(), 1, "{fact:?}");
            }
            let digits = document.text.bytes().filter(u8::is_ascii_digit).count();
            assert_eq!(digits, 4 * FACTS, "no other sentence has a number");
        }
    }

    #[test]
    fn a_seed_fixes_the_document() {
        assert_eq!(generate(1).text, generate(1).text);
        assert_ne!(generate(1).text, generate(2).text);
    }
}
