//! How fast could this machine be at best?
//!
//! Decoding reads every weight once per token, so it cannot be faster than the memory; prefill multiplies, so it cannot
//! be faster than the multipliers. What is measured here uses the same instructions as the kernels and nothing else.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use std::hint::black_box;
use std::time::Instant;

use crate::isa::Isa;
use crate::linear::LinearError;
use crate::linear::arena::Region;
use crate::threads::ThreadPool;

/// Measurements of which the best counts: whatever disturbs one makes it slower.
const ROUNDS: usize = 5;
/// Bytes that a thread reads in one piece.
const PIECE: usize = 256 << 10;
/// Loop turns of an arithmetic measurement: about a millisecond per item.
const TURNS: usize = 50_000;

/// What a machine can do with a pool of threads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes per second read from memory.
    pub read_bytes_per_second: f64,
    /// Additions and multiplications of `f32` per second, fused ones counting as two.
    pub float_operations_per_second: f64,
    /// Additions and multiplications of bytes per second, as quantised weights need them.
    pub byte_operations_per_second: f64,
}

/// Measures all limits, memory over a buffer of `bytes`: a buffer that fits into a cache measures the cache.
///
/// # Errors
/// If there is no memory for the buffer.
pub fn measure(pool: &ThreadPool, bytes: usize) -> Result<Limits, LinearError> {
    let isa = Isa::detect();
    let (float, byte): (fn(usize) -> f32, fn(usize) -> i32) = match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the set is available.
        Isa::Avx512 => (
            |turns| unsafe { avx512::floats(turns) },
            |turns| unsafe { avx512::bytes(turns) },
        ),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => (
            |turns| unsafe { avx2::floats(turns) },
            |turns| unsafe { avx2::bytes(turns) },
        ),
        _ => (scalar::floats, scalar::bytes),
    };
    let (float_operations, byte_operations) = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => (avx512::FLOAT_OPERATIONS, avx512::BYTE_OPERATIONS),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => (avx2::FLOAT_OPERATIONS, avx2::BYTE_OPERATIONS),
        _ => (scalar::FLOAT_OPERATIONS, scalar::BYTE_OPERATIONS),
    };
    let items = 4 * pool.threads();
    let turns = (items * TURNS) as f64;
    Ok(Limits {
        read_bytes_per_second: read(pool, isa, bytes)?,
        float_operations_per_second: turns * float_operations as f64
            / best(|| {
                pool.run(items, &|_| {
                    black_box(float(TURNS));
                });
            }),
        byte_operations_per_second: turns * byte_operations as f64
            / best(|| {
                pool.run(items, &|_| {
                    black_box(byte(TURNS));
                });
            }),
    })
}

fn read(pool: &ThreadPool, isa: Isa, bytes: usize) -> Result<f64, LinearError> {
    let mut buffer = Region::new(bytes.next_multiple_of(PIECE))?;
    // Untouched pages would all be the same zeros.
    buffer.as_mut_slice().fill(1);
    let pieces: Vec<&[u8]> = buffer.as_slice().chunks_exact(PIECE).collect();
    let seconds = best(|| {
        pool.run(pieces.len(), &|item| {
            let piece = pieces[item];
            black_box(match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the set is available.
                Isa::Avx512 => unsafe { avx512::read(piece) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Isa::Avx2 => unsafe { avx2::read(piece) },
                _ => scalar::read(piece),
            });
        });
    });
    Ok((pieces.len() * PIECE) as f64 / seconds)
}

/// Seconds of the fastest of several rounds, after one that does not count.
fn best(mut round: impl FnMut()) -> f64 {
    round();
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::measure;
    use crate::threads::ThreadPool;

    #[test]
    fn limits_are_of_this_world() {
        let limits = measure(&ThreadPool::new(2), 1 << 20).unwrap();
        for (rate, least) in [
            (limits.read_bytes_per_second, 1e8),
            (limits.float_operations_per_second, 1e7),
            (limits.byte_operations_per_second, 1e7),
        ] {
            assert!(rate > least && rate < 1e16, "{limits:?}");
        }
    }
}
