//! What the policy may ask about the stored rows besides attention.

use super::{BLOCK_ROWS, KvCache};
use crate::isa::vectorised;

impl KvCache {
    /// Euclidean norm of every stored value row of a head, in row order. Replaces the content of `out`.
    ///
    /// # Panics
    /// If the head does not exist; so do the others below.
    pub fn value_norms(&self, layer: usize, head: usize, out: &mut Vec<f32>) {
        out.clear();
        let dim = self.pool.config().head_dim;
        let mut block_values = vec![0.0; BLOCK_ROWS * dim];
        let head = self.head(layer, head);
        for block in head.blocks() {
            self.pool.layout().read_values(block.bytes(), &mut block_values);
            out.extend(block_values.chunks_exact(dim).map(norm));
        }
        out.truncate(head.rows());
    }

    /// Euclidean norm of every stored (rotated) key row of a head, in row order. Replaces the content of `out`.
    pub fn key_norms(&self, layer: usize, head: usize, out: &mut Vec<f32>) {
        out.clear();
        let dim = self.pool.config().head_dim;
        let mut keys = vec![0.0; BLOCK_ROWS * dim];
        let mut norms = [0.0; BLOCK_ROWS];
        let head = self.head(layer, head);
        for block in head.blocks() {
            self.pool.layout().read_keys(block.bytes(), &mut keys);
            column_norms(&keys, &mut norms);
            out.extend(norms);
        }
        out.truncate(head.rows());
    }

    /// Dot product of every stored (rotated) key row of a head with a vector, in row order. Replaces the content of
    /// `out`.
    ///
    /// # Panics
    /// Also if the vector does not have the head's size.
    pub fn key_dots(&self, layer: usize, head: usize, vector: &[f32], out: &mut Vec<f32>) {
        out.clear();
        let dim = self.pool.config().head_dim;
        assert_eq!(vector.len(), dim, "the vector is as long as a key");
        let mut keys = vec![0.0; BLOCK_ROWS * dim];
        let mut dots = [0.0; BLOCK_ROWS];
        let head = self.head(layer, head);
        for block in head.blocks() {
            self.pool.layout().read_keys(block.bytes(), &mut keys);
            column_dots(&keys, vector, &mut dots);
            out.extend(dots);
        }
        out.truncate(head.rows());
    }

    /// Sum of the stored (rotated) key rows of a head, each times its weight: how [`KvCache::key_dots`] weighted alike
    /// change with the vector. Replaces the content of `out`.
    ///
    /// # Panics
    /// Also if there is not one weight per row.
    pub fn key_sum(&self, layer: usize, head: usize, weights: &[f32], out: &mut Vec<f32>) {
        let dim = self.pool.config().head_dim;
        out.clear();
        out.resize(dim, 0.0);
        let mut keys = vec![0.0; BLOCK_ROWS * dim];
        let head = self.head(layer, head);
        assert_eq!(weights.len(), head.rows(), "one weight per row");
        for (block, weights) in head.blocks().iter().zip(weights.chunks(BLOCK_ROWS)) {
            self.pool.layout().read_keys(block.bytes(), &mut keys);
            for (sum, line) in out.iter_mut().zip(keys.chunks_exact(BLOCK_ROWS)) {
                *sum += line.iter().zip(weights).map(|(key, weight)| key * weight).sum::<f32>();
            }
        }
    }

    /// Cosine of every stored key row of a head with the mean of the keys after scaling each to length 1: high for a
    /// key that says what the others say (the `KeyDiff` scorer keeps low ones). A zero key counts as cosine 0.
    pub fn key_similarity(&self, layer: usize, head: usize, out: &mut Vec<f32>) {
        out.clear();
        let dim = self.pool.config().head_dim;
        let mut keys = vec![0.0; BLOCK_ROWS * dim];
        let head = self.head(layer, head);
        let rows = head.rows();
        let mut mean = vec![0.0_f32; dim];
        let (mut norms, mut dots) = ([0.0; BLOCK_ROWS], [0.0; BLOCK_ROWS]);
        for (index, block) in head.blocks().iter().enumerate() {
            self.pool.layout().read_keys(block.bytes(), &mut keys);
            column_norms(&keys, &mut norms);
            let mut inverse = norms.map(|norm| if norm > 0.0 { 1.0 / norm } else { 0.0 });
            inverse[(rows - index * BLOCK_ROWS).min(BLOCK_ROWS)..].fill(0.0);
            for (mean, line) in mean.iter_mut().zip(keys.chunks_exact(BLOCK_ROWS)) {
                *mean += line
                    .iter()
                    .zip(&inverse)
                    .map(|(key, inverse)| key * inverse)
                    .sum::<f32>();
            }
        }
        // The length of the mean does not matter for a cosine, so the sum does.
        let length = norm(&mean);
        if length > 0.0 {
            for number in &mut mean {
                *number /= length;
            }
        }
        for block in head.blocks() {
            self.pool.layout().read_keys(block.bytes(), &mut keys);
            column_norms(&keys, &mut norms);
            column_dots(&keys, &mean, &mut dots);
            let cosines = dots.iter().zip(norms);
            out.extend(cosines.map(|(dot, norm)| if norm > 0.0 { dot / norm } else { 0.0 }));
        }
        out.truncate(rows);
    }
}

fn norm(row: &[f32]) -> f32 {
    // Sixteen partial sums: the compiler may not reorder one.
    let mut sums = [0.0_f32; 16];
    for part in row.chunks_exact(16) {
        for (sum, number) in sums.iter_mut().zip(part) {
            *sum += number * number;
        }
    }
    sums.iter().sum::<f32>().sqrt()
}

vectorised! {
    /// Norms of the columns of a `[dim][32]` matrix.
    fn column_norms(keys: &[f32], norms: &mut [f32; BLOCK_ROWS]) {
        let mut sums = [0.0_f32; BLOCK_ROWS];
        for line in keys.chunks_exact(BLOCK_ROWS) {
            for (sum, key) in sums.iter_mut().zip(line) {
                *sum += key * key;
            }
        }
        for (norm, sum) in norms.iter_mut().zip(sums) {
            *norm = sum.sqrt();
        }
    }
}

vectorised! {
    /// Dot products of the columns of a `[dim][32]` matrix with a vector.
    fn column_dots(keys: &[f32], vector: &[f32], dots: &mut [f32; BLOCK_ROWS]) {
        let mut sums = [0.0_f32; BLOCK_ROWS];
        for (number, line) in vector.iter().zip(keys.chunks_exact(BLOCK_ROWS)) {
            for (sum, key) in sums.iter_mut().zip(line) {
                *sum += number * key;
            }
        }
        *dots = sums;
    }
}
