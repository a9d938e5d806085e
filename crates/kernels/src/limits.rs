//! How fast is this machine when it does nothing but read, or nothing but multiply?
//!
//! Decoding reads every weight once per token, so it cannot be faster than the memory; prefill multiplies, so it cannot
//! be faster than the multipliers. What is measured here uses the same instructions as the kernels and nothing else.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use std::hint::black_box;
use std::time::Instant;

use crate::isa::Isa;
use crate::linear::LinearError;
use crate::linear::arena::Region;
use crate::threads::ThreadPool;

/// Measurements, of which the median counts: so do those that a limit is held against.
const ROUNDS: usize = 9;
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

/// What an instruction set does when it does nothing else. All need the set to be available.
struct Loops {
    /// Reads everything.
    read: unsafe fn(&[u8]) -> u64,
    /// So many turns of float operations.
    floats: unsafe fn(usize) -> f32,
    /// Operations of a turn.
    float_operations: usize,
    /// So many turns of byte operations.
    bytes: unsafe fn(usize) -> i32,
    /// Operations of a turn.
    byte_operations: usize,
}

impl Loops {
    fn of(isa: Isa) -> &'static Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::LOOPS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::LOOPS,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &neon::LOOPS,
            _ => &scalar::LOOPS,
        }
    }
}

/// Measures all limits, memory over a buffer of `bytes`: a buffer that fits into a cache measures the cache.
///
/// # Errors
/// If there is no memory for the buffer.
pub fn measure(pool: &ThreadPool, bytes: usize) -> Result<Limits, LinearError> {
    let loops = Loops::of(Isa::detect());
    let mut buffer = Region::new(bytes.next_multiple_of(PIECE))?;
    // Untouched pages would all be the same zeros.
    buffer.as_mut_slice().fill(1);
    let pieces: Vec<&[u8]> = buffer.as_slice().chunks_exact(PIECE).collect();
    let read = seconds(pool, pieces.len(), &|item| {
        // SAFETY: the set is available.
        black_box(unsafe { (loops.read)(pieces[item]) });
    });
    let items = 4 * pool.threads();
    let floats = seconds(pool, items, &|_| {
        // SAFETY: as above.
        black_box(unsafe { (loops.floats)(TURNS) });
    });
    let bytes = seconds(pool, items, &|_| {
        // SAFETY: as above.
        black_box(unsafe { (loops.bytes)(TURNS) });
    });
    let turns = (items * TURNS) as f64;
    Ok(Limits {
        read_bytes_per_second: (pieces.len() * PIECE) as f64 / read,
        float_operations_per_second: turns * loops.float_operations as f64 / floats,
        byte_operations_per_second: turns * loops.byte_operations as f64 / bytes,
    })
}

/// Seconds of a job, the median of several rounds after one that does not count.
fn seconds(pool: &ThreadPool, items: usize, task: &(dyn Fn(usize) + Sync)) -> f64 {
    pool.run(items, task);
    let mut times = [0.0; ROUNDS];
    for time in &mut times {
        let start = Instant::now();
        pool.run(items, task);
        *time = start.elapsed().as_secs_f64();
    }
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

#[cfg(test)]
mod tests {
    use super::measure;
    use crate::threads::ThreadPool;

    #[test]
    fn limits_are_numbers() {
        let limits = measure(&ThreadPool::new(2), 1 << 20).unwrap();
        for rate in [
            limits.read_bytes_per_second,
            limits.float_operations_per_second,
            limits.byte_operations_per_second,
        ] {
            assert!(rate > 0.0 && rate.is_finite(), "{limits:?}");
        }
    }
}
