//! Attention of every instruction set against a plain one in double precision.

use inertiakv_kernels::attention::{AttentionTask, GroupPooling, Mass, attend_with};
use inertiakv_kernels::cache::{KvCache, KvType};
use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::threads::ThreadPool;
use proptest::prelude::*;

use crate::support::{Case, any_length, any_type, fates, masked_and_evicted, with_zeros};

impl Case {
    fn run(&self, isa: Isa, pool: &ThreadPool, mass: Option<(&mut Mass, GroupPooling, usize)>) -> Vec<f32> {
        self.run_over(&self.cache, isa, pool, mass)
    }

    fn run_over(
        &self,
        cache: &KvCache,
        isa: Isa,
        pool: &ThreadPool,
        mass: Option<(&mut Mass, GroupPooling, usize)>,
    ) -> Vec<f32> {
        // What was there before must not matter.
        let mut out = vec![f32::NAN; self.queries.len()];
        let task = AttentionTask {
            cache,
            layer: 0,
            queries: &self.queries,
            rows: self.rows,
            window: self.window,
            out: &mut out,
            mass,
        };
        attend_with(isa, pool, self.heads(), self.scale(), &mut [task]);
        out
    }

    pub(crate) fn scale(&self) -> f32 {
        // Larger than usual: peaked rows are the harder ones.
        3.0 / (self.dim as f32).sqrt()
    }

    /// Outputs, and per KV head the mass of the last `window` rows.
    fn reference(&self, pooling: GroupPooling, window: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
        let (heads, dim) = (self.heads(), self.dim);
        let mut out = vec![0.0; self.queries.len()];
        let mut mass: Vec<Vec<f64>> = self.keys.iter().map(|keys| vec![0.0; keys.len()]).collect();
        for row in 0..self.rows {
            for kv_head in 0..self.keys.len() {
                let keys = &self.keys[kv_head];
                let seen = keys.len() - (self.rows - 1 - row);
                let first = self.window.map_or(0, |window| seen.saturating_sub(window));
                let mut pooled = vec![0.0_f64; seen];
                for member in 0..self.group {
                    let at = (row * heads + kv_head * self.group + member) * dim;
                    let query = &self.queries[at..at + dim];
                    let scores: Vec<f64> = keys[first..seen]
                        .iter()
                        .map(|key| {
                            let dot: f64 = key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
                            dot * f64::from(self.scale())
                        })
                        .collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let total: f64 = scores.iter().map(|score| (score - top).exp()).sum();
                    for (entry, score) in (first..).zip(&scores) {
                        let share = (score - top).exp() / total;
                        pooled[entry] = match pooling {
                            GroupPooling::Sum => pooled[entry] + share,
                            GroupPooling::Max => pooled[entry].max(share),
                        };
                        for d in 0..dim {
                            out[at + d] += share * f64::from(self.values[kv_head][entry][d]);
                        }
                    }
                }
                if row + window >= self.rows {
                    for (mass, pooled) in mass[kv_head].iter_mut().zip(&pooled) {
                        *mass += pooled;
                    }
                }
            }
        }
        (out, mass)
    }

    fn check(&self, pooling: GroupPooling, window: usize, tolerance: f64) {
        let (expected, expected_mass) = self.reference(pooling, window);
        let pool = ThreadPool::new(2);
        for isa in Isa::available() {
            let plain = self.run(isa, &pool, None);
            let mut mass = Mass {
                heads: vec![vec![f32::NAN; 3]; 1],
            };
            let out = self.run(isa, &pool, Some((&mut mass, pooling, window)));
            assert_eq!(plain, out, "{isa}: the mass changes nothing");
            for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
                assert!(
                    (f64::from(*found) - expected).abs() <= tolerance,
                    "{isa} {i}: {found} {expected}"
                );
            }
            assert_eq!(mass.heads.len(), self.keys.len());
            for (found, expected) in mass.heads.iter().zip(&expected_mass) {
                assert_eq!(found.len(), expected.len());
                for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let bound = tolerance * (0.05 + expected);
                    assert!(
                        (f64::from(*found) - expected).abs() <= bound,
                        "{isa} mass {i}: {found} {expected}"
                    );
                }
                if pooling == GroupPooling::Sum {
                    let total: f32 = found.iter().sum();
                    let expected = (self.group * window.min(self.rows)) as f32;
                    assert!(
                        (total - expected).abs() <= 1e-4 * expected.max(1.0),
                        "{isa}: {total} {expected}"
                    );
                }
            }
        }
    }
}

