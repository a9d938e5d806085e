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
    pub(super) sent: Instant,
    /// When each token came, at least one.
    pub(super) tokens: Vec<Instant>,
    /// The report on the cache of its last chunk.
    pub(super) kv: Value,
}

impl Streamed {
    pub(super) fn first_token(&self) -> Duration {
        self.tokens[0] - self.sent
    }

    pub(super) fn between_tokens(&self) -> impl Iterator<Item = Duration> {
        self.tokens.windows(2).map(|pair| pair[1] - pair[0])
    }
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

/// The metrics of one moment.
pub(super) struct Metrics(String);

impl Metrics {
    pub(super) fn of(address: &str) -> Result<Self> {
        Ok(Self(fetch(address, "GET", "/metrics", "")?.1))
    }

    /// The number of a metric, summed over those of its labels that contain a text.
    pub(super) fn sum(&self, name: &str, label: &str) -> f64 {
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(name));
        let numbers = lines.filter_map(|rest| {
            let (labels, number) = rest.rsplit_once(' ')?;
            labels.contains(label).then(|| number.parse::<f64>().ok())?
        });
        // A sum over nothing is -0.
        numbers.sum::<f64>() + 0.0
    }
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
        let mut tokens = Vec::new();
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
            match event["choices"][0].get("kv") {
                Some(end) => kv = end.clone(),
                None => tokens.push(Instant::now()),
            }
        }
        if tokens.is_empty() {
            bail!("the stream had no token");
        }
        Ok(Streamed {
            sent: self.start,
            tokens,
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

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn metrics_are_summed_over_labels() {
        let text = "# HELP a_total A.\na_total{m=\"x\",o=\"bad\"} 2\na_total{m=\"y\",o=\"bad\"} 3\na_total{o=\"good\"} 9\nb 1.5\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.sum("a_total", ""), 14.0);
        assert_eq!(metrics.sum("a_total", "o=\"bad\""), 5.0);
        assert_eq!((metrics.sum("b", ""), metrics.sum("c", "")), (1.5, 0.0));
    }
}
