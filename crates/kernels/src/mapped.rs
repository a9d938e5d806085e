//! A read-only memory map behind a safe interface.
//!
//! Model files are larger than anyone wants to copy; the operating system pages in what is read. This lives here
//! because mapping needs `unsafe`, which the rest of the workspace forbids.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file, mapped read-only; dereferences to `[u8]`.
///
/// The file must not be changed while it is mapped: like every program that maps files, the process is ended by the
/// system if somebody truncates the file underneath it, and changed bytes show through. The bytes are therefore data
/// to be checked on every use, never something a memory-safety argument may lean on.
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// When the file cannot be opened, is not a regular file, or cannot be mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the map is read-only, private to this value, and handed out as `&[u8]` no longer than it lives.
        // What `Mmap::map` asks beyond that is that nobody modifies the file meanwhile. We cannot enforce it against
        // other processes (nobody can); the type's documentation states it, and every reader treats the bytes as
        // untrusted, so a change can give wrong numbers or an ended process, not an invalid value of a Rust type.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }

    /// Tells the system that a part has been read and need not stay in memory. Reading it again brings it back.
    pub fn release(&self, part: std::ops::Range<usize>) {
        #[cfg(unix)]
        if part.start < part.end && part.end <= self.map.len() {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is a read-only, private map of a file that nothing has written to, so dropped pages come
            // back with the same content.
            let released = unsafe { self.map.unchecked_advise_range(advice, part.start, part.len()) };
            // Only memory is lost when the system does not want to know.
            drop(released);
        }
        #[cfg(not(unix))]
        let _ = part;
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MappedFile")
            .field("bytes", &self.map.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch_file(name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("inertiakv-mapped-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("the temporary directory is writable");
        path
    }

    #[test]
    fn the_bytes_of_the_file_are_seen() {
        let path = scratch_file("bytes", b"some bytes");
        let mapped = MappedFile::open(&path).expect("a regular file maps");
        assert_eq!(&*mapped, b"some bytes");
        drop(mapped);
        std::fs::remove_file(path).expect("it was written above");
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let path = scratch_file("empty", b"");
        assert!(MappedFile::open(&path).expect("an empty file maps").is_empty());
        std::fs::remove_file(path).expect("it was written above");
    }

    #[test]
    fn a_directory_and_a_missing_file_are_errors() {
        assert!(MappedFile::open(&std::env::temp_dir()).is_err());
        assert!(MappedFile::open(Path::new("no such file anywhere")).is_err());
    }
}
