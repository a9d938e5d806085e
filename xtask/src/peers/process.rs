//! A process run to its end, its memory watched from outside.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How often the memory is looked at. The kernel keeps the peak, so only what is new in the last moment is missed.
const INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// `None` where the system does not tell.
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Finished {
    /// Whether a signal ended it, as an instruction does that the machine does not have.
    pub(super) fn died_of_a_signal(&self) -> bool {
        !self.status.success() && self.status.code().is_none()
    }
}

/// Runs a command and returns what it printed, however it ended.
pub(super) fn finish(command: &mut Command) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let stdout = drain(child.stdout.take().context("stdout is piped")?);
    let stderr = drain(child.stderr.take().context("stderr is piped")?);
    let mut peak_rss_bytes = None;
    let status = loop {
        peak_rss_bytes = peak_rss_bytes.max(peak_of(child.id()));
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {program}"))? {
            break status;
        }
        thread::sleep(INTERVAL);
    };
    Ok(Finished {
        status,
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
        peak_rss_bytes,
    })
}

/// [`finish`] for a command whose failure is an error, shown with the end of what it said.
pub(super) fn succeed(command: &mut Command) -> Result<Finished> {
    let finished = finish(command)?;
    if !finished.status.success() {
        bail!("{}\n{}", failure_of(command, &finished), last_lines(&finished.stderr));
    }
    Ok(finished)
}

fn failure_of(command: &Command, finished: &Finished) -> String {
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let program = command.get_program().to_string_lossy();
    format!("`{program} {}` failed ({})", arguments.join(" "), finished.status)
}

/// The lines in which most programs say what went wrong.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

fn drain(mut stream: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The most resident memory of a running process so far.
fn peak_of(process: u32) -> Option<u64> {
    peak_in(&std::fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::{last_lines, peak_in};

    #[test]
    fn the_peak_is_read_from_the_status_of_a_process() {
        assert_eq!(
            peak_in("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 10 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(peak_in("Name:\tx\n"), None);
    }

    #[test]
    fn the_end_of_a_long_message_is_kept() {
        assert_eq!(last_lines("one\ntwo"), "one\ntwo");
        assert_eq!(last_lines(&"line\n".repeat(20)).lines().count(), 8);
    }
}
