//! The kernels in portable Rust: the reference for the others, and what machines without them use.

use super::GroupPooling;
use super::kernel::{Chunk, EXP2, Kernels, MassPart, Scores, merge_body};
use crate::cache::{BLOCK_ROWS, Layout};
use crate::isa::Isa;

pub(super) static KERNELS: Kernels = Kernels {
    isa: Isa::Scalar,
    scores,
    softmax,
    weigh,
    stage,
    merge: merge_body,
    mass,
};

unsafe fn scores(chunk: &Chunk, queries: &[*const f32], blocks: usize, out: *mut f32, stride: usize) {
    let dim = chunk.layout.dim;
    let mut keys = vec![0.0; dim * BLOCK_ROWS];
    for (index, &block) in chunk.blocks[..blocks].iter().enumerate() {
        // SAFETY: blocks have the layout's size; queries have `dim` numbers; `out` has 32 per block and column.
        unsafe {
            chunk.layout.read_keys(block_bytes(chunk.layout, block), &mut keys);
            for (column, &query) in queries.iter().enumerate() {
                let query = std::slice::from_raw_parts(query, dim);
                let mut sums = [0.0_f32; BLOCK_ROWS];
                for (number, line) in query.iter().zip(keys.chunks_exact(BLOCK_ROWS)) {
                    for (sum, key) in sums.iter_mut().zip(line) {
                        *sum += number * key;
                    }
                }
                out.add(index * stride + column * BLOCK_ROWS)
                    .cast::<[f32; BLOCK_ROWS]>()
                    .write(sums);
            }
        }
    }
}

unsafe fn softmax(scores: &Scores, maximum: &mut f32, sum: &mut f32) -> f32 {
    let before = *maximum;
    for block in 0..scores.blocks {
        // SAFETY: the column has 32 numbers in each of its blocks.
        let line = unsafe { &mut *scores.start.add(block * scores.stride).cast::<[f32; BLOCK_ROWS]>() };
        for (lane, score) in line.iter_mut().enumerate() {
            *score = if block * BLOCK_ROWS + lane < scores.visible {
                *score * scores.scale
            } else {
                f32::NEG_INFINITY
            };
            *maximum = maximum.max(*score);
        }
    }
    // Nothing seen so far: any finite number avoids −∞ − −∞.
    let shift = if *maximum == f32::NEG_INFINITY { 0.0 } else { *maximum };
    let factor = exp2(before - shift);
    let mut lanes = [0.0_f32; BLOCK_ROWS];
    for block in 0..scores.blocks {
        // SAFETY: as above.
        let line = unsafe { &mut *scores.start.add(block * scores.stride).cast::<[f32; BLOCK_ROWS]>() };
        for (score, lane) in line.iter_mut().zip(&mut lanes) {
            *score = exp2(*score - shift);
            *lane += *score;
        }
    }
    *sum = *sum * factor + lanes.iter().sum::<f32>();
    factor
}

fn exp2(x: f32) -> f32 {
    let clamped = x.clamp(-126.0, 126.0);
    let whole = clamped.round_ties_even();
    let f = clamped - whole;
    let mut tail = 0.0;
    for coefficient in EXP2.iter().rev() {
        tail = tail * f + coefficient;
    }
    let power = f32::from_bits(((whole as i32 + 127) << 23) as u32);
    if x < -126.0 { 0.0 } else { (tail * f + 1.0) * power }
}

unsafe fn weigh(
    chunk: &Chunk,
    entries: usize,
    probabilities: *const f32,
    stride: usize,
    factors: &[f32],
    outputs: &[*mut f32],
) {
    let dim = chunk.layout.dim;
    let mut values = vec![0.0; dim * BLOCK_ROWS];
    for (&factor, &output) in factors.iter().zip(outputs) {
        // SAFETY: outputs have `dim` numbers.
        let output = unsafe { std::slice::from_raw_parts_mut(output, dim) };
        if factor == 0.0 {
            output.fill(0.0);
        } else {
            for number in output {
                *number *= factor;
            }
        }
    }
    for first in (0..entries).step_by(BLOCK_ROWS) {
        let index = first / BLOCK_ROWS;
        // SAFETY: blocks have the layout's size; outputs have `dim` numbers; probabilities 32 per block and column.
        unsafe {
            let bytes = block_bytes(chunk.layout, chunk.blocks[index]);
            chunk.layout.read_values(bytes, &mut values);
            for (column, &output) in outputs.iter().enumerate() {
                let output = std::slice::from_raw_parts_mut(output, dim);
                let shares = probabilities.add(index * stride + column * BLOCK_ROWS);
                let count = (entries - first).min(BLOCK_ROWS);
                let shares = std::slice::from_raw_parts(shares, count);
                for (share, row) in shares.iter().zip(values.chunks_exact(dim)) {
                    for (number, value) in output.iter_mut().zip(row) {
                        *number += share * value;
                    }
                }
            }
        }
    }
}

unsafe fn stage(layout: &Layout, block: *const u8, out: *mut f32) {
    let half = layout.dim * BLOCK_ROWS;
    // SAFETY: the block has the layout's size, and `out` room for its keys and values.
    unsafe {
        let bytes = block_bytes(layout, block);
        layout.read_keys(bytes, std::slice::from_raw_parts_mut(out, half));
        layout.read_values(bytes, std::slice::from_raw_parts_mut(out.add(half), half));
    }
}

unsafe fn mass(part: &MassPart) {
    for entry in 0..part.entries {
        let offset = entry / BLOCK_ROWS * part.stride + entry % BLOCK_ROWS;
        let mut total = 0.0;
        for (row, factors) in part.factors.chunks_exact(part.group).enumerate() {
            let mut pooled = 0.0_f32;
            for (member, factor) in factors.iter().enumerate() {
                let column = row * part.group + member;
                // SAFETY: the probabilities have 32 numbers per block and column.
                let share = factor * unsafe { *part.probabilities.add(offset + column * BLOCK_ROWS) };
                pooled = match part.pooling {
                    GroupPooling::Sum => pooled + share,
                    GroupPooling::Max => pooled.max(share),
                };
            }
            total += pooled;
        }
        // SAFETY: `out` has `entries` numbers.
        unsafe { *part.out.add(entry) += total };
    }
}

unsafe fn block_bytes<'a>(layout: &Layout, block: *const u8) -> &'a [u8] {
    // SAFETY: the caller's block has the layout's size.
    unsafe { std::slice::from_raw_parts(block, layout.bytes) }
}

#[cfg(test)]
mod tests {
    use super::exp2;

    #[test]
    fn powers_of_two_are_within_two_units() {
        assert_eq!(exp2(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp2(f32::NEG_INFINITY).to_bits(), 0);
        assert!(exp2(f32::NAN).is_nan());
        for i in 0..120_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp2();
            assert!((f64::from(exp2(x)) - exact).abs() <= 2.4e-7 * exact, "{x}");
        }
    }
}
