//! How are the queries of a layer distributed?
//!
//! Mean and covariance of every query head over the rows of a prefill, and what they become when the queries are
//! rotated to positions yet to come: the first half of Expected Attention (Devoto et al., 2025).

use super::job::{Line, numbers, with_stage};
use super::kernel::{CHUNK_BLOCKS, Chunk, Kernels, TILE};
use crate::cache::{BLOCK_ROWS, Layout};
use crate::isa::Isa;
use crate::ops::RopeStyle;
use crate::threads::{SharedMut, ThreadPool};

/// Rows whose products are summed in single precision; what comes of them is added up in double precision.
const ROWS: usize = 256;

/// Mean and covariance of the query heads of a layer, gathered row by row.
///
/// Blocks of rows are centred on their own mean and then combined (Chan et al., 1983), so a mean that is
/// large beside the spread costs no precision.
#[derive(Clone, Debug)]
pub struct QueryStatistics {
    dim: usize,
    rows: usize,
    heads: Vec<Moments>,
}

/// What is known of one head.
#[derive(Clone, Debug)]
struct Moments {
    mean: Vec<f64>,
    /// `[dim][dim]`: sums of the products of two deviations from the mean, valid on and right of the diagonal.
    products: Vec<f64>,
}

/// A normal distribution for each query head of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Gaussian {
    heads: usize,
    dim: usize,
    mean: Vec<f32>,
    covariance: Vec<f32>,
}

impl QueryStatistics {
    /// Of no rows yet, for `heads` query heads of `dim` numbers.
    #[must_use]
    pub fn new(heads: usize, dim: usize) -> Self {
        let moments = Moments {
            mean: vec![0.0; dim],
            products: vec![0.0; dim * dim],
        };
        Self {
            dim,
            rows: 0,
            heads: vec![moments; heads],
        }
    }

    /// Rows added so far.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds rows of queries, `[rows][heads][dim]`, as they are before the rotation.
    ///
    /// # Panics
    /// If they are not whole rows.
    pub fn add(&mut self, pool: &ThreadPool, queries: &[f32]) {
        self.add_with(Isa::detect(), pool, queries);
    }

    /// [`QueryStatistics::add`] with a given instruction set, for tests and measurements.
    ///
    /// # Panics
    /// As there, and if this machine does not have the set.
    #[doc(hidden)]
    pub fn add_with(&mut self, isa: Isa, pool: &ThreadPool, queries: &[f32]) {
        let kernels = Kernels::of(isa);
        let (held, dim) = (self.rows, self.dim);
        let width = self.heads.len() * dim;
        assert!(
            width > 0 && queries.len().is_multiple_of(width),
            "queries are [rows][heads][dim]"
        );
        self.rows += queries.len() / width;
        let count = self.heads.len();
        let heads = SharedMut::new(&mut self.heads);
        pool.run(count, &|head| {
            // SAFETY: every head is one item's.
            let moments = unsafe { &mut heads.part(head, 1)[0] };
            with_stage(|stage| {
                for (block, rows) in queries.chunks(ROWS * width).enumerate() {
                    let rows: Vec<&[f32]> = rows.chunks_exact(width).map(|row| &row[head * dim..][..dim]).collect();
                    moments.add(kernels, held + block * ROWS, &rows, stage);
                }
            });
        });
    }

