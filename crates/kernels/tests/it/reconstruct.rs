//! Reconstruction scores against the softmax they are the maximum of, in double precision.

use std::ops::Range;

use inertiakv_kernels::attention::{Reconstruction, Subset, reconstruct, reconstruct_with};
use inertiakv_kernels::cache::{KvCache, KvType};
use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::threads::ThreadPool;
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::support::{
    Case, any_length, any_type, dot, fates, masked_and_evicted, numbers, softmax, stored_keys, wide, with_zeros,
};

/// A context, and its repetition in pieces.
struct Repetition {
    context: Case,
    keys: Vec<f32>,
    queries: Vec<f32>,
    rows: usize,
    subset: Subset,
}

impl Repetition {
    /// The scored part is given in thousandths of the context.
    fn new(context: Case, rows: usize, sinks: usize, part: Range<usize>, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed + 1);
        let kv_heads = context.keys.len();
        let held = (0..kv_heads).map(|head| context.cache.rows(0, head)).min().unwrap_or(0);
        let subset = Subset {
            sinks,
            start: part.start * held / 1000,
            end: part.end * held / 1000,
            context: held,
        };
        Self {
            keys: numbers(&mut random, rows * kv_heads * context.dim),
            queries: numbers(&mut random, rows * context.heads() * context.dim),
            rows,
            subset,
            context,
        }
    }

    /// Passes the repetition in pieces that end at `cuts`; returns the cache after it.
    fn run(&self, isa: Isa, pool: &ThreadPool, cuts: &[usize]) -> (KvCache, Vec<Vec<f32>>) {
        let case = &self.context;
        let mut cache = case.cache.fork();
        let mut out = vec![vec![0.0; self.subset.end - self.subset.start]; case.keys.len()];
        let (key_width, query_width) = (case.keys.len() * case.dim, case.heads() * case.dim);
        let mut first = 0;
        for &end in cuts.iter().chain([&self.rows]) {
            let keys = &self.keys[first * key_width..end * key_width];
            cache.append(0, keys, keys).unwrap();
            let mut task = Reconstruction {
                cache: &cache,
                layer: 0,
                queries: &self.queries[first * query_width..end * query_width],
                rows: end - first,
                subset: self.subset,
                out: &mut out,
            };
            reconstruct_with(isa, pool, case.heads(), case.scale(), &mut task);
            first = end;
        }
        (cache, out)
    }

    fn expected(&self, cache: &KvCache) -> Vec<Vec<f64>> {
        let case = &self.context;
        let Subset {
            start,
            end,
            context,
            sinks,
        } = self.subset;
        (0..case.keys.len())
            .map(|kv_head| {
                let keys = stored_keys(cache, kv_head);
                let mut largest = vec![0.0_f64; end - start];
                for row in 0..self.rows {
                    let last = keys.len() - self.rows + row;
                    let rows: Vec<usize> = (0..keys.len())
                        .filter(|entry| (start..end).contains(entry))
                        .chain((0..sinks.min(start)).chain(context..=last))
                        .collect();
                    for head in kv_head * case.group..(kv_head + 1) * case.group {
                        let at = (row * case.heads() + head) * case.dim;
                        let query = wide(&self.queries[at..at + case.dim]);
                        let logits: Vec<f64> = rows
                            .iter()
                            .map(|&entry| f64::from(case.scale()) * dot(&query, &keys[entry]))
                            .collect();
                        for (largest, probability) in largest.iter_mut().zip(softmax(&logits)) {
                            *largest = largest.max(probability);
                        }
                    }
                }
                largest
            })
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn scores_are_the_largest_probabilities(
        kv_type in any_type(),
        kv_heads in 1..3_usize,
        group in prop::sample::select(vec![1_usize, 2, 3, 7, 9]),
        dim in prop::sample::select(vec![16_usize, 64, 80]),
        context in any_length(),
        rows in prop_oneof![1..20_usize, 100..160_usize],
        cut in 0..160_usize,
        sinks in prop_oneof![3 => Just(4_usize), 1 => 0..300_usize],
        part in (0..=1000_usize, 0..=1000_usize),
        seed in any::<u32>(),
    ) {
        let case = Case::new(kv_type, kv_heads, group, dim, context, 0, seed.into());
        let part = part.0.min(part.1)..part.0.max(part.1);
        let repetition = Repetition::new(case, rows, sinks, part, seed.into());
        let mut expected = None;
        for isa in Isa::available() {
            let (cache, out) = repetition.run(isa, &ThreadPool::new(2), &[cut.min(rows)]);
            let expected = expected.get_or_insert_with(|| repetition.expected(&cache));
            for (found, expected) in out.iter().zip(expected) {
                prop_assert_eq!(found.len(), expected.len());
                for (entry, (&found, &expected)) in found.iter().zip(&*expected).enumerate() {
                    let error = (f64::from(found) - expected).abs();
                    prop_assert!(error <= 2e-5 * expected, "{} entry {}: {} {}", isa, entry, found, expected);
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit_of_the_scores() {
    let case = Case::new(KvType::F16, 3, 3, 64, 900, 0, 1);
    let repetition = Repetition::new(case, 150, 4, 100..900, 2);
    for isa in Isa::available() {
        let one = repetition.run(isa, &ThreadPool::new(1), &[]).1;
        for threads in [2, 3] {
            assert_eq!(repetition.run(isa, &ThreadPool::new(threads), &[]).1, one, "{isa}");
        }
        // Nor do the pieces, as long as every query still sees the same chunks.
        let pieces = repetition.run(isa, &ThreadPool::new(2), &[40, 41]).1;
        for (one, pieces) in one.iter().flatten().zip(pieces.iter().flatten()) {
            assert!((one - pieces).abs() <= 1e-6 * one, "{isa}: {one} {pieces}");
        }
    }
}

#[test]
fn masked_rows_are_not_reconstructed() {
    // One head, so that what stays of the context has one length.
    let mut case = Case::new(KvType::F16, 1, 3, 64, 500, 0, 1);
    let fates = fates(&case, 100, 7);
    let (masked, evicted) = masked_and_evicted(&case, &fates);
    let pool = ThreadPool::new(2);
    case.cache = masked;
    let masked = Repetition::new(case, 40, 0, 0..1000, 2);
    let mut case = Case::new(KvType::F16, 1, 3, 64, 500, 0, 1);
    case.cache = evicted;
    let evicted = Repetition::new(case, 40, 0, 0..1000, 2);
    for isa in Isa::available() {
        let (_, found) = masked.run(isa, &pool, &[7]);
        let (_, expected) = evicted.run(isa, &pool, &[7]);
        let expected = with_zeros(&expected[0], &fates[0]);
        assert_eq!(found[0].len(), expected.len());
        for (found, expected) in found[0].iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{isa}: {found} {expected}");
        }
    }
}

#[test]
fn scores_are_only_raised_and_a_key_that_is_not_a_number_is_not_hidden() {
    let case = Case::new(KvType::F32, 1, 2, 16, 100, 0, 1);
    let repetition = Repetition::new(case, 3, 4, 500..1000, 2);
    let pool = ThreadPool::new(1);
    let case = &repetition.context;
    let (cache, scores) = repetition.run(Isa::detect(), &pool, &[]);
    let pass = |cache: &KvCache, out: &mut [Vec<f32>]| {
        let mut task = Reconstruction {
            cache,
            layer: 0,
            queries: &repetition.queries,
            rows: 3,
            subset: repetition.subset,
            out,
        };
        reconstruct(&pool, case.heads(), case.scale(), &mut task);
    };
    let mut out = vec![vec![0.03; 50]];
    pass(&cache, &mut out);
    assert!(
        out[0]
            .iter()
            .zip(&scores[0])
            .all(|(raised, &score)| *raised == score.max(0.03))
    );
    assert!(scores[0].iter().any(|&score| score > 0.03) && scores[0].iter().any(|&score| score < 0.03));

    let mut cache = case.cache.fork();
    let mut keys = repetition.keys.clone();
    keys[5] = f32::NAN;
    cache.append(0, &keys, &keys).unwrap();
    pass(&cache, &mut out);
    assert!(out[0].iter().all(|score| score.is_nan()));
}
