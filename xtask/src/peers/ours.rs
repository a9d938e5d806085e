//! Our side: `inertiakv bench`, and `inertiakv run` for its memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::process::{finish, succeed};
use crate::cargo::{build_release, target_directory};

/// The command, built.
pub(super) struct Inertiakv {
    program: PathBuf,
    threads: usize,
}

/// A row of its output; it has more keys than these.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Row {
    context: usize,
    method: String,
    pub(super) prefill_tokens_per_second: f64,
    pub(super) decode_tokens_per_second: f64,
}

impl Inertiakv {
    /// The given executable, or one built from this checkout.
    pub(super) fn new(given: Option<&Path>, threads: usize) -> Result<Self> {
        let program = match given {
            Some(path) => path.to_owned(),
            None => build_release("inertiakv", &["--package", "inertiakv-cli"])?,
        };
        Ok(Self { program, threads })
    }

    /// The file of a catalog model, fetched if it is not there.
    pub(super) fn model_path(&self, name: &str) -> Result<PathBuf> {
        let path = finish(Command::new(&self.program).args(["models", "path", name]))?;
        let path = if path.status.success() {
            path
        } else {
            eprintln!("fetching {name}");
            succeed(Command::new(&self.program).args(["models", "pull", name]))?;
            succeed(Command::new(&self.program).args(["models", "path", name]))?
        };
        Ok(PathBuf::from(path.stdout.trim_end()))
    }

    /// Reads a prompt of `context` tokens and decodes `tokens` more under each method, `rounds` times; one row per method,
    /// in this order.
    pub(super) fn bench(
        &self,
        model: &Path,
        context: usize,
        methods: &[&str],
        tokens: usize,
        rounds: usize,
    ) -> Result<Vec<Row>> {
        let finished = succeed(
            Command::new(&self.program)
                .arg("bench")
                .arg("-m")
                .arg(model)
                .args(["--contexts", &context.to_string()])
                .args(["--methods", &methods.join(";")])
                .args(["--tokens", &tokens.to_string()])
                .args(["--rounds", &rounds.to_string()])
                .args(["--threads", &self.threads.to_string()])
                .arg("--json"),
        )?;
        rows(&finished.stdout, context, methods, self.threads)
    }

    /// Peak resident bytes of a process that reads a prompt of about `context` tokens and answers with a few. Not of
    /// `bench`, which copies the cache for every method it measures.
    pub(super) fn peak_memory(&self, model: &Path, context: usize, method: &str) -> Result<u64> {
        let prompt = target_directory()?.join("peers").join("prompt.txt");
        let folder = prompt.parent().context("the prompt lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // One token each in every vocabulary compared here.
        fs::write(&prompt, " a".repeat(context)).with_context(|| format!("cannot write {}", prompt.display()))?;
        let finished = succeed(
            Command::new(&self.program)
                .args(["run", "--raw", "--ignore-end", "--max-tokens", "8", "--json"])
                .arg("-m")
                .arg(model)
                .arg("-f")
                .arg(&prompt)
                .args(["--method", method])
                .args(["--threads", &self.threads.to_string()]),
        )?;
        let tokens = prompt_tokens(&finished.stdout)?;
        ensure!(
            tokens.abs_diff(context) <= context / 100,
            "the prompt of {context} words became {tokens} tokens"
        );
        finished
            .peak_rss_bytes
            .context("this system does not tell how much memory a process held")
    }
}

/// The rows of some methods in the output of `bench`, which adds `full` where it is not asked for.
fn rows(json: &str, context: usize, methods: &[&str], threads: usize) -> Result<Vec<Row>> {
    #[derive(Deserialize)]
    struct Report {
        threads: usize,
        rows: Vec<Row>,
    }

    let report: Report = serde_json::from_str(json).context("the output of `inertiakv bench` is not understood")?;
    ensure!(
        report.threads == threads,
        "`inertiakv bench` used {} threads instead of {threads}",
        report.threads
    );
    let row_of = |method: &&str| {
        // A method may be printed in a shorter form than it was given in, but under the same name.
        let is_its_row = |row: &&Row| row.context == context && name(&row.method) == name(method);
        let mut rows = report.rows.iter().filter(is_its_row);
        match (rows.next(), rows.next()) {
            (Some(row), None) => Ok(row.clone()),
            _ => bail!(
                "`inertiakv bench` has not one row for {method} at {context}: {:?}",
                report.rows
            ),
        }
    };
    methods.iter().map(row_of).collect()
}

/// The name that a method starts with.
fn name(method: &str) -> &str {
    method.split(':').next().unwrap_or(method)
}

fn prompt_tokens(json: &str) -> Result<usize> {
    #[derive(Deserialize)]
    struct Answer {
        prompt_tokens: usize,
    }

    let answer: Answer = serde_json::from_str(json).context("the output of `inertiakv run` is not understood")?;
    Ok(answer.prompt_tokens)
}

#[cfg(test)]
mod tests {
    use super::{prompt_tokens, rows};

    const SAMPLE: &str = r#"{"model": "smollm2-135m", "threads": 2, "rows": [
        {"context": 4096, "method": "full", "prefill_tokens_per_second": 1201, "decode_tokens_per_second": 60,
         "share": {"matmul": 0.6, "attention": 0.4, "scoring": 0, "eviction": 0, "other": 0}, "retained": 4128,
         "kv_bytes": 1000, "peak_rss_bytes": null},
        {"context": 4096, "method": "inertia", "prefill_tokens_per_second": 1200.5, "decode_tokens_per_second": 110.25,
         "share": {"matmul": 0.6, "attention": 0.3, "scoring": 0.02, "eviction": 0.01, "other": 0.07},
         "retained": 409, "kv_bytes": 1000, "peak_rss_bytes": 300000000, "later": true}]}"#;

    #[test]
    fn rows_come_in_the_order_of_the_methods() {
        let both = rows(SAMPLE, 4096, &["inertia:ratio=0.9", "full"], 2).unwrap();
        assert_eq!(both[0].decode_tokens_per_second, 110.25);
        assert_eq!(both[1].prefill_tokens_per_second, 1201.0);
        let full = rows(SAMPLE, 4096, &["full"], 2).unwrap();
        assert_eq!(full, both[1..]);
    }

    #[test]
    fn the_length_of_a_prompt_is_read() {
        assert_eq!(prompt_tokens(r#"{"text": "", "prompt_tokens": 4096}"#).unwrap(), 4096);
    }

    #[test]
    fn another_answer_than_asked_for_is_an_error() {
        assert!(rows(SAMPLE, 4096, &["score-free"], 2).is_err());
        assert!(rows(SAMPLE, 512, &["inertia", "full"], 2).is_err());
        assert!(rows(SAMPLE, 4096, &["inertia", "full"], 4).is_err());
        assert!(rows("", 4096, &["full"], 2).is_err());
    }
}