    /// Mean and covariance (divided by the number of rows, not by one less) of the queries after the rotation `R̄`, the
    /// average of the rotations to the positions `[first, first + count)`: `R̄ μ` and `R̄ Σ R̄ᵀ`. `frequencies` has one
    /// number per rotated pair; coordinates beyond them stay as they are.
    ///
    /// # Panics
    /// If no row was added, `count` is 0, or more coordinates rotate than there are.
    #[must_use]
    pub fn rotated(&self, style: RopeStyle, frequencies: &[f64], first: usize, count: usize) -> Gaussian {
        let dim = self.dim;
        assert!(self.rows > 0, "a distribution of at least one row");
        assert!(count > 0, "an average over at least one position");
        assert!(
            2 * frequencies.len() <= dim,
            "more rotated coordinates than the head has"
        );
        let pairs: Vec<Pair> = frequencies
            .iter()
            .enumerate()
            .map(|(index, frequency)| Pair::average(style, index, frequencies.len(), *frequency, first..first + count))
            .collect();
        let mut gaussian = Gaussian {
            heads: self.heads.len(),
            dim,
            mean: Vec::with_capacity(self.heads.len() * dim),
            covariance: Vec::with_capacity(self.heads.len() * dim * dim),
        };
        for head in &self.heads {
            let mut mean = head.mean.clone();
            turn(&mut mean, &pairs);
            gaussian.mean.extend(mean.iter().map(|&number| number as f32));
            // R̄ Σ R̄ᵀ = (R̄ (R̄ Σ)ᵀ)ᵀ and Σ is symmetric: turning the rows twice does it.
            let mut covariance = head.covariance(self.rows);
            for _ in 0..2 {
                covariance.chunks_exact_mut(dim).for_each(|row| turn(row, &pairs));
                covariance = (0..dim * dim).map(|at| covariance[at % dim * dim + at / dim]).collect();
            }
            gaussian
                .covariance
                .extend(covariance.iter().map(|&number| number as f32));
        }
        gaussian
    }
}

impl Moments {
    /// Adds a block of rows to the `held` ones.
    fn add(&mut self, kernels: &Kernels, held: usize, rows: &[&[f32]], stage: &mut Vec<Line>) {
        let (count, dim) = (rows.len(), self.mean.len());
        let mut mean = vec![0.0_f64; dim];
        for row in rows {
            for (mean, &number) in mean.iter_mut().zip(*row) {
                *mean += f64::from(number);
            }
        }
        for number in &mut mean {
            *number /= count as f64;
        }
        self.add_products(kernels, &mean, rows, stage);

        let (before, added) = (held as f64, count as f64);
        let total = before + added;
        for (own, new) in self.mean.iter().zip(&mut mean) {
            *new -= own;
        }
        for (i, line) in self.products.chunks_exact_mut(dim).enumerate() {
            let factor = mean[i] * before * added / total;
            for (product, step) in line[i..].iter_mut().zip(&mean[i..]) {
                *product += factor * step;
            }
        }
        for (own, step) in self.mean.iter_mut().zip(&mean) {
            *own += step * added / total;
        }
    }

