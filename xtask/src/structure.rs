//! Does the tree keep to the invariants of ARCHITECTURE.md?

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Which crates of the workspace a crate may depend on.
const DIRECTION: &[(&str, &[&str])] = &[
    ("policy", &[]),
    ("kernels", &[]),
    ("engine", &["inertiakv-policy", "inertiakv-kernels"]),
    ("eval", &["inertiakv"]),
    ("server", &["inertiakv"]),
    ("cli", &["inertiakv", "inertiakv-server", "inertiakv-eval"]),
];

/// A file with more lines than this is two files.
const MOST_LINES: usize = 700;

/// Checks every rule and reports all breaches at once.
pub(crate) fn check() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    let mut breaches = Vec::new();
    for (folder, allowed) in DIRECTION {
        let manifest = root.join("crates").join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
        breaches.extend(
            dependencies(&text)
                .filter(|name| name.starts_with("inertiakv") && !allowed.contains(name))
                .map(|name| format!("crates/{folder} must not depend on {name}")),
        );
    }
    for path in sources(root)? {
        let file = root.join(&path);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        breaches.extend(source_breaches(&path, &text));
    }
    if !breaches.is_empty() {
        bail!("the structure is broken:\n  {}", breaches.join("\n  "));
    }
    Ok(())
}

/// Names in the `[dependencies]` table.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', '=', ' ']).next())
        .filter(|name| !name.is_empty())
}

/// Rust files that git knows or would add.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root)
        .output()
        .context("cannot start git, which lists the source files")?;
    if !output.status.success() {
        bail!("git cannot list the source files; run this in a checkout");
    }
    Ok(String::from_utf8(output.stdout)?
        .lines()
        .map(PathBuf::from)
        .filter(|path| root.join(path).exists())
        .collect())
}

fn source_breaches(path: &Path, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let lines = text.lines().count();
    if lines > MOST_LINES {
        breaches.push(format!("{} has {lines} lines, more than {MOST_LINES}", path.display()));
    }
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    let crate_root = matches!(parts.as_slice(), ["crates", _, "src", "lib.rs" | "main.rs"]);
    if crate_root && !path.starts_with("crates/kernels") && !text.contains("#![forbid(unsafe_code)]") {
        breaches.push(format!("{} must forbid unsafe code", path.display()));
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::{dependencies, source_breaches};
    use std::path::Path;

    #[test]
    fn only_the_dependency_table_counts() {
        let manifest =
            "[dependencies]\ninertiakv.workspace = true\nserde = \"1\"\n\n[dev-dependencies]\ninertiakv-cli = \"1\"\n";
        assert_eq!(dependencies(manifest).collect::<Vec<_>>(), ["inertiakv", "serde"]);
    }

    #[test]
    fn a_crate_root_without_forbid_is_a_breach() {
        assert_eq!(source_breaches(Path::new("crates/policy/src/lib.rs"), "").len(), 1);
        assert!(source_breaches(Path::new("crates/kernels/src/lib.rs"), "").is_empty());
        assert_eq!(source_breaches(Path::new("a.rs"), &"\n".repeat(1000)).len(), 1);
    }
}
