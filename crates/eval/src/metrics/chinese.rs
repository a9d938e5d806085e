//! Where do Chinese words end, as the Python package `jieba` 0.42 says?
//!
//! `LongBench` scores Chinese answers by jieba's words, so only the same dictionary and the same tables give its numbers.
//! They are read from an installed package (MIT licence); the algorithm is written here from its description: the most
//! probable path through the dictionary, and a hidden Markov model over runs of single characters.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::words;
use crate::EvalError;
use crate::python;

/// jieba's precise mode with its hidden Markov model.
#[derive(Debug)]
pub struct ChineseWords {
    /// Frequency of every word; 0 for what is only the beginning of words.
    frequencies: HashMap<String, u64>,
    total: u64,
    start: [f64; STATES],
    transition: [[f64; STATES]; STATES],
    emission: [HashMap<char, f64>; STATES],
}

/// Beginning, end and middle of a word, and a word of one character; in the order in which ties are decided.
const STATE_NAMES: [&str; STATES] = ["B", "E", "M", "S"];
const STATES: usize = 4;
const BEGIN: usize = 0;
const END: usize = 1;
const MIDDLE: usize = 2;
const SINGLE: usize = 3;
/// Which states can come before each state.
const BEFORE: [[usize; 2]; STATES] = [[END, SINGLE], [BEGIN, MIDDLE], [BEGIN, MIDDLE], [END, SINGLE]];
/// jieba's logarithm of zero.
const IMPOSSIBLE: f64 = -3.14e100;

impl ChineseWords {
    /// Reads `dict.txt` and `finalseg/prob_*.py` from the folder of an installed package, which
    /// `python3 -c "import jieba; print(jieba.__path__[0])"` names.
    ///
    /// # Errors
    ///
    /// A file is missing or is not what jieba 0.42 ships.
    pub fn from_package(folder: &Path) -> Result<Self, EvalError> {
        let read = |name: &str| {
            let path = folder.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(text),
                Err(source) => Err(EvalError::Jieba {
                    path,
                    what: source.to_string(),
                }),
            }
        };
        let bad = |name: &str, what: String| EvalError::Jieba {
            path: folder.join(name),
            what,
        };
        let table = |name: &str| number_table(&read(name)?).map_err(|what| bad(name, what));

