//! Runs the command in a world of its own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use inertiakv::testing::TinyModel;
use tempfile::TempDir;

/// A folder to run in, with an empty store of models.
pub(crate) struct World {
    folder: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file into the folder.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, content).expect("the folder can be written");
        path
    }

    /// A tiny random model as `tiny.gguf`.
    pub(crate) fn tiny_model(&self) -> PathBuf {
        let model = TinyModel {
            context: 2048,
            tied: false,
            ..TinyModel::default()
        };
        self.file("tiny.gguf", model.to_bytes())
    }

    /// The command with these arguments, nothing on standard input.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.run_with_input(arguments, "")
    }

    /// Runs a command that must end with this exit code and say these words.
    pub(crate) fn refuses(&self, arguments: &[&str], code: i32, words: &str) {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.command();
        command.args(arguments).env("INERTIAKV_HOME", self.path().join("home"));
        feed(command, input)
    }

    /// The command in this folder, without settings from the environment.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inertiakv"));
        command.current_dir(self.path());
        for name in ["INERTIAKV_MODEL", "RUST_LOG", "COLUMNS", "NO_COLOR"] {
            command.env_remove(name);
        }
        command
    }
}

/// `inertiakv serve`, until it is dropped.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Serving {
    /// Starts it on a free port; it listens when this returns.
    pub(crate) fn start(world: &World, arguments: &[impl AsRef<OsStr>]) -> Self {
        let mut command = world.command();
        command
            .args(arguments)
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line
            .split_once("http://")
            .and_then(|(_, rest)| rest.split_whitespace().next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, address }
    }

    /// Sends a signal and waits for the end.
    #[cfg(unix)]
    pub(crate) fn signal(mut self, name: &str) -> ExitStatus {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "the signal is sent");
        self.child.wait().expect("it ends")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command with this on its standard input.
pub(crate) fn feed(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // A command that needs no input may be gone already.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    child.wait_with_output().expect("the command ends")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("valid UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("valid UTF-8")
}

/// Standard output of a command that must succeed.
pub(crate) fn success(output: &Output) -> String {
    assert!(
        output.status.success(),
        "exit {:?}: {}",
        output.status.code(),
        stderr(output)
    );
    stdout(output)
}

/// Standard output as JSON.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    json_of(&success(output))
}

pub(crate) fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("valid JSON")
}
