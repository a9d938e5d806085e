//! What a reader has to know about where and when it was measured.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// The machine and the moment.
#[derive(Serialize)]
pub(super) struct Machine {
    date: String,
    processor: String,
    cores: usize,
    /// The flags that the kernels of either side can use.
    flags: Vec<String>,
    memory_bytes: Option<u64>,
    /// Of the last 1, 5 and 15 minutes, before anything was measured.
    load_average: String,
    /// Of this checkout.
    commit: String,
}

impl Machine {
    /// A look at the machine; what it does not tell is `unknown`.
    pub(super) fn look() -> Self {
        let unknown = || "unknown".to_owned();
        Self {
            date: said_by("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_else(unknown),
            processor: cpuinfo("model name").unwrap_or_else(unknown),
            cores: cores(),
            flags: processor_flags().into_iter().filter(|flag| matters(flag)).collect(),
            memory_bytes: memory_bytes(),
            load_average: load_average().unwrap_or_else(unknown),
            commit: commit().unwrap_or_else(unknown),
        }
    }

    /// Lines for people.
    pub(super) fn lines(&self) -> String {
        let memory = self.memory_bytes.map_or_else(String::new, |bytes| {
            format!(", {:.1} GiB", bytes as f64 / (1_u64 << 30) as f64)
        });
        format!(
            "date       {}\nmachine    {}, {} cores{memory}\nflags      {}\nload       {}\ncommit     {}\n",
            self.date,
            self.processor,
            self.cores,
            self.flags.join(" "),
            self.load_average,
            self.commit
        )
    }
}

/// Cores that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Instruction sets by the names of /proc/cpuinfo; empty where there is none.
pub(super) fn processor_flags() -> Vec<String> {
    cpuinfo("flags").map_or_else(Vec::new, |flags| flags.split_whitespace().map(str::to_owned).collect())
}

/// Load of the last 1, 5 and 15 minutes.
pub(super) fn load_average() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

fn matters(flag: &str) -> bool {
    flag.starts_with("avx") || flag.starts_with("amx") || matches!(flag, "fma" | "f16c" | "bmi2")
}

/// The value of the first processor.
fn cpuinfo(key: &str) -> Option<String> {
    value(&fs::read_to_string("/proc/cpuinfo").ok()?, key)
}

fn memory_bytes() -> Option<u64> {
    let total = value(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")?;
    Some(total.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The value of a `key : value` line.
fn value(text: &str, key: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
}

fn commit() -> Option<String> {
    let commit = said_by("git", &["rev-parse", "--short", "HEAD"])?;
    let changes = said_by("git", &["status", "--porcelain"])?;
    Some(if changes.is_empty() {
        commit
    } else {
        format!("{commit} with changes")
    })
}

fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{matters, value};

    #[test]
    fn values_of_the_first_processor_are_read() {
        let text = "processor\t: 0\nmodel name\t: A: fast one\nflags\t\t: fma avx2\n\nmodel name\t: B\n";
        assert_eq!(value(text, "model name").as_deref(), Some("A: fast one"));
        assert_eq!(value(text, "flags").as_deref(), Some("fma avx2"));
        assert_eq!(value(text, "cache"), None);
    }

    #[test]
    fn only_flags_of_the_kernels_are_shown() {
        let flags = ["sse2", "avx512vbmi", "amx_int8", "fma", "ht"];
        assert_eq!(flags.map(matters), [false, true, true, true, false]);
    }
}