        let (frequencies, total) = dictionary(&read("dict.txt")?).map_err(|what| bad("dict.txt", what))?;
        let start = table("finalseg/prob_start.py")?;
        let transition = table("finalseg/prob_trans.py")?;
        let emission = table("finalseg/prob_emit.py")?;
        let get = |table: &NumberTable, outer: &str, inner: &str| {
            table.get(&(outer.into(), inner.into())).copied().unwrap_or(IMPOSSIBLE)
        };
        Ok(Self {
            frequencies,
            total,
            start: STATE_NAMES.map(|state| get(&start, "", state)),
            transition: STATE_NAMES.map(|from| STATE_NAMES.map(|to| get(&transition, from, to))),
            emission: STATE_NAMES.map(|state| {
                let of_state = emission.iter().filter(|((outer, _), _)| outer == state);
                of_state
                    .filter_map(|((_, inner), value)| Some((inner.chars().next()?, *value)))
                    .collect()
            }),
        })
    }

    /// The words of a text, white space and punctuation included: `jieba.cut(text)`.
    #[must_use]
    pub fn cut<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut found = Vec::new();
        for (run, is_block) in runs(text, is_block_character) {
            if is_block {
                self.cut_block(run, &mut found);
            } else {
                cut_rest(run, &mut found);
            }
        }
        found
    }

    /// Follows the most probable path; runs of single characters that are no word go to the hidden Markov model.
    fn cut_block<'a>(&self, block: &'a str, found: &mut Vec<&'a str>) {
        let bounds = boundaries(block);
        let ends = self.most_probable_ends(block, &bounds);
        let (mut at, mut singles) = (0, 0);
        while at < ends.len() {
            let end = ends[at];
            if end - at > 1 {
                self.cut_singles(&block[bounds[singles]..bounds[at]], found);
                found.push(&block[bounds[at]..bounds[end]]);
                singles = end;
            }
            at = end;
        }
        self.cut_singles(&block[bounds[singles]..], found);
    }

    /// For each character the end of the word that starts there, on the path with the greatest product of word
    /// frequencies; of equally good words the longest.
    fn most_probable_ends(&self, block: &str, bounds: &[usize]) -> Vec<usize> {
        let count = bounds.len() - 1;
        let log_total = (self.total as f64).ln();
        let mut best = vec![(0.0, 0); count + 1];
        for start in (0..count).rev() {
            let word = |end: usize| &block[bounds[start]..bounds[end]];
            let known = (start + 1..=count).map_while(|end| Some((end, *self.frequencies.get(word(end))?)));
            let mut ends: Vec<_> = known.filter(|(_, frequency)| *frequency > 0).collect();
            if ends.is_empty() {
                let frequency = self.frequencies.get(word(start + 1)).copied().unwrap_or(0);
                ends.push((start + 1, frequency.max(1)));
            }
            let routes = ends
                .iter()
                .map(|&(end, frequency)| ((frequency as f64).ln() - log_total + best[end].0, end));
            best[start] = routes.fold(
                (f64::NEG_INFINITY, 0),
                |best, route| if route >= best { route } else { best },
            );
        }
        best[..count].iter().map(|(_, end)| *end).collect()
    }

    fn cut_singles<'a>(&self, run: &'a str, found: &mut Vec<&'a str>) {
        let bounds = boundaries(run);
        if bounds.len() <= 2 || self.frequencies.get(run).is_some_and(|frequency| *frequency > 0) {
            found.extend(bounds.windows(2).map(|pair| &run[pair[0]..pair[1]]));
            return;
        }
        for (part, is_han) in runs(run, is_han) {
            if is_han {
                self.cut_unknown(part, found);
            } else {
                cut_codes(part, found);
            }
        }
    }

    /// Words of a run that the dictionary does not know, by the most probable sequence of states (Viterbi).
    fn cut_unknown<'a>(&self, run: &'a str, found: &mut Vec<&'a str>) {
        let bounds = boundaries(run);
        let states = self.most_probable_states(&run.chars().collect::<Vec<_>>());
        let (mut begin, mut next) = (0, 0);
        for (index, state) in states.into_iter().enumerate() {
            match state {
                BEGIN => begin = index,
                END | SINGLE => {
                    let from = if state == END { begin } else { index };
                    found.push(&run[bounds[from]..bounds[index + 1]]);
                    next = index + 1;
                }
                _ => {}
            }
        }
        if bounds[next] < run.len() {
            found.push(&run[bounds[next]..]);
        }
    }

    fn most_probable_states(&self, characters: &[char]) -> Vec<usize> {
        let emission = |state: usize, c: char| self.emission[state].get(&c).copied().unwrap_or(IMPOSSIBLE);
        let mut scores: [f64; STATES] = std::array::from_fn(|s| self.start[s] + emission(s, characters[0]));
        let mut came_from: Vec<[usize; STATES]> = Vec::new();
        for &c in &characters[1..] {
            let best = |state: usize| {
                let ways = BEFORE[state].map(|b| (scores[b] + self.transition[b][state] + emission(state, c), b));
                if ways[1] >= ways[0] { ways[1] } else { ways[0] }
            };
            let step: [(f64, usize); STATES] = std::array::from_fn(best);
            scores = step.map(|(score, _)| score);
            came_from.push(step.map(|(_, before)| before));
        }
        let mut state = if scores[SINGLE] >= scores[END] { SINGLE } else { END };
        let mut states = vec![state];
        for before in came_from.iter().rev() {
            state = before[state];
            states.push(state);
        }
        states.reverse();
        states
    }

    /// F1 of the words of two texts, punctuation removed (`qa_f1_zh` of `LongBench`).
    pub(super) fn qa_f1(&self, prediction: &str, reference: &str) -> f64 {
        let tokens = |text: &str| -> Vec<String> {
            let bare = self.cut(text).into_iter().map(normalised);
            bare.filter(|token| !token.is_empty()).collect()
        };
        words::f1(&tokens(prediction), &tokens(reference))
    }

    /// The words with spaces between them, as ROUGE wants them.
    pub(super) fn spaced(&self, text: &str) -> String {
        self.cut(text).join(" ")
    }
}

/// Lower case, without ASCII and Chinese punctuation and white space.
fn normalised(token: &str) -> String {
    let dropped = |c: &char| words::is_ascii_punctuation(*c) || is_chinese_punctuation(*c) || python::is_space(*c);
    token.to_lowercase().chars().filter(|c| !dropped(c)).collect()
}

/// The list of `LongBench`, as code points; it has the closing double angle bracket but not the opening one.
fn is_chinese_punctuation(character: char) -> bool {
    matches!(
        character,
        '\u{2013}'..='\u{2014}'
            | '\u{2018}'..='\u{2019}'
            | '\u{201b}'..='\u{201f}'
            | '\u{2026}'..='\u{2027}'
            | '\u{3001}'..='\u{3003}'
            | '\u{300b}'..='\u{3011}'
            | '\u{3014}'..='\u{301f}'
            | '\u{3030}'
            | '\u{303e}'..='\u{303f}'
            | '\u{fe4f}'
            | '\u{ff01}'..='\u{ff0d}'
            | '\u{ff0f}'
            | '\u{ff1a}'..='\u{ff20}'
            | '\u{ff3b}'..='\u{ff40}'
            | '\u{ff5b}'..='\u{ff64}'
    )
}