    /// Adds the products of the deviations of some rows from their mean. A column of a matrix times all columns is what
    /// attention computes when it multiplies a query with keys: here the numbers of a column are the dimensions.
    fn add_products(&mut self, kernels: &Kernels, mean: &[f64], rows: &[&[f32]], stage: &mut Vec<Line>) {
        let (count, dim) = (rows.len(), self.mean.len());
        let layout = Layout::matrix(count);
        let blocks = dim.div_ceil(BLOCK_ROWS);
        let block_numbers = count * BLOCK_ROWS;
        let lines = (blocks * block_numbers + dim * count).div_ceil(16);
        if stage.len() < lines {
            stage.resize(lines, Line::ZERO);
        }
        let (keys, columns) = numbers(stage).split_at_mut(blocks * block_numbers);
        for (index, row) in rows.iter().enumerate() {
            for (d, (&number, &mean)) in row.iter().zip(mean).enumerate() {
                let deviation = number - mean as f32;
                keys[d / BLOCK_ROWS * block_numbers + index * BLOCK_ROWS + d % BLOCK_ROWS] = deviation;
                columns[d * count + index] = deviation;
            }
        }
        let mut sums = [0.0_f32; CHUNK_BLOCKS * TILE * BLOCK_ROWS];
        for first in (0..dim).step_by(TILE) {
            let tile = TILE.min(dim - first);
            let queries: [*const f32; TILE] =
                std::array::from_fn(|column| columns[(first + column.min(tile - 1)) * count..].as_ptr());
            let stride = tile * BLOCK_ROWS;
            for first_block in (first / BLOCK_ROWS..blocks).step_by(CHUNK_BLOCKS) {
                let used = CHUNK_BLOCKS.min(blocks - first_block);
                let mut chunk = Chunk::new(&layout, used * BLOCK_ROWS);
                chunk.warm = true;
                for (slot, block) in chunk.blocks[..used].iter_mut().zip(first_block..) {
                    *slot = keys[block * block_numbers..].as_ptr().cast();
                }
                // SAFETY: the set is available; blocks are matrices of the layout, columns have `count` numbers, and
                // there are `stride` sums per block.
                unsafe { (kernels.scores)(&chunk, &queries[..tile], used, sums.as_mut_ptr(), stride) };
                for (index, sums) in sums[..used * stride].chunks_exact(BLOCK_ROWS).enumerate() {
                    let (d, column) = ((first_block + index / tile) * BLOCK_ROWS, first + index % tile);
                    // What lies beyond `dim` in the last block is not looked at.
                    let products = &mut self.products[column * dim..][..dim][d..];
                    for (product, &sum) in products.iter_mut().zip(sums) {
                        *product += f64::from(sum);
                    }
                }
            }
        }
    }

    /// The whole symmetric matrix, over `rows` rows.
    fn covariance(&self, rows: usize) -> Vec<f64> {
        let dim = self.mean.len();
        let mut covariance = self.products.clone();
        for i in 0..dim {
            for j in 0..i {
                covariance[i * dim + j] = covariance[j * dim + i];
            }
        }
        for number in &mut covariance {
            *number /= rows as f64;
        }
        covariance
    }
}

impl Gaussian {
    /// Number of query heads.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Numbers of a query.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The mean of a head, `[dim]`.
    ///
    /// # Panics
    /// If the head does not exist; so does the one below.
    #[must_use]
    pub fn mean(&self, head: usize) -> &[f32] {
        &self.mean[head * self.dim..][..self.dim]
    }

    /// The covariance of a head, `[dim][dim]`.
    #[must_use]
    pub fn covariance(&self, head: usize) -> &[f32] {
        let numbers = self.dim * self.dim;
        &self.covariance[head * numbers..][..numbers]
    }
}

/// Two coordinates that rotate together, and the mean cosine and sine of their angle.
struct Pair {
    low: usize,
    high: usize,
    cosine: f64,
    sine: f64,
}

impl Pair {
    /// The sum of n cosines in arithmetic progression is that in their middle times sin(n h)/sin(h), h half the step
    /// (Dirichlet's kernel); so are the sines.
    fn average(
        style: RopeStyle,
        index: usize,
        pairs: usize,
        frequency: f64,
        positions: std::ops::Range<usize>,
    ) -> Self {
        let count = positions.len() as f64;
        let middle = positions.start as f64 + (count - 1.0) / 2.0;
        let half = frequency / 2.0;
        let length = if half.sin() == 0.0 {
            1.0
        } else {
            (count * half).sin() / (count * half.sin())
        };
        let (sine, cosine) = (middle * frequency).sin_cos();
        let (low, high) = match style {
            RopeStyle::Interleaved => (2 * index, 2 * index + 1),
            RopeStyle::HalfSplit => (index, index + pairs),
        };
        Self {
            low,
            high,
            cosine: length * cosine,
            sine: length * sine,
        }
    }
}

/// `R̄ x`, in place.
fn turn(x: &mut [f64], pairs: &[Pair]) {
    for pair in pairs {
        let (a, b) = (x[pair.low], x[pair.high]);
        x[pair.low] = a * pair.cosine - b * pair.sine;
        x[pair.high] = a * pair.sine + b * pair.cosine;
    }
}
