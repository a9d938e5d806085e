//! Which random choice does a seed make, on every machine?

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

/// Uniform choices from `ChaCha8`, seeded by a number and a name: streams of different names are independent, so what one
/// of them draws never changes another.
pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(seed.to_le_bytes());
        hash.update(name.as_bytes());
        Self(ChaCha8Rng::from_seed(hash.finalize().into()))
    }

    /// A number below `limit`, which must not be 0. Drawn in 64 bits whatever the width of `usize`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = limit as u64;
        assert!(limit > 0, "there is nothing to choose from");
        // The high half of a product is uniform once the few low halves that are too frequent are drawn again (Lemire).
        let unfair = limit.wrapping_neg() % limit;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(limit);
            if product as u64 >= unfair {
                return (product >> 64) as usize;
            }
        }
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `count` distinct numbers below `limit`, in random order.
    pub(crate) fn distinct(&mut self, limit: usize, count: usize) -> Vec<usize> {
        assert!(count <= limit, "{count} distinct numbers below {limit}");
        // A shuffle that stops early; only the places that it touched are remembered.
        let mut moved = std::collections::HashMap::new();
        let draw = |start| {
            let other = start + self.below(limit - start);
            let value = moved.get(&other).copied().unwrap_or(other);
            moved.insert(other, moved.get(&start).copied().unwrap_or(start));
            value
        };
        (0..count).map(draw).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn a_seed_and_a_name_fix_every_choice() {
        let draws = |seed, name| {
            let mut dice = Dice::new(seed, name);
            [dice.below(1000), dice.below(1000), dice.below(7)]
        };
        // Written down once: another platform or version must draw the same.
        assert_eq!(draws(42, "test"), FIXED);
        assert_ne!(draws(42, "other"), FIXED);
        assert_ne!(draws(43, "test"), FIXED);
    }

    const FIXED: [usize; 3] = [934, 280, 0];

    #[test]
    fn distinct_numbers_are_distinct_and_reach_everything() {
        let mut dice = Dice::new(1, "");
        let mut all = dice.distinct(50, 50);
        assert_ne!(all, (0..50).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        let mut seen = [0; 5];
        for _ in 0..1000 {
            let pair = dice.distinct(5, 2);
            assert_ne!(pair[0], pair[1]);
            seen[pair[0]] += 1;
            seen[pair[1]] += 1;
        }
        assert!(seen.iter().all(|count| (330..470).contains(count)), "{seen:?}");
    }
}
