//! What cargo is asked for.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The cargo that runs this, ready for arguments.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The directory of this checkout.
pub(crate) fn workspace_root() -> Result<PathBuf> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    Ok(root.context("xtask lies in the workspace")?.to_owned())
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }

    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(workspace_root()?)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed; see above");
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("`cargo metadata` is not understood")?;
    Ok(metadata.target_directory)
}

/// Builds in release mode and returns where the executable of the target `name` is.
pub(crate) fn build_release(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let output = cargo()
        .args(["build", "--release", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .current_dir(workspace_root()?)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!(
            "the build failed; run `cargo build --release {}` to see it alone",
            arguments.join(" ")
        );
    }
    executable(name, &String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cargo built no executable `{name}`"))
}

/// The executable of a target in cargo's messages, one JSON object a line.
fn executable(name: &str, messages: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        target: Option<Target>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }

    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.target.as_ref().is_some_and(|target| target.name == name))
        .find_map(|message| message.executable)
}

#[cfg(test)]
mod tests {
    use super::executable;
    use std::path::PathBuf;

    #[test]
    fn the_executable_of_the_right_target_is_found() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"anyhow"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"tool"},"executable":"/target/release/tool"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            executable("tool", messages),
            Some(PathBuf::from("/target/release/tool"))
        );
        assert_eq!(executable("anyhow", messages), None);
    }
}
