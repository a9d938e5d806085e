//! How many instructions does each hot kernel take, and is that more than it was?
//!
//! Counts do not depend on what else the machine does, so they show a regression where times cannot. They are taken
//! with valgrind, which knows AVX2 and not AVX-512, from `crates/kernels/benches/instructions.rs`, and compared with
//! the file beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::cargo::{build_release, target_directory, workspace_root};
use crate::table::{grouped, table};

/// Counts as they were committed.
const COMMITTED: &str = "crates/kernels/benches/instructions.json";

/// The function of the harness that is counted, as valgrind prints its name.
const MEASURED: &str = "instructions::measured";

/// The widest set that valgrind runs.
const INSTRUCTION_SET: &str = "avx2";

/// A kernel may take so many percent more than was committed: compilers differ a little.
const TOLERANCE: f64 = 10.0;

/// What the committed file holds.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Counts {
    instruction_set: String,
    instructions: BTreeMap<String, u64>,
}

/// Counts, prints and compares; with `bless` the committed file is written anew.
pub(crate) fn run(bless: bool) -> Result<()> {
    if let Some(reason) = obstacle() {
        ensure!(!bless, "nothing can be counted here: {reason}");
        println!("skipped: {reason}");
        return Ok(());
    }
    let harness = build_release(
        "instructions",
        &["--package", "inertiakv-kernels", "--bench", "instructions"],
    )?;
    let folder = target_directory()?.join("instructions");
    let counts = count(&harness, &folder)?;
    if counts.instruction_set != INSTRUCTION_SET {
        ensure!(
            !bless,
            "nothing can be counted here: this processor has no {INSTRUCTION_SET}"
        );
        println!("skipped: this processor has no {INSTRUCTION_SET}, for which the counts were committed");
        return Ok(());
    }
    let file = workspace_root()?.join(COMMITTED);
    let committed = if bless && !file.exists() {
        None
    } else {
        Some(read(&file)?)
    };
    let before = committed.map_or_else(BTreeMap::new, |counts| counts.instructions);
    print!("{}", comparison(&counts.instructions, &before));
    if bless {
        let text = serde_json::to_string_pretty(&counts)? + "\n";
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("written to {COMMITTED}");
        return Ok(());
    }
    let breaches = breaches(&counts.instructions, &before);
    if !breaches.is_empty() {
        bail!(
            "instruction counts are not what was committed:\n  {}\nif that is meant, run `cargo xtask instructions \
             --bless` and commit {COMMITTED}",
            breaches.join("\n  ")
        );
    }
    Ok(())
}

/// Why nothing can be counted here, if so.
fn obstacle() -> Option<&'static str> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the counts are those of x86-64, and this is another architecture");
    }
    let valgrind = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !valgrind.is_ok_and(|status| status.success()) {
        return Some("valgrind, which counts the instructions, is not installed");
    }
    None
}

/// Runs the harness under valgrind, which writes one numbered file each time the measured function returns.
fn count(harness: &Path, folder: &Path) -> Result<Counts> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--quiet"])
        .arg(format!("--toggle-collect={MEASURED}"))
        .arg(format!("--dump-after={MEASURED}"))
        .arg(format!("--callgrind-out-file={}", folder.join("out").display()))
        .arg(harness)
        .env("INERTIAKV_ISA", INSTRUCTION_SET)
        .output()
        .context("cannot start valgrind")?;
    ensure!(
        output.status.success(),
        "the kernels failed under valgrind:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().map(str::to_owned);
    let instruction_set = lines
        .next()
        .context("the harness did not say which instructions it uses")?;
    let mut instructions = BTreeMap::new();
    for (index, name) in lines.enumerate() {
        let file = folder.join(format!("out.{}", index + 1));
        let profile = fs::read_to_string(&file)
            .with_context(|| format!("valgrind counted nothing for `{name}`: `{MEASURED}` may have been renamed"))?;
        let total = total(&profile).with_context(|| format!("{} has no total", file.display()))?;
        ensure!(total > 0, "valgrind counted nothing for `{name}`");
        ensure!(
            instructions.insert(name.clone(), total).is_none(),
            "two kernels are named `{name}`"
        );
    }
    Ok(Counts {
        instruction_set,
        instructions,
    })
}

/// Instructions in a profile of callgrind.
fn total(profile: &str) -> Option<u64> {
    profile
        .lines()
        .find_map(|line| line.strip_prefix("summary:").or_else(|| line.strip_prefix("totals:")))
        .and_then(|count| count.trim().parse().ok())
}

fn read(file: &Path) -> Result<Counts> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}; `--bless` writes it", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is damaged; `--bless` writes it anew", file.display()))
}

fn comparison(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> String {
    let rows: Vec<Vec<String>> = now
        .iter()
        .map(|(name, &count)| {
            let committed = before.get(name);
            vec![
                name.clone(),
                grouped(count),
                committed.map_or_else(|| "-".to_owned(), |&committed| grouped(committed)),
                committed.map_or_else(
                    || "new".to_owned(),
                    |&committed| format!("{:+.2} %", change(count, committed)),
                ),
            ]
        })
        .collect();
    table(&["kernel", "instructions", "committed", "change"], &rows, &[1, 2, 3])
}

/// What keeps the counts from being accepted.
fn breaches(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> Vec<String> {
    let changed = now.iter().filter_map(|(name, &count)| match before.get(name) {
        None => Some(format!("{name} is new")),
        Some(&committed) => {
            let change = change(count, committed);
            (change > TOLERANCE).then(|| format!("{name} takes {change:.1} % more, above {TOLERANCE} %"))
        }
    });
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    changed.chain(gone.map(|name| format!("{name} is gone"))).collect()
}

/// Percent that `count` lies above `committed`.
fn change(count: u64, committed: u64) -> f64 {
    (count as f64 / committed as f64 - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::{breaches, comparison, total};
    use std::collections::BTreeMap;

    fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn the_total_of_a_profile_is_read() {
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 1234\n\nfn=(1) x\n"), Some(1234));
        assert_eq!(total("version: 1\n"), None);
    }

    #[test]
    fn more_than_the_tolerance_new_and_gone_are_breaches() {
        let before = counts(&[("same", 1000), ("slower", 1000), ("gone", 5)]);
        assert_eq!(
            breaches(&counts(&[("same", 1099), ("slower", 990), ("gone", 1)]), &before),
            [""; 0]
        );
        let found = breaches(&counts(&[("same", 1000), ("slower", 1101), ("new", 7)]), &before);
        assert_eq!(
            found,
            ["new is new", "slower takes 10.1 % more, above 10 %", "gone is gone"]
        );
    }

    #[test]
    fn the_table_shows_the_change() {
        let text = comparison(&counts(&[("gemv", 1010), ("new", 7)]), &counts(&[("gemv", 1000)]));
        assert!(text.contains("gemv           1,010      1,000  +1.00 %"), "{text}");
        assert!(text.ends_with("new                7          -      new\n"), "{text}");
    }
}
