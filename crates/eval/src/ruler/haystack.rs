//! In what is a needle hidden?

use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::EvalError;
use crate::dice::Dice;
use crate::file;
use crate::python;

/// Running prose, as words. The official benchmark uses essays that cannot be passed on; the built-in prose is generated.
#[derive(Debug, Clone)]
pub struct Prose {
    words: Vec<String>,
}

impl Prose {
    /// Our own prose: about as many words as the essays of the original needle test, the same for everybody.
    #[must_use]
    pub fn generated() -> &'static Self {
        const WORDS: usize = 112_000;
        static GENERATED: LazyLock<Prose> = LazyLock::new(|| {
            let mut dice = Dice::new(0, "prose");
            let mut words = Vec::with_capacity(WORDS + 32);
            while words.len() < WORDS {
                words.extend(sentence(&mut dice).split(' ').map(str::to_owned));
            }
            Prose { words }
        });
        &GENERATED
    }

    /// A user's text: a text file, or JSON with the field `text` as the official download script writes it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not such JSON, or has no words.
    pub fn from_file(path: &Path) -> Result<Self, EvalError> {
        #[derive(Deserialize)]
        struct Essays {
            text: String,
        }
        let text = if path.extension().is_some_and(|extension| extension == "json") {
            file::json::<Essays>(path)?.text
        } else {
            file::text(path)?
        };
        let words: Vec<String> = python::split(&text).map(str::to_owned).collect();
        if words.is_empty() {
            let what = "there is no text to hide a needle in".into();
            return Err(EvalError::Format {
                path: path.to_owned(),
                line: 1,
                what,
            });
        }
        Ok(Self { words })
    }

    /// All of it, words separated by single spaces.
    pub(crate) fn text(&self) -> String {
        self.words.join(" ")
    }

    /// How many words there are before they repeat.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// The first words, from the beginning again when they end, as sentences.
    pub(super) fn sentences(&self, words: usize) -> Vec<String> {
        let words: Vec<&str> = self.words.iter().cycle().take(words).map(String::as_str).collect();
        let mut sentences = Vec::new();
        let mut rest = &words[..];
        while !rest.is_empty() {
            let ends = |index: &usize| is_sentence_end(rest[*index], rest.get(index + 1).copied());
            let length = (0..rest.len()).find(ends).map_or(rest.len(), |index| index + 1);
            sentences.push(rest[..length].join(" "));
            rest = &rest[length..];
        }
        sentences
    }
}

/// A full stop, question or exclamation mark, closing quotes aside, unless it ends an abbreviation or no sentence begins
/// after it. Simpler than the trained splitter of the official script, so needles in a user's essays lie elsewhere.
fn is_sentence_end(word: &str, next: Option<&str>) -> bool {
    const CLOSING: [char; 6] = ['"', '\'', ')', ']', '”', '’'];
    const OPENING: [char; 6] = ['"', '\'', '(', '[', '“', '‘'];
    const ABBREVIATIONS: [&str; 12] = [
        "mr", "mrs", "ms", "dr", "st", "vs", "e.g", "i.e", "etc", "prof", "no", "fig",
    ];
    let bare = word.trim_end_matches(CLOSING);
    if !bare.ends_with(['.', '!', '?']) {
        return false;
    }
    let stem = bare.trim_end_matches('.').trim_start_matches(OPENING);
    let is_initial = stem.chars().count() == 1 && stem.chars().all(char::is_uppercase);
    let is_short = bare.ends_with('.') && (is_initial || ABBREVIATIONS.contains(&stem.to_lowercase().as_str()));
    let begins = |next: &str| {
        next.trim_start_matches(OPENING)
            .starts_with(|c: char| !c.is_lowercase())
    };
    !is_short && next.is_none_or(begins)
}

