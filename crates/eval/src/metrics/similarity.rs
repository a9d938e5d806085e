//! How alike are two lines of code, as `fuzz.ratio` of the Python package `fuzzywuzzy` says?

use std::collections::HashMap;

/// What `fuzz.ratio` is computed with: it takes whatever is installed beside it, and results differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineSimilarity {
    /// Python's own `difflib`: no other package is required by `LongBench` or kvpress.
    #[default]
    Difflib,
    /// The package `python-Levenshtein`: insertions and deletions.
    Indel,
}

impl LineSimilarity {
    /// `fuzz.ratio(a, b)`: 0 to 100.
    pub(super) fn percent(self, a: &str, b: &str) -> f64 {
        if a == b {
            return 100.0;
        }
        if a.is_empty() || b.is_empty() {
            return 0.0;
        }
        let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
        let matches = match self {
            Self::Difflib => matching_characters(&a, &b),
            Self::Indel => longest_common_subsequence(&a, &b),
        };
        let ratio = 2.0 * matches as f64 / (a.len() + b.len()) as f64;
        (100.0 * ratio).round_ties_even()
    }
}

/// Similarity of the first line that is neither comment nor fence, in [0, 1].
pub(super) fn code_similarity(prediction: &str, reference: &str, similarity: LineSimilarity) -> f64 {
    let is_code = |line: &&str| !line.contains(['`', '#']) && !line.contains("//");
    let line = prediction.trim_start_matches('\n').split('\n').find(is_code);
    similarity.percent(line.unwrap_or_default(), reference) / 100.0
}

/// Total size of the blocks that `difflib.SequenceMatcher` finds (Ratcliff and Obershelp): the longest common block, then
/// the same on either side of it.
fn matching_characters(a: &[char], b: &[char]) -> usize {
    let anchors = anchors(b);
    let mut total = 0;
    let mut open = vec![(0, a.len(), 0, b.len())];
    while let Some((a_start, a_end, b_start, b_end)) = open.pop() {
        let (i, j, size) = longest_block(a, b, &anchors, (a_start, a_end), (b_start, b_end));
        if size > 0 {
            total += size;
            open.push((a_start, i, b_start, j));
            open.push((i + size, a_end, j + size, b_end));
        }
    }
    total
}

/// Where each character of `b` stands. In a long text frequent characters do not start a block (`autojunk`).
fn anchors(b: &[char]) -> HashMap<char, Vec<usize>> {
    const LONG: usize = 200;
    let mut places: HashMap<char, Vec<usize>> = HashMap::new();
    for (j, character) in b.iter().enumerate() {
        places.entry(*character).or_default().push(j);
    }
    if b.len() >= LONG {
        places.retain(|_, places| places.len() <= b.len() / 100 + 1);
    }
    places
}

/// The longest block within the two ranges, the earliest in `a` and then in `b`, widened by equal characters on both sides.
fn longest_block(
    a: &[char],
    b: &[char],
    anchors: &HashMap<char, Vec<usize>>,
    (a_start, a_end): (usize, usize),
    (b_start, b_end): (usize, usize),
) -> (usize, usize, usize) {
    let (mut best_i, mut best_j, mut best) = (a_start, b_start, 0);
    let mut lengths: HashMap<usize, usize> = HashMap::new(); // of blocks that end at a[i - 1] and b[j]
    for (i, character) in a.iter().enumerate().take(a_end).skip(a_start) {
        let mut longer = HashMap::new();
        let places = anchors.get(character).map_or(&[][..], Vec::as_slice);
        for &j in places.iter().filter(|j| (b_start..b_end).contains(j)) {
            let before = j.checked_sub(1).and_then(|j| lengths.get(&j)).copied();
            let length = before.unwrap_or(0) + 1;
            longer.insert(j, length);
            if length > best {
                (best_i, best_j, best) = (i + 1 - length, j + 1 - length, length);
            }
        }
        lengths = longer;
    }
    while best_i > a_start && best_j > b_start && a[best_i - 1] == b[best_j - 1] {
        (best_i, best_j, best) = (best_i - 1, best_j - 1, best + 1);
    }
    while best_i + best < a_end && best_j + best < b_end && a[best_i + best] == b[best_j + best] {
        best += 1;
    }
    (best_i, best_j, best)
}

fn longest_common_subsequence(a: &[char], b: &[char]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for left in a {
        let mut diagonal = 0;
        for (j, right) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if left == right { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{LineSimilarity, code_similarity};

    #[test]
    fn half_percents_round_to_even() {
        // 2 * 1 / 16 = 12.5 %.
        assert_eq!(LineSimilarity::Difflib.percent("a", "a23456789012345"), 12.0);
        assert_eq!(LineSimilarity::Difflib.percent("é", "é"), 100.0);
    }

    #[test]
    fn frequent_characters_of_long_lines_start_no_block() {
        let line = "ab".repeat(100);
        // All of it is frequent, and the line begins unlike it: nothing matches.
        assert_eq!(LineSimilarity::Difflib.percent(&format!("x{line}"), &line), 0.0);
        // Where the two begin alike, the empty block at their start grows.
        assert_eq!(LineSimilarity::Difflib.percent(&format!("{line}x"), &line), 100.0);
        assert_eq!(LineSimilarity::Indel.percent(&format!("x{line}"), &line), 100.0);
    }

    #[test]
    fn blank_lines_are_code() {
        assert_eq!(
            code_similarity("// note\n\nx = 1", "x = 1", LineSimilarity::Difflib),
            0.0
        );
    }
}