/// Characters of the blocks that are segmented; the rest is white space, and single characters.
fn is_block_character(character: char) -> bool {
    is_han(character) || character.is_ascii_alphanumeric() || "+#&._%-".contains(character)
}

fn is_han(character: char) -> bool {
    ('\u{4e00}'..='\u{9fd5}').contains(&character)
}

/// Every character by itself, but a carriage return with its newline.
fn cut_rest<'a>(rest: &'a str, found: &mut Vec<&'a str>) {
    let bounds = boundaries(rest);
    let mut at = 0;
    while at + 1 < bounds.len() {
        let pair = rest[bounds[at]..].starts_with("\r\n");
        let end = at + 1 + usize::from(pair);
        found.push(&rest[bounds[at]..bounds[end]]);
        at = end;
    }
}

/// Codes as `abc1.5%`: letters and digits, decimals, a percent sign; what lies between stays in one piece.
fn cut_codes<'a>(text: &'a str, found: &mut Vec<&'a str>) {
    let mut rest = text;
    while !rest.is_empty() {
        let code_length = code_length(rest);
        let length = if code_length > 0 {
            code_length
        } else {
            rest.find(|c: char| c.is_ascii_alphanumeric()).unwrap_or(rest.len())
        };
        let (part, after) = rest.split_at(length);
        found.push(part);
        rest = after;
    }
}

/// Length of `[a-zA-Z0-9]+(\.\d+)?%?` at the start of a text; 0 if there is none.
fn code_length(text: &str) -> usize {
    let run = |text: &str, belongs: fn(&char) -> bool| text.chars().take_while(belongs).count();
    let mut length = run(text, char::is_ascii_alphanumeric);
    if length == 0 {
        return 0;
    }
    if let Some(decimals) = text[length..]
        .strip_prefix('.')
        .map(|after| run(after, char::is_ascii_digit))
    {
        length += if decimals > 0 { 1 + decimals } else { 0 };
    }
    length + usize::from(text[length..].starts_with('%'))
}

/// Maximal runs of characters that belong, or do not belong, to a kind.
fn runs(text: &str, belongs: fn(char) -> bool) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let kind = belongs(rest.chars().next()?);
        let (run, after) = rest.split_at(rest.find(|c| belongs(c) != kind).unwrap_or(rest.len()));
        rest = after;
        Some((run, kind))
    })
}

/// Byte offsets of the characters, and of the end.
fn boundaries(text: &str) -> Vec<usize> {
    text.char_indices().map(|(at, _)| at).chain([text.len()]).collect()
}

/// Reads lines of "word frequency tag".
fn dictionary(text: &str) -> Result<(HashMap<String, u64>, u64), String> {
    let mut frequencies = HashMap::new();
    let mut total = 0;
    for (number, line) in text.lines().enumerate() {
        let mut fields = python::strip(line).split(' ');
        let (Some(word), Some(Ok(frequency))) = (fields.next(), fields.next().map(str::parse::<u64>)) else {
            return Err(format!("line {} is not a word and its frequency", number + 1));
        };
        total += frequency;
        frequencies.insert(word.to_owned(), frequency);
        for end in boundaries(word).into_iter().skip(1) {
            frequencies.entry(word[..end].to_owned()).or_insert(0);
        }
    }
    Ok((frequencies, total))
}

/// Numbers by outer and inner key; the outer one is empty where the table has one level.
type NumberTable = HashMap<(String, String), f64>;

/// Reads `P={'B': {'x': -1.5, …}, …}` or `P={'B': -1.5, …}`.
fn number_table(text: &str) -> Result<NumberTable, String> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Number(f64),
        Inner(HashMap<String, f64>),
    }
    let (Some(start), Some(end)) = (text.find('{'), text.rfind('}')) else {
        return Err("there is no table".into());
    };
    // A table of strings and numbers is JSON but for the quotes.
    let table: HashMap<String, Entry> = text
        .get(start..=end)
        .and_then(|table| serde_json::from_str(&table.replace('\'', "\"")).ok())
        .ok_or("the table is not one of strings and numbers")?;
    let rows = table.into_iter().flat_map(|(outer, entry)| match entry {
        Entry::Number(value) => vec![((String::new(), outer), value)],
        Entry::Inner(inner) => inner
            .into_iter()
            .map(|(key, value)| ((outer.clone(), key), value))
            .collect(),
    });
    Ok(rows.collect())
}