fn sentence(dice: &mut Dice) -> String {
    let (one, other) = (dice.pick(&PEOPLE), dice.pick(&PEOPLE));
    let (deed, thing, place, time) = (
        dice.pick(&DEEDS),
        dice.pick(&THINGS),
        dice.pick(&PLACES),
        dice.pick(&TIMES),
    );
    let text = match dice.below(8) {
        0 => format!("{time}, {one} {deed} {thing} {place}."),
        1 => format!("{one} {deed} {thing} {time}, and {other} was glad to hear of it."),
        2 => format!("nobody {place} could say why {one} {deed} {thing}."),
        3 => format!("{one} asked {other} about {thing}, but the answer had to wait."),
        4 => format!("{place}, {thing} stood where {one} had left it {time}."),
        5 => format!("was it {one} or {other} who {deed} {thing}?"),
        6 => format!("{time}, word went round that {one} {deed} {thing}; {other} did not believe it."),
        _ => format!("for {one} it was an ordinary day {place}, until {other} came in with {thing}."),
    };
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

const PEOPLE: [&str; 28] = [
    "the innkeeper",
    "the harbour pilot",
    "the choir master",
    "Ada the potter",
    "old Benedict",
    "the stationmaster",
    "the chemist's niece",
    "a young surveyor",
    "the seamstress",
    "Ottilie",
    "the lock keeper",
    "the twins from the dairy",
    "the glassblower",
    "Jonas the roofer",
    "the magistrate",
    "a travelling actor",
    "the forester",
    "the archivist",
    "the lighthouse keeper",
    "the printer",
    "the widow upstairs",
    "the new curate",
    "the fishmonger",
    "the bell founder",
    "the coachman",
    "Friederike",
    "the orchard owner",
    "the apprentice",
];
const DEEDS: [&str; 24] = [
    "had mended",
    "was looking for",
    "had bought",
    "would not part with",
    "had forgotten",
    "was carrying",
    "had painted",
    "had promised to return",
    "was weighing",
    "had found",
    "kept talking about",
    "had hidden",
    "was describing",
    "had measured",
    "could not lift",
    "had borrowed",
    "was cleaning",
    "had drawn",
    "wanted to sell",
    "had traded",
    "was guarding",
    "had wrapped up",
    "had paid for",
    "was admiring",
];
const THINGS: [&str; 30] = [
    "a barrel of cider",
    "four copper kettles",
    "a ticket for the night boat",
    "the cracked church bell",
    "a chart of the reef",
    "nine bales of wool",
    "a mirror in a pewter frame",
    "the register of births",
    "a length of tarred cord",
    "a cello without strings",
    "two rounds of cheese",
    "an injured gull",
    "a cart of paving stones",
    "the plans of the canal",
    "a bunch of lavender",
    "a brass compass",
    "the second rudder",
    "a tray of warm buns",
    "a pair of snow boots",
    "the key to the granary",
    "a box of glass marbles",
    "an unsigned will",
    "a lamp with a green shade",
    "the winter curtains",
    "a stack of almanacs",
    "three empty picture frames",
    "a sundial",
    "the pawnbroker's scales",
    "a jar of quince jam",
    "a wooden leg",
];
const PLACES: [&str; 24] = [
    "on the upper landing",
    "behind the brewery",
    "at the customs house",
    "near the weir",
    "in the walled garden",
    "by the town pump",
    "under the arcade",
    "at the eastern gate",
    "in the rope works",
    "beside the old quarry",
    "in the reading room",
    "at the toll bridge",
    "in the salt barn",
    "outside the theatre",
    "on the drying field",
    "in the harbour office",
    "at the foot of the tower",
    "along the towpath",
    "in the back kitchen",
    "at the cattle market",
    "on the village green",
    "in the vestry",
    "by the boat sheds",
    "at the edge of the moor",
];
const TIMES: [&str; 18] = [
    "before breakfast",
    "towards evening",
    "on the first of March",
    "after the long frost",
    "during the regatta",
    "late in autumn",
    "on a windless morning",
    "the day after the fair",
    "soon after midnight",
    "in the year of the flood",
    "at the stroke of noon",
    "one rainy Thursday",
    "while the band was playing",
    "in the last week of term",
    "shortly before the harvest",
    "when the fog had lifted",
    "on the eve of the wedding",
    "in the middle of the sermon",
];

#[cfg(test)]
mod tests {
    use super::{Prose, is_sentence_end};

    #[test]
    fn sentences_are_the_words_again() {
        let prose = Prose::generated();
        let sentences = prose.sentences(1000);
        assert_eq!(sentences.join(" "), prose.words[..1000].join(" "));
        assert!(sentences.len() > 40 && sentences.iter().all(|sentence| !sentence.is_empty()));
        let more = prose.sentences(prose.len() + 3).join(" ");
        assert!(more.ends_with(&prose.words[..3].join(" ")));
        assert!(prose.sentences(0).is_empty());
    }

    #[test]
    fn abbreviations_and_small_letters_end_nothing() {
        let ends = |word, next| is_sentence_end(word, Some(next));
        assert!(ends("end.", "The") && ends("end.”", "“But") && ends("why?", "12") && is_sentence_end("end.", None));
        assert!(
            !ends("Dr.", "Smith")
                && !ends("J.", "Smith")
                && !ends("e.g.", "This")
                && !ends("a.m.", "on")
                && !ends("a", "B")
        );
        assert!(ends("I!", "So"));
    }
}