fn tolerance(kv_type: KvType) -> f64 {
    match kv_type {
        KvType::F32 => 2e-6 * 8.0,
        KvType::F16 => 4e-3,
        KvType::Q8_0 => 4e-2,
    }
}

fn any_pooling() -> impl Strategy<Value = GroupPooling> {
    prop_oneof![Just(GroupPooling::Sum), Just(GroupPooling::Max)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn few_rows_agree(
        kv_type in any_type(),
        kv_heads in 1..4_usize,
        group in 1..=16_usize,
        dim in prop::sample::select(vec![16_usize, 48, 64, 80, 96, 128, 256]),
        past in any_length(),
        rows in prop_oneof![3 => Just(1_usize), 1 => 2..17_usize],
        pooling in any_pooling(),
        window in 0..4_usize,
        seed in any::<u64>(),
    ) {
        let rows = rows.min(64 / group).max(1);
        let case = Case::new(kv_type, kv_heads, group, dim, past + rows, rows, seed);
        case.check(pooling, window, tolerance(kv_type));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn many_rows_agree(
        kv_type in any_type(),
        kv_heads in 1..3_usize,
        group in prop::sample::select(vec![1_usize, 3, 4, 7, 8, 11]),
        dim in prop::sample::select(vec![16_usize, 64, 80]),
        past in any_length(),
        rows in prop_oneof![17..40_usize, 120..140_usize],
        pooling in any_pooling(),
        window in prop_oneof![Just(0_usize), Just(1), Just(64), 2..20_usize],
        seed in any::<u64>(),
    ) {
        let case = Case::new(kv_type, kv_heads, group, dim, past + rows, rows, seed);
        case.check(pooling, window, tolerance(kv_type));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn masked_rows_count_as_evicted(
        kv_type in any_type(),
        kv_heads in 1..3_usize,
        group in prop::sample::select(vec![1_usize, 3, 7, 11]),
        dim in prop::sample::select(vec![16_usize, 64, 80]),
        past in any_length(),
        prefix in 0..600_usize,
        rows in prop_oneof![2 => Just(1_usize), 1 => 2..17_usize, 2 => 17..140_usize],
        pooling in any_pooling(),
        window in 0..20_usize,
        seed in any::<u64>(),
    ) {
        let case = Case::new(kv_type, kv_heads, group, dim, past + rows, rows, seed);
        let fates = fates(&case, prefix, seed);
        let (masked, evicted) = masked_and_evicted(&case, &fates);
        let pool = ThreadPool::new(2);
        for isa in Isa::available() {
            let mut masses = [Mass::default(), Mass::default()];
            let [mass, expected_mass] = &mut masses;
            let out = case.run_over(&masked.fork(), isa, &pool, Some((mass, pooling, window)));
            let expected = case.run_over(&evicted, isa, &pool, Some((expected_mass, pooling, window)));
            prop_assert_eq!(&out, &case.run_over(&masked.copy().unwrap(), isa, &pool, None));
            for (found, expected) in out.iter().zip(&expected) {
                prop_assert!((found - expected).abs() <= 1e-5, "{}: {} {}", isa, found, expected);
            }
            for ((found, expected), fates) in mass.heads.iter().zip(&expected_mass.heads).zip(&fates) {
                let expected = with_zeros(expected, fates);
                prop_assert_eq!(found.len(), expected.len());
                for (row, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                    prop_assert!((found - expected).abs() <= 2e-5 * expected, "{} {}: {} {}", isa, row, found, expected);
                }
            }
        }
    }
}

#[test]
fn long_prefills_and_wide_heads_agree() {
    Case::new(KvType::F16, 1, 3, 64, 600, 600, 1).check(GroupPooling::Sum, 64, tolerance(KvType::F16));
    Case::new(KvType::F32, 1, 1, 128, 901, 513, 2).check(GroupPooling::Max, 8, tolerance(KvType::F32));
    Case::new(KvType::Q8_0, 2, 2, 256, 150, 70, 3).check(GroupPooling::Sum, 70, tolerance(KvType::Q8_0));
}

#[test]
fn threads_and_company_do_not_change_a_bit() {
    let cases: Vec<Case> = [(1, 700), (1, 33), (5, 900), (17, 300), (200, 650), (16, 16)]
        .into_iter()
        .enumerate()
        .map(|(seed, (rows, entries))| Case::new(KvType::F16, 3, 3, 64, entries, rows, seed as u64))
        .collect();
    for isa in Isa::available() {
        let alone: Vec<(Vec<f32>, Mass)> = cases
            .iter()
            .map(|case| {
                let mut mass = Mass::default();
                let out = case.run(isa, &ThreadPool::new(1), Some((&mut mass, GroupPooling::Sum, 2)));
                (out, mass)
            })
            .collect();
        for threads in [1, 2, 3] {
            let mut outs: Vec<Vec<f32>> = cases.iter().map(|case| vec![0.0; case.queries.len()]).collect();
            let mut masses = vec![Mass::default(); cases.len()];
            let mut tasks: Vec<AttentionTask> = cases
                .iter()
                .zip(&mut outs)
                .zip(&mut masses)
                .map(|((case, out), mass)| AttentionTask {
                    cache: &case.cache,
                    layer: 0,
                    queries: &case.queries,
                    rows: case.rows,
                    window: None,
                    out,
                    mass: Some((mass, GroupPooling::Sum, 2)),
                })
                .collect();
            attend_with(isa, &ThreadPool::new(threads), 9, cases[0].scale(), &mut tasks);
            drop(tasks);
            for (index, (out, mass)) in alone.iter().enumerate() {
                assert!(
                    out == &outs[index] && mass == &masses[index],
                    "{isa}, {threads} threads, task {index}"
                );
            }
        }
    }
}

#[test]
fn a_window_hides_what_is_older() {
    let pool = ThreadPool::new(2);
    // Inside a block, at its border, over chunks of either kind; windows that hide nothing; few rows and many.
    for (rows, entries) in [(1, 700), (5, 900), (16, 300), (17, 300), (200, 650)] {
        for window in [1, 7, 32, 33, 256, 257, 511, 640, 1000] {
            for kv_type in [KvType::F32, KvType::F16] {
                let mut case = Case::new(kv_type, 2, 3, 32, entries, rows, window as u64);
                case.window = Some(window);
                let (expected, _) = case.reference(GroupPooling::Sum, 0);
                for isa in Isa::available() {
                    for (at, (out, expected)) in case.run(isa, &pool, None).iter().zip(&expected).enumerate() {
                        let place = format!("{isa}, {kv_type:?}, {rows} of {entries}, window {window}, number {at}");
                        assert!(
                            (f64::from(*out) - expected).abs() < 2e-3,
                            "{place}: {out}, not {expected}"
                        );
                    }
                }
                case.window = None;
                let everything = case.run(Isa::detect(), &pool, None);
                case.window = Some(entries);
                assert_eq!(case.run(Isa::detect(), &pool, None), everything);
            }
        }
    }
}

#[test]
fn forks_do_not_see_each_other() {
    let mut case = Case::new(KvType::F16, 2, 4, 64, 300, 1, 7);
    let pool = ThreadPool::new(2);
    let before = case.run(Isa::detect(), &pool, None);
    let mut fork = case.cache.fork();
    let other = vec![9.0; 40 * 2 * 64];
    for head in 0..2 {
        let moves: Vec<(u32, u32)> = (0..20).map(|to| (200 + to, to)).collect();
        fork.apply(0, head, &moves, 120).unwrap();
    }
    fork.append(0, &other, &other).unwrap();
    assert_eq!(case.run(Isa::detect(), &pool, None), before);
    // And the other way round.
    std::mem::swap(&mut case.cache, &mut fork);
    let evicted = case.run(Isa::detect(), &pool, None);
    fork.append(0, &other, &other).unwrap();
    drop(fork);
    assert_eq!(case.run(Isa::detect(), &pool, None), evicted);
    assert_ne!(evicted, before);
}

#[test]
fn what_lies_behind_the_last_row_does_not_matter() {
    // Rows that left keep their bytes in the open block: infinities there must not leak.
    let clean = Case::new(KvType::F16, 1, 7, 64, 40, 1, 11);
    let mut dirty = Case::new(KvType::F16, 1, 7, 64, 40, 1, 11);
    let poison = vec![f32::INFINITY; 10 * 64];
    dirty.cache.append(0, &poison, &poison).unwrap();
    dirty.cache.apply(0, 0, &[], 40).unwrap();
    let pool = ThreadPool::new(1);
    for isa in Isa::available() {
        assert_eq!(clean.run(isa, &pool, None), dirty.run(isa, &pool, None), "{isa}");
    }
}
