//! Caches with something in them, plain mathematics, and what the property tests draw from.

use inertiakv_kernels::cache::{KvCache, KvConfig, KvPool, KvType};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A cache of one layer, and what it holds: `[head][row][dim]`.
pub(crate) struct Case {
    pub(crate) cache: KvCache,
    pub(crate) keys: Vec<Vec<Vec<f32>>>,
    pub(crate) values: Vec<Vec<Vec<f32>>>,
    pub(crate) queries: Vec<f32>,
    pub(crate) rows: usize,
    pub(crate) window: Option<usize>,
    pub(crate) group: usize,
    pub(crate) dim: usize,
}

pub(crate) fn numbers(random: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.random_range(-1.0..1.0_f32)).collect()
}

impl Case {
    /// Heads after the first lose some of their old rows, so the cache is ragged.
    pub(crate) fn new(
        kv_type: KvType,
        kv_heads: usize,
        group: usize,
        dim: usize,
        entries: usize,
        rows: usize,
        seed: u64,
    ) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let config = KvConfig {
            layers: 1,
            kv_heads,
            head_dim: dim,
            kv_type,
        };
        let pool = KvPool::new(config, None).unwrap();
        let mut cache = KvCache::new(&pool);
        let all_keys = numbers(&mut random, entries * kv_heads * dim);
        let all_values = numbers(&mut random, entries * kv_heads * dim);
        let old = (entries - rows) * kv_heads * dim;
        cache.append(0, &all_keys[..old], &all_values[..old]).unwrap();
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for head in 0..kv_heads {
            let take = |all: &[f32]| -> Vec<Vec<f32>> {
                all.chunks(dim)
                    .skip(head)
                    .step_by(kv_heads)
                    .map(<[f32]>::to_vec)
                    .collect()
            };
            let (mut head_keys, mut head_values) = (take(&all_keys), take(&all_values));
            let removed = (head * 29).min(entries - rows);
            cache.apply(0, head, &[], entries - rows - removed).unwrap();
            head_keys.drain(entries - rows - removed..entries - rows);
            head_values.drain(entries - rows - removed..entries - rows);
            keys.push(head_keys);
            values.push(head_values);
        }
        cache.append(0, &all_keys[old..], &all_values[old..]).unwrap();
        let queries = numbers(&mut random, rows * kv_heads * group * dim);
        Self {
            cache,
            keys,
            values,
            queries,
            rows,
            window: None,
            group,
            dim,
        }
    }

    pub(crate) fn heads(&self) -> usize {
        self.keys.len() * self.group
    }
}

/// The keys of a head of layer 0 as they are stored, `[row][dim]`.
pub(crate) fn stored_keys(cache: &KvCache, head: usize) -> Vec<Vec<f64>> {
    let dim = cache.pool().config().head_dim;
    let mut keys = vec![vec![0.0; dim]; cache.rows(0, head)];
    let (mut unit, mut column) = (vec![0.0; dim], Vec::new());
    for d in 0..dim {
        unit[d] = 1.0;
        cache.key_dots(0, head, &unit, &mut column);
        unit[d] = 0.0;
        for (key, &number) in keys.iter_mut().zip(&column) {
            key[d] = f64::from(number);
        }
    }
    keys
}

/// `Σ a b` in double precision.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Numbers in double precision.
pub(crate) fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

/// Probabilities of logits; those of −∞ are 0, also where there is no other.
pub(crate) fn softmax(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers
        .iter()
        .map(|power| if total > 0.0 { power / total } else { 0.0 })
        .collect()
}

pub(crate) fn any_type() -> impl Strategy<Value = KvType> {
    prop_oneof![2 => Just(KvType::F32), 2 => Just(KvType::F16), 1 => Just(KvType::Q8_0)]
}

/// Lengths around the borders of vectors, blocks, and both kinds of chunks.
pub(crate) fn any_length() -> impl Strategy<Value = usize> {
    let borders = prop::sample::select(vec![0_usize, 16, 32, 64, 128, 256, 512, 768]);
    prop_oneof![3 => (borders, 0..5_usize).prop_map(|(border, off)| (border + off).saturating_sub(2)), 1 => 0..900_usize]
}

/// What happens to an old row of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Kept,
    Masked,
    Evicted,
}

/// A fate for each old row of each head: some rows evicted, the first `prefix` and some others masked.
pub(crate) fn fates(case: &Case, prefix: usize, seed: u64) -> Vec<Vec<Fate>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut fate = |row: usize| match random.random_range(0..4) {
        0 => Fate::Evicted,
        1 => Fate::Masked,
        _ if row < prefix => Fate::Masked,
        _ => Fate::Kept,
    };
    let old_rows = case.keys.iter().map(|head| head.len() - case.rows);
    old_rows.map(|rows| (0..rows).map(&mut fate).collect()).collect()
}

/// A fork of the cache in which the rows have met their fates, and one in which the masked rows were evicted too. The
/// rows that stay keep their order.
pub(crate) fn masked_and_evicted(case: &Case, fates: &[Vec<Fate>]) -> (KvCache, KvCache) {
    let (mut masked, mut evicted) = (case.cache.fork(), case.cache.fork());
    for (head, fates) in fates.iter().enumerate() {
        let rows: Vec<u32> = (0..)
            .zip(fates)
            .filter(|(_, fate)| **fate == Fate::Masked)
            .map(|(row, _)| row)
            .collect();
        masked.mask(0, head, &rows).unwrap();
        for (cache, gone) in [
            (&mut masked, &[Fate::Evicted][..]),
            (&mut evicted, &[Fate::Evicted, Fate::Masked]),
        ] {
            let held = cache.rows(0, head);
            let kept: Vec<u32> = (0..held as u32)
                .filter(|&row| fates.get(row as usize).is_none_or(|fate| !gone.contains(fate)))
                .collect();
            let moves: Vec<(u32, u32)> = kept.iter().copied().zip(0..).filter(|(from, to)| from > to).collect();
            cache.apply(0, head, &moves, kept.len()).unwrap();
        }
        assert_eq!(masked.masked(0, head), rows.len());
    }
    (masked, evicted)
}

/// Puts a 0 where a masked row was: numbers of the rows that stayed become numbers of a head with masked rows.
pub(crate) fn with_zeros(numbers: &[f32], fates: &[Fate]) -> Vec<f32> {
    let mut rest = numbers.iter();
    let mut spread: Vec<f32> = fates
        .iter()
        .filter(|fate| **fate != Fate::Evicted)
        .map(|fate| match fate {
            Fate::Kept => *rest.next().expect("one number per kept row"),
            _ => 0.0,
        })
        .collect();
    spread.extend(rest);
    spread
}
