//! The cache against a model that is a vector of rows.

use inertiakv_kernels::cache::{CacheError, HeadPlan, KvCache, KvConfig, KvPool, KvType, NewRows, append_each};
use inertiakv_kernels::threads::ThreadPool;
use proptest::prelude::*;

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const DIM: usize = 16;

fn config(kv_type: KvType) -> KvConfig {
    KvConfig {
        layers: LAYERS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        kv_type,
    }
}

/// A row all of whose norms tell which token it came from: small whole numbers are exact in every element type.
fn row(token: u32, layer: usize) -> Vec<f32> {
    let number = (token % 97 + 1) as f32;
    (0..KV_HEADS * DIM)
        .map(|i| {
            if i % DIM == token as usize % DIM {
                number + (layer + i / DIM) as f32
            } else {
                0.0
            }
        })
        .collect()
}

fn length(row: &[f32], head: usize) -> f32 {
    row[head * DIM..(head + 1) * DIM]
        .iter()
        .map(|x| x * x)
        .sum::<f32>()
        .sqrt()
}

#[derive(Clone, Default)]
struct Model {
    /// `[layer][head]` of rows, each the tokens' norm.
    heads: Vec<Vec<f32>>,
    /// The same of whether the row is masked.
    masks: Vec<Vec<bool>>,
}

#[derive(Clone, Debug)]
enum Operation {
    Append {
        cache: usize,
        rows: usize,
    },
    /// Keep roughly this many thousandths of one head, filling holes from the tail or compacting.
    Evict {
        cache: usize,
        head: usize,
        keep: usize,
        fill: bool,
        seed: usize,
    },
    /// Mask every so many-th row of one head.
    Mask {
        cache: usize,
        head: usize,
        step: usize,
    },
    /// All of it, or the first so many rows.
    Fork {
        cache: usize,
        front: Option<usize>,
    },
    Drop {
        cache: usize,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..4_usize, 0..80_usize).prop_map(|(cache, rows)| Operation::Append { cache, rows }),
        4 => (0..4_usize, 0..LAYERS * KV_HEADS, 0..=1000_usize, any::<bool>(), 0..1000_usize)
            .prop_map(|(cache, head, keep, fill, seed)| Operation::Evict { cache, head, keep, fill, seed }),
        1 => (0..4_usize, 0..LAYERS * KV_HEADS, 1..40_usize)
            .prop_map(|(cache, head, step)| Operation::Mask { cache, head, step }),
        2 => (0..4_usize, prop::option::of(0..120_usize)).prop_map(|(cache, front)| Operation::Fork { cache, front }),
        1 => (0..4_usize).prop_map(|cache| Operation::Drop { cache }),
    ]
}

fn plan(rows: usize, keep: usize, fill: bool, seed: usize) -> (Vec<(u32, u32)>, usize) {
    let kept: Vec<usize> = (0..rows).filter(|i| (i * 7919 + seed) % 1000 < keep).collect();
    let mut moves = Vec::new();
    if fill {
        let mut tail: Vec<usize> = kept.iter().copied().filter(|&i| i >= kept.len()).collect();
        for hole in (0..kept.len()).filter(|i| kept.binary_search(i).is_err()) {
            moves.push((tail.pop().expect("as many tail rows as holes") as u32, hole as u32));
        }
    } else {
        for (to, &from) in kept.iter().enumerate().filter(|&(to, &from)| to != from) {
            moves.push((from as u32, to as u32));
        }
    }
    (moves, kept.len())
}

