//! A server of this checkout, from its start to its end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};

use super::options::Options;
use crate::cargo::build_release;

pub(super) struct Server {
    child: Child,
    pub(super) address: String,
    /// What it says on standard error.
    log: Option<JoinHandle<String>>,
}

impl Server {
    pub(super) fn start(options: &Options, arguments: &[&str]) -> Result<Self> {
        let program = match &options.inertiakv {
            Some(path) => path.clone(),
            None => build_release("inertiakv", &["--package", "inertiakv-cli"])?,
        };
        let mut command = Command::new(&program);
        command
            .args(["serve", "--port", "0", "--model", &options.model])
            .args(["--kv-memory", &format!("{}MiB", options.kv_mebibytes)])
            .args(["--prefill-chunk", &options.prefill_chunk.to_string()])
            .args(arguments);
        if let Some(threads) = options.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut stderr = child.stderr.take().context("stderr is piped")?;
        let log = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before an error is still worth showing.
            let _ = stderr.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("stdout is piped")?).read_line(&mut line)?;
        let address = line
            .split_once("http://")
            .and_then(|(_, rest)| rest.split_whitespace().next());
        let Some(address) = address else {
            let _ = child.wait();
            bail!("the server did not start: {}", log.join().unwrap_or_default());
        };
        Ok(Self {
            address: address.to_owned(),
            child,
            log: Some(log),
        })
    }

    /// Resident bytes now; `None` where the system does not tell.
    pub(super) fn resident(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    }

    /// Stops it as a person would, and returns its log.
    pub(super) fn stop(mut self) -> Result<String> {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status();
        if !asked.is_ok_and(|status| status.success()) {
            self.child.kill().context("the server cannot be stopped")?;
        }
        let status = self.child.wait()?;
        let log = self.log.take().and_then(|log| log.join().ok()).unwrap_or_default();
        if !status.success() || log.contains("panicked") {
            bail!("the server did not end well ({status}): {log}");
        }
        Ok(log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already unless something failed.
        let _ = self.child.kill();
    }
}
