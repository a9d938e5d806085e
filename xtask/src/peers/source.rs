//! Building `llama-bench` from the sources that a Python package carries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::machine;
use crate::cargo::target_directory;

/// The package and its version; its source distribution holds llama.cpp whole.
const PACKAGE: &str = "llama-cpp-python";
const VERSION: &str = "0.3.36";

/// What the build needs that Python can bring along. With them in place pip does not compile them from source.
const TOOLS: [&str; 3] = ["cmake", "ninja", "scikit-build-core"];

/// Flags of /proc/cpuinfo and the options of llama.cpp that use them: all but AMX.
const PROCESSOR_OPTIONS: [(&str, &str); 11] = [
    ("sse4_2", "GGML_SSE42"),
    ("avx", "GGML_AVX"),
    ("avx2", "GGML_AVX2"),
    ("fma", "GGML_FMA"),
    ("f16c", "GGML_F16C"),
    ("bmi2", "GGML_BMI2"),
    ("avx_vnni", "GGML_AVX_VNNI"),
    ("avx512f", "GGML_AVX512"),
    ("avx512vbmi", "GGML_AVX512_VBMI"),
    ("avx512_vnni", "GGML_AVX512_VNNI"),
    ("avx512_bf16", "GGML_AVX512_BF16"),
];

/// The two ways it is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Build {
    /// For this processor, as the compiler sees it.
    Native,
    /// For this processor as the kernel sees it, without AMX.
    WithoutAmx,
}

impl Build {
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Native => "own native build of llama.cpp as in llama-cpp-python 0.3.36",
            Self::WithoutAmx => "own build without AMX of llama.cpp as in llama-cpp-python 0.3.36",
        }
    }

    /// Where it is once it is built.
    pub(super) fn program(self) -> Result<PathBuf> {
        Ok(self.folder()?.join("bin").join("llama-bench"))
    }

    fn folder(self) -> Result<PathBuf> {
        Ok(folder()?.join(match self {
            Self::Native => "llama.cpp-native",
            Self::WithoutAmx => "llama.cpp-without-amx",
        }))
    }
}

/// Everything that this makes.
fn folder() -> Result<PathBuf> {
    Ok(target_directory()?.join("peers"))
}

/// Fetches tools and sources where they are missing, and builds.
pub(super) fn build(build: Build) -> Result<()> {
    let folder = folder()?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let tools = tools(&folder)?;
    let source = source(&folder, &tools)?;
    let target = build.folder()?;
    eprintln!("building llama-bench, which takes several minutes");
    let mut configure = tools.command("cmake")?;
    configure
        .arg("-S")
        .arg(&source)
        .arg("-B")
        .arg(&target)
        .args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"])
        .args([
            "-DLLAMA_CURL=OFF",
            "-DLLAMA_OPENSSL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF",
            "-DLLAMA_BUILD_EXAMPLES=OFF",
        ])
        .args(["-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF"])
        .args(options(build, &machine::processor_flags()));
    run(
        &mut configure,
        "cmake could not configure llama.cpp: a C++ compiler is needed",
    )?;
    let mut compile = tools.command("cmake")?;
    compile.arg("--build").arg(&target).args(["--target", "llama-bench"]);
    run(
        &mut compile,
        "llama.cpp did not compile; give a llama-bench of your own with --llama-bench",
    )?;
    let program = build.program()?;
    ensure!(program.exists(), "the build made no {}", program.display());
    Ok(())
}

/// Options of cmake that choose the instruction sets.
fn options(build: Build, processor_flags: &[String]) -> Vec<String> {
    match build {
        Build::Native => vec!["-DGGML_NATIVE=ON".to_owned()],
        // Some of these are on unless told otherwise, so each is told.
        Build::WithoutAmx => std::iter::once("-DGGML_NATIVE=OFF".to_owned())
            .chain(PROCESSOR_OPTIONS.iter().map(|(flag, option)| {
                let has = processor_flags.iter().any(|known| known == flag);
                format!("-D{option}={}", if has { "ON" } else { "OFF" })
            }))
            .collect(),
    }
}

/// A Python environment with the build tools.
struct Tools {
    programs: PathBuf,
}

impl Tools {
    /// A program of the environment, which finds the others.
    fn command(&self, program: &str) -> Result<Command> {
        let mut folders = vec![self.programs.clone()];
        folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut command = Command::new(self.programs.join(program));
        command.env(
            "PATH",
            std::env::join_paths(folders).context("a folder of PATH has a colon in its name")?,
        );
        Ok(command)
    }
}

fn tools(folder: &Path) -> Result<Tools> {
    let environment = folder.join("python");
    let tools = Tools {
        programs: environment.join("bin"),
    };
    if TOOLS[..2].iter().all(|program| tools.programs.join(program).exists()) {
        return Ok(tools);
    }
    eprintln!("fetching {}", TOOLS.join(", "));
    run(
        Command::new("python3").args(["-m", "venv"]).arg(&environment),
        "python3 could not make an environment; install Python 3 with venv, or give --llama-bench",
    )?;
    run(
        tools
            .command("python")?
            .args(["-m", "pip", "install", "--quiet"])
            .args(TOOLS),
        "pip could not fetch the build tools; check the network, or give --llama-bench",
    )?;
    Ok(tools)
}

/// The folder with the sources of llama.cpp.
fn source(folder: &Path, tools: &Tools) -> Result<PathBuf> {
    let name = format!("{}-{VERSION}", PACKAGE.replace('-', "_"));
    let source = folder.join(&name).join("vendor").join("llama.cpp");
    // The last thing that is unpacked could be anything; a mark is left when all of it was.
    let complete = folder.join(format!("{name}.complete"));
    if complete.exists() {
        return Ok(source);
    }
    eprintln!("fetching the sources of {PACKAGE} {VERSION}");
    run(
        tools
            .command("python")?
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"])
            .args(["--no-binary", PACKAGE, "--dest"])
            .arg(folder)
            .arg(format!("{PACKAGE}=={VERSION}")),
        "pip could not fetch the sources; check the network, or give --llama-bench",
    )?;
    run(
        tools
            .command("python")?
            .args(["-m", "tarfile", "--extract"])
            .arg(folder.join(format!("{name}.tar.gz")))
            .arg(folder),
        "the sources could not be unpacked",
    )?;
    ensure!(
        source.join("CMakeLists.txt").exists(),
        "{} holds no llama.cpp",
        source.display()
    );
    fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(source)
}

/// Runs a step of the build; what it prints goes to stderr, since stdout is for results.
fn run(command: &mut Command, failure: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("cannot start {program}: {failure}"))?;
    if !status.success() {
        bail!("{failure} ({program}: {status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Build, VERSION, options};

    #[test]
    fn every_processor_option_is_said_and_amx_is_not() {
        let flags = ["avx", "avx2", "fma", "amx_int8"].map(str::to_owned);
        let options = options(Build::WithoutAmx, &flags);
        assert_eq!(options[0], "-DGGML_NATIVE=OFF");
        assert!(options.contains(&"-DGGML_AVX2=ON".to_owned()));
        assert!(options.contains(&"-DGGML_AVX512=OFF".to_owned()));
        assert!(!options.iter().any(|option| option.contains("AMX")));
    }

    #[test]
    fn descriptions_name_the_version() {
        assert!(Build::Native.description().ends_with(VERSION));
        assert!(Build::WithoutAmx.description().ends_with(VERSION));
    }
}