fn check(cache: &KvCache, model: &Model, tolerance: f32) {
    let (mut values, mut keys) = (Vec::new(), Vec::new());
    for layer in 0..LAYERS {
        for head in 0..KV_HEADS {
            let expected = &model.heads[layer * KV_HEADS + head];
            assert_eq!(cache.rows(layer, head), expected.len());
            let masked = model.masks[layer * KV_HEADS + head].iter().filter(|&&masked| masked);
            assert_eq!(cache.masked(layer, head), masked.count());
            cache.value_norms(layer, head, &mut values);
            cache.key_norms(layer, head, &mut keys);
            for norms in [&values, &keys] {
                assert_eq!(norms.len(), expected.len());
                for (norm, expected) in norms.iter().zip(expected) {
                    assert!((norm - expected).abs() <= tolerance * expected, "{norm} {expected}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn operations_follow_the_model(
        operations in prop::collection::vec(operation(), 1..40),
        kv_type in prop_oneof![Just(KvType::F16), Just(KvType::F32), Just(KvType::Q8_0)],
    ) {
        let pool = KvPool::new(config(kv_type), None).unwrap();
        let tolerance = if kv_type == KvType::Q8_0 { 0.01 } else { 1e-6 };
        let mut caches = vec![(KvCache::new(&pool), Model {
            heads: vec![Vec::new(); LAYERS * KV_HEADS],
            masks: vec![Vec::new(); LAYERS * KV_HEADS],
        })];
        let mut token = 0;
        for operation in operations {
            match operation {
                Operation::Append { cache, rows } => {
                    let index = cache % caches.len();
                    let (cache, model) = &mut caches[index];
                    for layer in 0..LAYERS {
                        let numbers: Vec<f32> = (0..rows).flat_map(|i| row(token + i as u32, layer)).collect();
                        cache.append(layer, &numbers, &numbers).unwrap();
                        for row in numbers.chunks(KV_HEADS * DIM) {
                            for head in 0..KV_HEADS {
                                model.heads[layer * KV_HEADS + head].push(length(row, head));
                                model.masks[layer * KV_HEADS + head].push(false);
                            }
                        }
                    }
                    token += rows as u32;
                }
                Operation::Evict { cache, head, keep, fill, seed } => {
                    let index = cache % caches.len();
                    let (cache, model) = &mut caches[index];
                    let (rows, masks) = (&mut model.heads[head], &mut model.masks[head]);
                    let (moves, kept) = plan(rows.len(), keep, fill, seed);
                    cache.apply(head / KV_HEADS, head % KV_HEADS, &moves, kept).unwrap();
                    for (from, to) in moves {
                        rows[to as usize] = rows[from as usize];
                        masks[to as usize] = masks[from as usize];
                    }
                    rows.truncate(kept);
                    masks.truncate(kept);
                }
                Operation::Mask { cache, head, step } => {
                    let index = cache % caches.len();
                    let (cache, model) = &mut caches[index];
                    let bytes = cache.bytes();
                    let rows: Vec<u32> = (0..model.masks[head].len() as u32).step_by(step).collect();
                    cache.mask(head / KV_HEADS, head % KV_HEADS, &rows).unwrap();
                    for row in rows {
                        model.masks[head][row as usize] = true;
                    }
                    prop_assert_eq!(cache.bytes(), bytes);
                }
                Operation::Fork { cache, front } if caches.len() < 4 => {
                    let (cache, model) = &caches[cache % caches.len()];
                    let mut model = model.clone();
                    let fork = front.map_or_else(|| cache.fork(), |rows| cache.fork_front(rows));
                    for head in 0..LAYERS * KV_HEADS {
                        model.heads[head].truncate(front.unwrap_or(usize::MAX));
                        model.masks[head].truncate(front.unwrap_or(usize::MAX));
                    }
                    caches.push((fork, model));
                }
                Operation::Drop { cache } if caches.len() > 1 => {
                    let index = cache % caches.len();
                    caches.swap_remove(index);
                }
                Operation::Fork { .. } | Operation::Drop { .. } => {}
            }
            let all: usize = caches.iter().map(|(cache, _)| cache.bytes()).sum();
            prop_assert!(pool.bytes_in_use() <= all);
            let together = KvCache::bytes_together(caches.iter().map(|(cache, _)| cache));
            prop_assert_eq!(pool.bytes_in_use(), together);
            prop_assert!(pool.bytes_peak() >= pool.bytes_in_use());
            if caches.len() == 1 {
                prop_assert_eq!(pool.bytes_in_use(), all);
            }
        }
        for (cache, model) in &caches {
            check(cache, model, tolerance);
        }
        drop(caches);
        prop_assert_eq!(pool.bytes_in_use(), 0);
    }
}

#[test]
fn a_refused_append_changes_nothing() {
    let block = 2 * 32 * DIM * 2;
    let pool = KvPool::new(config(KvType::F16), Some(5 * block)).unwrap();
    let mut cache = KvCache::new(&pool);
    let rows = |count: usize| vec![1.0; count * KV_HEADS * DIM];
    cache.append(0, &rows(33), &rows(33)).unwrap();
    assert_eq!(pool.bytes_in_use(), 4 * block);
    // One block is left, two are needed: none is taken.
    let refused = cache.append(1, &rows(1), &rows(1));
    assert!(
        matches!(refused, Err(CacheError::OutOfMemory { needed, limit }) if needed == 6 * block && limit == 5 * block)
    );
    assert_eq!((cache.rows(1, 0), cache.rows(1, 1)), (0, 0));
    assert_eq!(pool.bytes_in_use(), 4 * block);
    // The open blocks still take rows, and so does layer 1 once layer 0 has shrunk.
    cache.append(0, &rows(31), &rows(31)).unwrap();
    for head in 0..KV_HEADS {
        cache.apply(0, head, &[], 10).unwrap();
    }
    cache.append(1, &rows(1), &rows(1)).unwrap();
    assert_eq!(cache.bytes(), 4 * block);
    assert_eq!(pool.bytes_peak(), 4 * block);
    // A fork that wants to write needs a copy, which is refused as a whole too.
    let mut fork = cache.fork();
    assert!(fork.append(0, &rows(1), &rows(1)).is_err());
    assert!(fork.append(0, &[], &[]).is_ok());
    drop(cache);
    assert!(fork.append(0, &rows(1), &rows(1)).is_ok());
}

#[test]
fn rows_for_several_caches_are_all_written_or_none_is() {
    let block = 2 * 32 * DIM * 4;
    // One layer of three caches of 1, 33 and 4 rows: one block a head, then two, then one.
    let pool = KvPool::new(config(KvType::F32), Some(8 * block)).unwrap();
    let threads = ThreadPool::new(3);
    let mut caches: Vec<KvCache> = (0..3).map(|_| KvCache::new(&pool)).collect();
    let counts = [1_usize, 33, 4];
    let rows: Vec<Vec<f32>> = (0_u32..)
        .zip(counts)
        .map(|(cache, count)| (0..count as u32).flat_map(|token| row(cache * 40 + token, 0)).collect())
        .collect();
    let append = |caches: &mut [KvCache], layer: usize| {
        let mut tasks: Vec<NewRows> = caches
            .iter_mut()
            .zip(&rows)
            .map(|(cache, rows)| NewRows {
                cache,
                keys: rows,
                values: rows,
            })
            .collect();
        append_each(&threads, layer, &mut tasks)
    };
    append(&mut caches, 0).unwrap();
    assert_eq!(pool.bytes_in_use(), 8 * block);
    for ((cache, rows), count) in caches.iter().zip(&rows).zip(counts) {
        for head in 0..KV_HEADS {
            let expected: Vec<f32> = rows.chunks(KV_HEADS * DIM).map(|row| length(row, head)).collect();
            assert_eq!(cache.rows(0, head), count);
            let mut norms = Vec::new();
            cache.value_norms(0, head, &mut norms);
            assert_eq!(norms, expected);
            cache.key_norms(0, head, &mut norms);
            assert_eq!(norms, expected);
        }
    }
    // The first finds room, the second does not.
    caches[2] = KvCache::new(&pool);
    assert!(matches!(append(&mut caches, 1), Err(CacheError::OutOfMemory { .. })));
    let held = |cache: &KvCache| (cache.rows(0, 0), cache.rows(1, 0), cache.bytes());
    let held: Vec<_> = caches.iter().map(held).collect();
    assert_eq!(held, [(1, 0, 2 * block), (33, 0, 4 * block), (0, 0, 0)]);
    assert_eq!(pool.bytes_in_use(), 6 * block);
}

#[test]
fn bad_plans_and_shapes_are_errors() {
    let pool = KvPool::new(config(KvType::F16), None).unwrap();
    let mut cache = KvCache::new(&pool);
    let rows = vec![1.0; 40 * KV_HEADS * DIM];
    cache.append(0, &rows, &rows).unwrap();
    assert!(matches!(cache.apply(0, 0, &[(3, 3)], 10), Err(CacheError::Move { .. })));
    assert!(matches!(cache.apply(0, 0, &[(3, 5)], 10), Err(CacheError::Move { .. })));
    assert!(matches!(
        cache.apply(0, 0, &[(40, 5)], 10),
        Err(CacheError::Move { .. })
    ));
    assert!(matches!(
        cache.apply(0, 0, &[(4, 5), (u32::MAX, 0)], 1),
        Err(CacheError::Move { .. })
    ));
    assert!(matches!(cache.apply(0, 0, &[], 41), Err(CacheError::Rows { .. })));
    assert!(matches!(cache.apply(0, KV_HEADS, &[], 1), Err(CacheError::Head { .. })));
    assert!(matches!(
        cache.mask(0, 0, &[3, 40]),
        Err(CacheError::Mask { row: 40, rows: 40 })
    ));
    assert!(matches!(cache.mask(LAYERS, 0, &[]), Err(CacheError::Head { .. })));
    assert_eq!((cache.masked(0, 0), cache.masked(LAYERS, 0)), (0, 0));
    let threads = ThreadPool::new(2);
    assert!(matches!(
        cache.evict(&threads, &[None]),
        Err(CacheError::Plans { plans: 1, .. })
    ));
    // A good plan for one head does not save a bad one for another: nothing happens to either.
    let mut plans = vec![None; LAYERS * KV_HEADS];
    plans[0] = Some(HeadPlan {
        moves: &[(39, 0)],
        rows: 10,
    });
    plans[1] = Some(HeadPlan { moves: &[], rows: 41 });
    assert!(matches!(cache.evict(&threads, &plans), Err(CacheError::Rows { .. })));
    assert_eq!((cache.rows(0, 0), cache.rows(0, 1)), (40, 40));
    assert!(matches!(
        cache.append(LAYERS, &rows, &rows),
        Err(CacheError::Head { .. })
    ));
    assert!(matches!(
        cache.append(0, &rows[1..], &rows[1..]),
        Err(CacheError::Shape { .. })
    ));
    assert!(matches!(
        cache.append(0, &rows, &rows[32..]),
        Err(CacheError::Shape { .. })
    ));
    assert_eq!((cache.rows(0, 0), cache.rows(0, 1), cache.rows(9, 0)), (40, 40, 0));
    for head_dim in [0, 8, 72, 528] {
        let config = KvConfig {
            head_dim,
            ..config(KvType::F16)
        };
        assert!(matches!(KvPool::new(config, None), Err(CacheError::Config { .. })));
    }
    for kv_type in [KvType::F16, KvType::F32, KvType::Q8_0] {
        assert_eq!(kv_type.to_string().parse::<KvType>().unwrap(), kv_type);
    }
    assert!("q4".parse::<KvType>().is_err());
}

#[test]
fn similarity_is_the_cosine_with_the_mean_direction() {
    let pool = KvPool::new(config(KvType::F32), None).unwrap();
    let mut cache = KvCache::new(&pool);
    let keys: Vec<f32> = (0..50 * KV_HEADS * DIM)
        .map(|i| ((i * 37 % 101) as f32 - 40.0) / 9.0)
        .collect();
    cache.append(0, &keys, &keys).unwrap();
    let mut similarity = Vec::new();
    for head in 0..KV_HEADS {
        let rows: Vec<Vec<f64>> = (0..50)
            .map(|i| {
                (0..DIM)
                    .map(|d| f64::from(keys[(i * KV_HEADS + head) * DIM + d]))
                    .collect()
            })
            .collect();
        let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
        let mean: Vec<f64> = (0..DIM)
            .map(|d| rows.iter().map(|row| row[d] / norm(row)).sum::<f64>() / 50.0)
            .collect();
        cache.key_similarity(0, head, &mut similarity);
        assert_eq!(similarity.len(), 50);
        for (row, &found) in rows.iter().zip(&similarity) {
            let dot: f64 = row.iter().zip(&mean).map(|(a, b)| a * b).sum();
            assert!((dot / norm(row) / norm(&mean) - f64::from(found)).abs() < 1e-5);
        }
    }
}

proptest! {
    #[test]
    fn key_dots_are_dot_products_and_key_sums_the_other_way_round(
        kv_type in prop_oneof![Just(KvType::F16), Just(KvType::F32), Just(KvType::Q8_0)],
        rows in 0..100_usize,
        kept in 0..100_usize,
        numbers in prop::collection::vec(-2.0..2.0_f32, 101 * KV_HEADS * DIM),
    ) {
        let pool = KvPool::new(config(kv_type), None).unwrap();
        let mut cache = KvCache::new(&pool);
        let (vector, keys) = numbers.split_at(DIM);
        let keys = &keys[..rows * KV_HEADS * DIM];
        cache.append(1, keys, keys).unwrap();
        let kept = kept.min(rows);
        cache.apply(1, 1, &[], kept).unwrap();
        let step = match kv_type {
            KvType::F16 => 2.0 / 2048.0,
            KvType::F32 => 1e-6,
            KvType::Q8_0 => 2.0 / 254.0,
        };
        let (mut dots, mut sum) = (vec![f32::NAN; 3], vec![f32::NAN; 3]);
        for (head, held) in [(0, rows), (1, kept)] {
            cache.key_dots(1, head, vector, &mut dots);
            prop_assert_eq!(dots.len(), held);
            // Σᵢ wᵢ (kᵢ · v) = (Σᵢ wᵢ kᵢ) · v, whatever the keys are rounded to.
            let weights = &numbers[numbers.len() - held..];
            cache.key_sum(1, head, weights, &mut sum);
            let product = |left: &[f32], right: &[f32]| -> f64 {
                left.iter().zip(right).map(|(&l, &r)| f64::from(l) * f64::from(r)).sum()
            };
            prop_assert_eq!(sum.len(), DIM);
            prop_assert!((product(&sum, vector) - product(&dots, weights)).abs() < 5e-3);
            for (row, &found) in dots.iter().enumerate() {
                let key = &keys[(row * KV_HEADS + head) * DIM..][..DIM];
                let terms = key.iter().zip(vector).map(|(&k, &v)| f64::from(k) * f64::from(v));
                let bound = 1.1 * step * vector.iter().map(|v| f64::from(v.abs())).sum::<f64>();
                prop_assert!((terms.sum::<f64>() - f64::from(found)).abs() <= bound + 1e-6, "row {} of {}", row, head);
            }
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn evicted_memory_returns_to_the_system() {
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").expect("linux has it");
        text.split(' ')
            .nth(1)
            .expect("second field")
            .parse::<usize>()
            .expect("pages")
            * 4096
    }
    // 240 MB in f16; q8_0 blocks do not end on page borders.
    for (kv_type, rows) in [(KvType::F16, 60_000), (KvType::Q8_0, 100_000)] {
        let config = KvConfig {
            layers: 4,
            kv_heads: 4,
            head_dim: 64,
            kv_type,
        };
        let pool = KvPool::new(config, None).unwrap();
        let mut cache = KvCache::new(&pool);
        let numbers = vec![0.5; 500 * 4 * 64];
        let before = resident();
        for _ in 0..rows / 500 {
            for layer in 0..4 {
                cache.append(layer, &numbers, &numbers).unwrap();
            }
        }
        let full = pool.bytes_in_use();
        let after_prefill = resident();
        assert!(after_prefill - before > full / 10 * 9);
        let moves: Vec<(u32, u32)> = (1..rows as u32 / 10).map(|to| (to * 10, to)).collect();
        for layer in 0..4 {
            for head in 0..4 {
                cache.apply(layer, head, &moves, rows / 10).unwrap();
            }
        }
        assert!(pool.bytes_in_use() < full / 100 * 11);
        let freed = after_prefill.saturating_sub(resident());
        // Other tests of this binary allocate at the same time, far less than this.
        assert!(freed > full / 10 * 8, "{kv_type}: {freed} of {full} bytes went back");
    }
}

#[test]
fn a_copy_has_memory_of_its_own() {
    let pool = KvPool::new(config(KvType::F16), None).unwrap();
    let mut cache = KvCache::new(&pool);
    let rows: Vec<f32> = (0..70 * KV_HEADS * DIM).map(|i| (i % 97) as f32).collect();
    cache.append(0, &rows, &rows).unwrap();
    let before = pool.bytes_in_use();
    let copy = cache.copy().unwrap();
    assert_eq!(pool.bytes_in_use(), 2 * before);
    let norms = |cache: &KvCache| {
        let mut norms = Vec::new();
        cache.key_norms(0, 0, &mut norms);
        norms
    };
    let expected = norms(&cache);
    cache.apply(0, 0, &[(69, 0)], 1).unwrap();
    assert_eq!(norms(&copy), expected);
    let full = KvPool::new(config(KvType::F16), Some(before)).unwrap();
    let mut cache = KvCache::new(&full);
    cache.append(0, &rows, &rows).unwrap();
    assert!(matches!(cache.copy(), Err(CacheError::OutOfMemory { .. })));
}

#[test]
fn what_a_sequence_needs_is_known_beforehand() {
    let pool = KvPool::new(config(KvType::F16), None).unwrap();
    for rows in [0, 1, 31, 32, 33, 100] {
        let mut cache = KvCache::new(&pool);
        let numbers = vec![0.0; rows * KV_HEADS * DIM];
        for layer in 0..LAYERS {
            cache.append(layer, &numbers, &numbers).unwrap();
        }
        assert_eq!(cache.bytes(), pool.bytes_for(rows), "{rows} rows");
    }
}
