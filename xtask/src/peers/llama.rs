//! Their side: `llama-bench` of llama.cpp.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::process::{Finished, finish, succeed};
use super::source::{self, Build};

/// A `llama-bench` that ran.
pub(super) struct Llama {
    program: PathBuf,
    threads: usize,
    pub(super) about: About,
}

/// Which one it is.
#[derive(Serialize)]
pub(super) struct About {
    pub(super) found: &'static str,
    /// Commit and number, as far as the build knows them.
    pub(super) build: String,
    /// Options of its build; empty if the build is not beside it.
    pub(super) options: Vec<String>,
    /// What a reader must know about the build.
    pub(super) remark: Option<&'static str>,
}

/// What one process of `llama-bench` measured.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub(super) tokens_per_second: f64,
    pub(super) peak_rss_bytes: Option<u64>,
}

/// One test of it.
#[derive(Clone, Copy)]
pub(super) struct Test {
    pub(super) prompt: usize,
    pub(super) generated: usize,
    pub(super) depth: usize,
}

/// Part of an entry of its JSON output.
#[derive(Debug, Deserialize)]
struct Entry {
    build_commit: String,
    build_number: u64,
    backends: String,
    n_threads: usize,
    type_k: String,
    type_v: String,
    avg_ts: f64,
}

const NOT_NATIVE: &str = "not a native build: that one died of a signal here, as code for AMX does on some virtual \
                          machines; built instead for everything this processor has but AMX";

impl Llama {
    /// The given one, that of the environment, an earlier build, the one on the path, or a new build; it must run
    /// all `models`, since each has types of weights of its own.
    pub(super) fn find(given: Option<&Path>, threads: usize, models: &[&Path]) -> Result<Self> {
        let from_environment = std::env::var_os("LLAMA_BENCH").map(PathBuf::from);
        let chosen = given
            .map(|path| (path.to_owned(), "--llama-bench"))
            .or_else(|| from_environment.map(|path| (path, "LLAMA_BENCH")));
        if let Some((path, found)) = chosen {
            return Self::checked(path, found, None, threads, models)
                .with_context(|| format!("the llama-bench given by {found} cannot be used"));
        }
        if let Some(built) = Self::built(&[Build::WithoutAmx, Build::Native], threads, models)? {
            return Ok(built);
        }
        if let Some(path) = on_path("llama-bench") {
            return Self::checked(path, "PATH", None, threads, models).context(
                "the llama-bench on the path cannot be used; give another with --llama-bench or take it off the path",
            );
        }
        source::build(Build::Native)?;
        if let Some(built) = Self::built(&[Build::Native], threads, models)? {
            return Ok(built);
        }
        eprintln!("the native build of llama.cpp dies of a signal here; building one without AMX");
        source::build(Build::WithoutAmx)?;
        Self::built(&[Build::WithoutAmx], threads, models)?
            .context("llama-bench dies of a signal here however it is built; give a working one with --llama-bench")
    }

    /// The first of the own builds that is there and not ended by a signal.
    fn built(builds: &[Build], threads: usize, models: &[&Path]) -> Result<Option<Self>> {
        for &build in builds {
            let path = build.program()?;
            let remark = (build == Build::WithoutAmx).then_some(NOT_NATIVE);
            if path.exists() && !smoke(&path, threads, models)?.died_of_a_signal() {
                return Self::checked(path, build.description(), remark, threads, models).map(Some);
            }
        }
        Ok(None)
    }

    /// One that passed a short test on the processor alone.
    fn checked(
        program: PathBuf,
        found: &'static str,
        remark: Option<&'static str>,
        threads: usize,
        models: &[&Path],
    ) -> Result<Self> {
        let finished = smoke(&program, threads, models)?;
        ensure!(
            finished.status.success(),
            "{} failed in a short test ({}): {}",
            program.display(),
            finished.status,
            finished.stderr.trim_end()
        );
        let entry = entry(&finished.stdout, threads)?;
        let build = format!("{} ({})", entry.build_commit, entry.build_number);
        let options = options_beside(&program);
        let about = About {
            found,
            build,
            options,
            remark,
        };
        Ok(Self {
            program,
            threads,
            about,
        })
    }

    /// Runs one test once.
    pub(super) fn bench(&self, model: &Path, test: Test, flash_attention: bool) -> Result<Measured> {
        let finished = succeed(&mut command(&self.program, self.threads, model, test, flash_attention))?;
        Ok(Measured {
            tokens_per_second: entry(&finished.stdout, self.threads)?.avg_ts,
            peak_rss_bytes: finished.peak_rss_bytes,
        })
    }
}

/// A short test of each model up to the first that fails, and how the last of them ended.
fn smoke(program: &Path, threads: usize, models: &[&Path]) -> Result<Finished> {
    // Many rows and one row, since they run different code.
    let tests = [(64, 0, false), (0, 2, true)].map(|(prompt, generated, flash_attention)| {
        let test = Test {
            prompt,
            generated,
            depth: 0,
        };
        (test, flash_attention)
    });
    let mut last = None;
    for model in models {
        for (test, flash_attention) in tests {
            let finished = finish(&mut command(program, threads, model, test, flash_attention))?;
            if !finished.status.success() {
                return Ok(finished);
            }
            last = Some(finished);
        }
    }
    last.context("there is a model to test with")
}

