//! Our side: `inertiakv bench`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::process::{finish, succeed};
use crate::cargo::build_release;

/// The command, built.
pub(super) struct Inertiakv {
    program: PathBuf,
    threads: usize,
}

/// What one process of `inertiakv bench` measured.
pub(super) struct Bench {
    /// One per method, in the order asked for.
    pub(super) rows: Vec<Row>,
    pub(super) peak_rss_bytes: Option<u64>,
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

    /// Reads a prompt of `context` tokens and decodes `tokens` more under each method.
    pub(super) fn bench(&self, model: &Path, context: usize, methods: &[&str], tokens: usize) -> Result<Bench> {
        let finished = succeed(
            Command::new(&self.program)
                .arg("bench")
                .arg("-m")
                .arg(model)
                .args(["--contexts", &context.to_string()])
                .args(["--methods", &methods.join(";")])
                .args(["--tokens", &tokens.to_string()])
                .args(["--rounds", "1"])
                .args(["--threads", &self.threads.to_string()])
                .arg("--json"),
        )?;
        Ok(Bench {
            rows: rows(&finished.stdout, context, methods, self.threads)?,
            peak_rss_bytes: finished.peak_rss_bytes,
        })
    }
}

/// The rows of the output, after a look at whether they are what was asked for.
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
    // A method may be printed in a shorter form than it was given in, but under the same name.
    let name = |method: &str| method.split(':').next().map(str::to_owned);
    let as_asked = report.rows.len() == methods.len()
        && report
            .rows
            .iter()
            .zip(methods)
            .all(|(row, method)| row.context == context && name(&row.method) == name(method));
    ensure!(
        as_asked,
        "`inertiakv bench` answered {:?} when asked for {methods:?} at {context}",
        report.rows
    );
    Ok(report.rows)
}

#[cfg(test)]
mod tests {
    use super::rows;

    const SAMPLE: &str = r#"{"model": "smollm2-135m", "threads": 2, "rows": [
        {"context": 4096, "method": "inertia", "prefill_tokens_per_second": 1200.5, "decode_tokens_per_second": 110.25,
         "share": {"matmul": 0.6, "attention": 0.3, "scoring": 0.02, "eviction": 0.01, "other": 0.07},
         "retained": 409, "kv_bytes": 1000, "peak_rss_bytes": 300000000, "later": true},
        {"context": 4096, "method": "full", "prefill_tokens_per_second": 1201, "decode_tokens_per_second": 60,
         "share": {"matmul": 0.6, "attention": 0.4, "scoring": 0, "eviction": 0, "other": 0}, "retained": 4128,
         "kv_bytes": 1000, "peak_rss_bytes": null}]}"#;

    #[test]
    fn rows_come_in_the_order_of_the_methods() {
        let rows = rows(SAMPLE, 4096, &["inertia:ratio=0.9", "full"], 2).unwrap();
        assert_eq!(rows[0].decode_tokens_per_second, 110.25);
        assert_eq!(rows[1].prefill_tokens_per_second, 1201.0);
    }

    #[test]
    fn another_answer_than_asked_for_is_an_error() {
        assert!(rows(SAMPLE, 4096, &["full", "inertia"], 2).is_err());
        assert!(rows(SAMPLE, 4096, &["inertia"], 2).is_err());
        assert!(rows(SAMPLE, 512, &["inertia", "full"], 2).is_err());
        assert!(rows(SAMPLE, 4096, &["inertia", "full"], 4).is_err());
        assert!(rows("", 4096, &["full"], 2).is_err());
    }
}
