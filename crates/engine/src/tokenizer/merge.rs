//! Byte-pair merging: join the best neighbouring pair until no pair can be joined.
//!
//! Both tokenizer families are this one procedure with different ideas of "best": the rank of a merge rule (byte-level
//! BPE) or the score of the joined token (sentencepiece). Ties go to the leftmost pair.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A piece of the text being merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Byte range in the text.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Its token, in a numbering the caller knows.
    pub(super) token: u32,
}

/// What a pair joins to, and how eagerly: lower ranks go first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) rank: u32,
    pub(super) token: u32,
}

/// Reusable scratch of [`Merger::merge`].
#[derive(Debug, Default)]
pub(super) struct Merger {
    pieces: Vec<Link>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

const NONE: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    piece: Piece,
    previous: usize,
    next: usize,
}

/// Ordered by rank, then by place. `bytes` tells whether both sides are still what they were when this was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    right: usize,
    bytes: usize,
    token: u32,
}

impl Merger {
    /// Lends this thread's scratch space.
    pub(super) fn with_local(work: impl FnOnce(&mut Self)) {
        thread_local! {
            static LOCAL: RefCell<Merger> = RefCell::new(Merger::default());
        }
        LOCAL.with_borrow_mut(work);
    }

    /// Merges neighbouring `pieces` as far as `join` allows and hands what remains to `emit`, in order.
    pub(super) fn merge(
        &mut self,
        pieces: impl Iterator<Item = Piece>,
        join: impl Fn(Piece, Piece) -> Option<Join>,
        mut emit: impl FnMut(Piece),
    ) {
        self.pieces.clear();
        self.queue.clear();
        for (index, piece) in pieces.enumerate() {
            let previous = index.checked_sub(1).unwrap_or(NONE);
            self.pieces.push(Link {
                piece,
                previous,
                next: index + 1,
            });
        }
        let Some(last) = self.pieces.last_mut() else { return };
        last.next = NONE;
        for right in 1..self.pieces.len() {
            self.consider(right - 1, right, &join);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            let Candidate {
                left,
                right,
                bytes,
                token,
                ..
            } = candidate;
            let (
                Piece { start, end: middle, .. },
                Piece {
                    start: resumed, end, ..
                },
            ) = (self.pieces[left].piece, self.pieces[right].piece);
            // A piece that was swallowed is empty; one that grew makes the pair longer than when it was queued.
            if start == middle || resumed == end || end - start != bytes {
                continue;
            }
            let next = self.pieces[right].next;
            self.pieces[left] = Link {
                piece: Piece { start, end, token },
                next,
                ..self.pieces[left]
            };
            self.pieces[right].piece.start = end;
            if next != NONE {
                self.pieces[next].previous = left;
                self.consider(left, next, &join);
            }
            let previous = self.pieces[left].previous;
            if previous != NONE {
                self.consider(previous, left, &join);
            }
        }
        let mut at = 0;
        while at != NONE {
            emit(self.pieces[at].piece);
            at = self.pieces[at].next;
        }
    }

    fn consider(&mut self, left: usize, right: usize, join: &impl Fn(Piece, Piece) -> Option<Join>) {
        let (first, second) = (self.pieces[left].piece, self.pieces[right].piece);
        if let Some(Join { rank, token }) = join(first, second) {
            let bytes = second.end - first.start;
            self.queue.push(Reverse(Candidate {
                rank,
                left,
                right,
                bytes,
                token,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges by rules given as (left, right) texts, best first.
    fn merged(text: &str, rules: &[(&str, &str)]) -> Vec<String> {
        let pieces = text.char_indices().map(|(start, c)| Piece {
            start,
            end: start + c.len_utf8(),
            token: 0,
        });
        let join = |left: Piece, right: Piece| {
            let pair = (&text[left.start..left.end], &text[right.start..right.end]);
            rules.iter().position(|rule| *rule == pair).map(|rank| Join {
                rank: rank as u32,
                token: 0,
            })
        };
        let mut out = Vec::new();
        Merger::default().merge(pieces, join, |piece| out.push(text[piece.start..piece.end].to_owned()));
        out
    }

    #[test]
    fn better_rules_go_first_and_ties_go_left() {
        assert_eq!(merged("abc", &[("b", "c"), ("a", "b"), ("a", "bc")]), ["abc"]);
        assert_eq!(merged("abc", &[("b", "c"), ("a", "b")]), ["a", "bc"]);
        assert_eq!(merged("aaa", &[("a", "a")]), ["aa", "a"]);
        assert_eq!(merged("aaaa", &[("a", "a"), ("aa", "aa")]), ["aaaa"]);
    }

    #[test]
    fn nothing_and_one_piece_are_fine() {
        assert!(merged("", &[]).is_empty());
        assert_eq!(merged("é", &[]), ["é"]);
    }
}
