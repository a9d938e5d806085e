//! As much HTTP as a load generator needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A silence so long is a failure.
const PATIENCE: Duration = Duration::from_mins(30);

/// A request that has been sent.
pub(super) struct Sent {
    pub(super) stream: BufReader<TcpStream>,
    start: Instant,
}

/// What a stream brought.
pub(super) struct Streamed {
    pub(super) first_token: Duration,
    pub(super) between_tokens: Vec<Duration>,
    /// The report on the cache of its last chunk.
    pub(super) kv: Value,
}

pub(super) fn send(address: &str, method: &str, path: &str, body: &str) -> Result<Sent> {
    let mut stream = TcpStream::connect(address).context("the server does not listen")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    Ok(Sent {
        stream: BufReader::new(stream),
        start: Instant::now(),
    })
}

/// Status and body of a request that is not streamed.
pub(super) fn fetch(address: &str, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut sent = send(address, method, path, body)?;
    let status = sent.head()?;
    let mut body = String::new();
    sent.stream.read_to_string(&mut body)?;
    Ok((status, body))
}

/// The number of a metric, summed over its labels.
pub(super) fn metric(address: &str, name: &str) -> Result<f64> {
    let (_, text) = fetch(address, "GET", "/metrics", "")?;
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let numbers = lines.filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(numbers.sum())
}

impl Sent {
    /// Reads past the head of the response and returns its status.
    pub(super) fn head(&mut self) -> Result<u16> {
        let first = self.line()?;
        while !self.line()?.is_empty() {}
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.with_context(|| format!("`{first}` is not HTTP"))
    }

    /// Reads a stream of events to its end.
    pub(super) fn streamed(mut self) -> Result<Streamed> {
        let status = self.head()?;
        if status != 200 {
            let mut body = String::new();
            self.stream.read_to_string(&mut body)?;
            bail!("status {status}: {body}");
        }
        let (mut first_token, mut last) = (None, self.start);
        let mut between_tokens = Vec::new();
        let mut kv = Value::Null;
        loop {
            let line = self.line()?;
            let Some(data) = line.strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                break;
            }
            let event: Value = serde_json::from_str(data)?;
            if let Some(error) = event.get("error") {
                bail!("the stream failed: {error}");
            }
            let now = Instant::now();
            if let Some(end) = event["choices"][0].get("kv") {
                kv = end.clone();
            } else if first_token.is_none() {
                first_token = Some(now - self.start);
            } else {
                between_tokens.push(now - last);
            }
            last = now;
        }
        Ok(Streamed {
            first_token: first_token.context("the stream had no token")?,
            between_tokens,
            kv,
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the connection ended too early");
        }
        Ok(line.trim_end().to_owned())
    }
}
