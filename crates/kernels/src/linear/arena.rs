//! Memory for repacked weights: zeroed, aligned to cache lines, on huge pages where the system has them.
//!
//! Small weights share chunks, so that they too can lie on huge pages. A chunk goes back to the system when its last
//! region is dropped.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::MmapMut;

use super::LinearError;

/// Regions start at multiples of this.
const LINE: usize = 64;
/// Size of a huge page on the common 64-bit systems; elsewhere merely a generous alignment.
const HUGE_PAGE: usize = 2 << 20;
/// Size of a chunk for small regions; larger regions get chunks of their own.
const CHUNK: usize = 16 << 20;
/// Regions up to this size share chunks.
const SMALL: usize = 4 << 20;

struct Chunk {
    /// Keeps the mapping alive; the memory is reached through `start` only.
    _map: MmapMut,
    start: NonNull<u8>,
}

// SAFETY: a chunk is plain memory; regions of it are disjoint and each is governed by its owner.
unsafe impl Send for Chunk {}
// SAFETY: as above; a shared chunk gives no access to its memory.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Result<Arc<Self>, LinearError> {
        let refused = LinearError::OutOfMemory { bytes };
        let padded = bytes.checked_add(HUGE_PAGE).ok_or(refused.clone())?;
        let mut map = MmapMut::map_anon(padded).map_err(|_| refused.clone())?;
        // A system without huge pages refuses the advice, and nothing depends on it.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let skip = map.as_ptr().align_offset(HUGE_PAGE);
        let start = map.get_mut(skip..).map(<[u8]>::as_mut_ptr);
        let start = start.and_then(NonNull::new).ok_or(refused)?;
        Ok(Arc::new(Self { _map: map, start }))
    }
}

/// The chunk that small regions are cut from, and how much of it is taken.
static CURRENT: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));

/// A piece of zeroed memory with one owner.
pub(crate) struct Region {
    chunk: Arc<Chunk>,
    offset: usize,
    length: usize,
}

impl Region {
    pub(crate) fn new(length: usize) -> Result<Self, LinearError> {
        if length > SMALL {
            return Ok(Self {
                chunk: Chunk::new(length)?,
                offset: 0,
                length,
            });
        }
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let room = current.0.upgrade().filter(|_| CHUNK - current.1 >= length);
        let chunk = if let Some(chunk) = room {
            chunk
        } else {
            let chunk = Chunk::new(CHUNK)?;
            *current = (Arc::downgrade(&chunk), 0);
            chunk
        };
        let offset = current.1;
        current.1 = (offset + length).next_multiple_of(LINE).min(CHUNK);
        Ok(Self { chunk, offset, length })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: inside the chunk, which lives as long as `self`; only `as_mut_slice` writes, and it borrows mutably.
        unsafe { std::slice::from_raw_parts(self.chunk.start.as_ptr().add(self.offset), self.length) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above; no other region overlaps, since each takes its bytes from `CURRENT` once and never returns
        // them to it.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.start.as_ptr().add(self.offset), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, LINE, Region, SMALL};

    #[test]
    fn regions_are_zeroed_aligned_and_disjoint() {
        let mut regions: Vec<Region> = [1, 63, 64, 65, SMALL, SMALL, SMALL, SMALL, SMALL + 1, CHUNK + 5]
            .into_iter()
            .map(|length| Region::new(length).unwrap())
            .collect();
        for (index, region) in regions.iter_mut().enumerate() {
            assert!(region.as_slice().iter().all(|&byte| byte == 0));
            assert_eq!(region.as_slice().as_ptr() as usize % LINE, 0);
            region.as_mut_slice().fill(index as u8 + 1);
        }
        for (index, region) in regions.iter().enumerate() {
            assert!(region.as_slice().iter().all(|&byte| byte == index as u8 + 1));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Region::new(usize::MAX).is_err());
        assert!(Region::new(usize::MAX / 4).is_err());
    }
}
