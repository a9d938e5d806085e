//! Models for tests: small real ones from the catalog, tiny random ones made on the fly.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use inertiakv::catalog::Store;
pub(crate) use inertiakv::config::Architecture as Family;
use inertiakv::gguf::Gguf;
use inertiakv::testing::TinyModel;
use inertiakv::{Engine, EngineOptions};

/// The file of a catalog model, fetched once.
pub(crate) fn real(name: &str) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let store = Store::open().expect("a folder for models");
    if let Some(path) = store.path(name) {
        return path;
    }
    store.pull(name, &mut |_| {}).expect("the model can be fetched")
}

/// A catalog model on two threads.
pub(crate) fn open_real(name: &str) -> Engine {
    let options = EngineOptions {
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::open(&real(name), &options).expect("the model opens")
}

/// A tiny random model of a family, with a context long enough for every test.
pub(crate) fn tiny(family: Family, options: &EngineOptions) -> Engine {
    Engine::open(&tiny_file(family), options).expect("a tiny model opens")
}

/// The file of a tiny random model.
pub(crate) fn tiny_file(family: Family) -> PathBuf {
    written(
        &format!("tiny-{family}.gguf"),
        &TinyModel {
            family,
            context: 8192,
            // With tied embeddings a random model repeats its last token for ever.
            tied: false,
            // Every second layer sees everything.
            window: (family == Family::Gemma3).then_some(64),
            ..TinyModel::default()
        }
        .to_bytes(),
    )
}

/// A model whose second layer has a weight that is not a number.
pub(crate) fn broken() -> Engine {
    let model = TinyModel {
        layers: 3,
        ..TinyModel::default()
    };
    let mut bytes = model.to_bytes();
    let file = Gguf::from_bytes(bytes.clone()).expect("a valid file");
    let weight = file.tensor("blk.1.ffn_norm.weight").expect("the tensor").bytes();
    bytes[weight.start..weight.start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    Engine::open(&written("broken.gguf", &bytes), &EngineOptions::default()).expect("the shapes are right")
}

/// Writes a file for this test process, once.
pub(crate) fn written(name: &str, bytes: &[u8]) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    static WRITING: Mutex<()> = Mutex::new(());
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary folder"));
    let _guard = WRITING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let path = folder.path().join(name);
    if !path.exists() {
        std::fs::write(&path, bytes).expect("the folder can be written");
    }
    path
}