fn command(program: &Path, threads: usize, model: &Path, test: Test, flash_attention: bool) -> Command {
    let mut command = Command::new(program);
    command
        .arg("-m")
        .arg(model)
        .args(["-t", &threads.to_string()])
        .args(["-p", &test.prompt.to_string()])
        .args(["-n", &test.generated.to_string()])
        .args(["-d", &test.depth.to_string()])
        .args(["-fa", if flash_attention { "1" } else { "0" }])
        .args(["-ctk", "f16", "-ctv", "f16", "-ngl", "0", "-r", "1", "-o", "json"]);
    // A build that was moved no longer finds its libraries, which lie beside it.
    if let Some(folder) = program.parent() {
        let mut folders = OsString::from(folder);
        if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
            folders.push(":");
            folders.push(others);
        }
        command.env("LD_LIBRARY_PATH", folders);
    }
    command
}

/// The one entry of the output, after a look at whether the comparison is fair.
fn entry(json: &str, threads: usize) -> Result<Entry> {
    let mut entries: Vec<Entry> =
        serde_json::from_str(json).context("the output of llama-bench is not understood; use a newer llama.cpp")?;
    let (Some(entry), true) = (entries.pop(), entries.is_empty()) else {
        bail!("llama-bench answered with another number of entries than one");
    };
    ensure!(
        entry.n_threads == threads && entry.type_k == "f16" && entry.type_v == "f16",
        "llama-bench did not do what it was asked for: {entry:?}"
    );
    ensure!(
        entry
            .backends
            .split(',')
            .all(|backend| matches!(backend, "CPU" | "BLAS")),
        "llama-bench computes on {}; give one that was built for the processor alone with --llama-bench",
        entry.backends
    );
    Ok(entry)
}

/// Options of the build whose folder the program lies in.
fn options_beside(program: &Path) -> Vec<String> {
    let cache = program
        .parent()
        .and_then(Path::parent)
        .map(|folder| folder.join("CMakeCache.txt"));
    cache
        .and_then(|file| std::fs::read_to_string(file).ok())
        .map_or_else(Vec::new, |text| options(&text))
}

/// What of a cmake cache matters to speed: `NAME=VALUE`. A native build finds out about the processor itself, and what
/// the cache says of it then means nothing.
fn options(cache: &str) -> Vec<String> {
    const ALWAYS: [&str; 4] = ["CMAKE_BUILD_TYPE", "GGML_NATIVE", "GGML_OPENMP", "GGML_LLAMAFILE"];
    const PROCESSOR: [&str; 6] = ["GGML_AVX", "GGML_FMA", "GGML_F16C", "GGML_BMI2", "GGML_AMX", "GGML_SSE"];
    let pairs: Vec<(&str, &str)> = cache
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter_map(|(name, value)| Some((name.split_once(':')?.0, value)))
        .collect();
    let native = pairs.contains(&("GGML_NATIVE", "ON"));
    pairs
        .iter()
        .filter(|(name, value)| {
            let processor = PROCESSOR.iter().any(|prefix| name.starts_with(prefix));
            ALWAYS.contains(name) || (!native && processor && *value == "ON")
        })
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::{entry, options};

    const SAMPLE: &str = r#"[
  {
    "build_commit": "unknown",
    "build_number": 0,
    "cpu_info": "A processor",
    "gpu_info": "",
    "backends": "CPU",
    "n_threads": 2,
    "type_k": "f16",
    "type_v": "f16",
    "flash_attn": 1,
    "n_prompt": 512,
    "avg_ts": 456.5,
    "samples_ts": [ 456.5 ]
  }
]"#;

    #[test]
    fn the_speed_is_read() {
        assert_eq!(entry(SAMPLE, 2).unwrap().avg_ts, 456.5);
    }

    #[test]
    fn an_unfair_comparison_is_refused() {
        assert!(entry(SAMPLE, 4).is_err());
        assert!(entry(&SAMPLE.replacen("f16", "q8_0", 1), 2).is_err());
        let message = entry(&SAMPLE.replace("\"CPU\"", "\"CUDA\""), 2)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("CUDA") && message.contains("--llama-bench"),
            "{message}"
        );
        assert!(entry("[]", 2).is_err());
    }

    #[test]
    fn the_options_that_matter_are_shown() {
        let cache = "//comment\nCMAKE_BUILD_TYPE:STRING=Release\nGGML_AVX2:BOOL=ON\nGGML_AMX_INT8:BOOL=OFF\n\
                     GGML_CUDA:BOOL=OFF\nGGML_NATIVE:BOOL=OFF\n";
        assert_eq!(
            options(cache),
            ["CMAKE_BUILD_TYPE=Release", "GGML_AVX2=ON", "GGML_NATIVE=OFF"]
        );
        let native = cache.replace("GGML_NATIVE:BOOL=OFF", "GGML_NATIVE:BOOL=ON");
        assert_eq!(options(&native), ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON"]);
    }
}
