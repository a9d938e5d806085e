//! Loops of plain Rust that do nothing but read or compute.

use std::hint::black_box;

use super::Loops;

const LANES: usize = 16;

pub(super) const LOOPS: Loops = Loops {
    read,
    floats,
    float_operations: 2 * LANES,
    bytes,
    byte_operations: 2 * LANES,
};

fn read(data: &[u8]) -> u64 {
    let (words, _) = data.as_chunks::<8>();
    words.iter().fold(0, |all, &word| all ^ u64::from_le_bytes(word))
}

fn floats(turns: usize) -> f32 {
    let factor = black_box(0.5_f32);
    let mut sums = [1.0_f32; LANES];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = *sum * factor + factor;
        }
    }
    sums.iter().sum()
}

fn bytes(turns: usize) -> i32 {
    let numbers = black_box([3_i8; LANES]);
    let mut sums = [0_i32; LANES];
    for _ in 0..turns {
        for (sum, &number) in sums.iter_mut().zip(&numbers) {
            *sum = sum.wrapping_add(i32::from(number) * i32::from(black_box(number)));
        }
    }
    sums.iter().fold(0, |all, &sum| all.wrapping_add(sum))
}
