//! `cargo xtask soak`: does a server survive what clients do, with every block back and its memory flat?
//!
//! Requests of all kinds come from several clients at once: short and long ones, shared documents, several answers,
//! clients that leave in the middle or in the prompt, nonsense, half requests, readers that hardly read. The first third
//! warms up; from then on the memory may not grow.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::client::{fetch, metric, send};
use super::options::Options;
use super::process::Server;

/// Clients at once.
const CLIENTS: usize = 10;

/// What the resident memory may grow by after the warm-up: the allocator's noise.
const GROWTH: u64 = 32 << 20;

/// How long the server may take to notice that the last client has gone.
const SETTLE: Duration = Duration::from_mins(1);

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let options = Options::soak().parse("soak", arguments)?;
    // Room in the queue for fewer than there are clients: some are told to come back.
    let server = Server::start(&options, &["--method", "inertia", "--max-queue", "6"])?;
    let start = Instant::now();
    let warm_up = options.requests / 3;
    storm(&options, &server.address, 0..warm_up)?;
    settle(&server.address)?;
    let before = server.resident();
    storm(&options, &server.address, warm_up..options.requests)?;
    settle(&server.address)?;
    let after = server.resident();
    let address = server.address.as_str();
    let used = metric(address, "inertiakv_kv_bytes_used")?;
    let kept = metric(address, "inertiakv_kv_bytes_prefixes")?;
    let peak = metric(address, "inertiakv_kv_bytes_peak")?;
    let failed = metric(
        address,
        "inertiakv_answers_total{method=\"inertia\",outcome=\"failed\"}",
    )?;
    let ended = metric(address, "inertiakv_answers_total")?;
    let cancelled = fetch(address, "GET", "/metrics", "")?.1;
    let cancelled: f64 = cancelled
        .lines()
        .filter(|line| line.starts_with("inertiakv_answers_total") && line.contains("cancelled"))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum();
    let refused = metric(address, "inertiakv_refused_total")?;
    let limit = (options.kv_mebibytes << 20) as f64;
    server.stop()?;
    let growth = after
        .zip(before)
        .map_or(0, |(after, before)| after.saturating_sub(before));
    let report = json!({
        "requests": options.requests,
        "seconds": start.elapsed().as_secs_f64(),
        "answers": ended,
        "cancelled": cancelled,
        "refused": refused,
        "failed": failed,
        "kv_bytes": used,
        "kv_bytes_prefixes": kept,
        "kv_bytes_peak": peak,
        "kv_bytes_limit": limit,
        "resident_bytes_after_warm_up": before,
        "resident_bytes": after,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    if used > kept {
        bail!("{used} bytes of KV cache are in use, but the kept prompts hold only {kept}");
    }
    if peak > limit {
        bail!("{peak} bytes of KV cache were in use, more than {limit}");
    }
    if failed > 0.0 {
        bail!("{failed} answers failed");
    }
    if growth > GROWTH {
        bail!("the memory grew by {growth} bytes");
    }
    Ok(())
}

/// Requests of these numbers from all clients.
fn storm(options: &Options, address: &str, numbers: std::ops::Range<usize>) -> Result<()> {
    let next = AtomicUsize::new(numbers.start);
    thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return Ok(());
                }
                request(options, address, number).with_context(|| format!("request {number}"))?;
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|_| bail!("a client panicked")))
    })
}

/// One request, of the kind that its number says.
fn request(options: &Options, address: &str, number: usize) -> Result<()> {
    let document = "The harbour was quiet and the boats lay still. ".repeat(options.prompt_tokens / 10);
    let tokens = 1 + number * 13 % options.tokens;
    let method = ["inertia", "full", "h2o:tokens=64", "inertia:coupling=per-head"][number / 7 % 4];
    let mut body = json!({
        "prompt": format!("{number} boats"), "max_tokens": tokens, "seed": number, "ignore_eos": true,
        "kv": {"method": method},
    });
    match number % 10 {
        // Short, and long without and with a shared beginning.
        0 | 1 => expect(address, &body, &[200, 503]),
        2 => {
            body["prompt"] = format!("{number} {document}").into();
            expect(address, &body, &[200, 503])
        }
        3 => {
            body["prompt"] = format!("{document} {number}").into();
            body["n"] = 2.into();
            expect(address, &body, &[200, 503])
        }
        // Leaves in the middle of the answer.
        4 => {
            body["stream"] = true.into();
            body["max_tokens"] = 2000.into();
            let mut sent = send(address, "POST", "/v1/completions", &body.to_string())?;
            sent.head()?;
            let mut some = [0; 600];
            // A refusal is shorter than this.
            let _ = sent.stream.read(&mut some)?;
            Ok(())
        }
        // Leaves in the prompt, or in the queue.
        5 => {
            body["prompt"] = format!("{number} {document}").into();
            body["stream"] = (number.is_multiple_of(20)).into();
            let sent = send(address, "POST", "/v1/completions", &body.to_string())?;
            thread::sleep(Duration::from_millis(100 + number as u64 % 7 * 50));
            drop(sent);
            Ok(())
        }
        // Nonsense.
        6 => {
            body["temperature"] = "hot".into();
            expect(address, &body, &[400])
        }
        7 => {
            let (status, _) = fetch(address, "POST", "/v1/chat/completions", "{\"messages\": [")?;
            if status == 400 {
                Ok(())
            } else {
                bail!("half a JSON gave status {status}")
            }
        }
        // Half a request.
        8 => {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{\"pro")?;
            Ok(())
        }
        // Hardly reads.
        _ => {
            body["stream"] = true.into();
            let mut sent = send(address, "POST", "/v1/completions", &body.to_string())?;
            let mut some = [0; 512];
            while sent.stream.read(&mut some)? > 0 {
                thread::sleep(Duration::from_millis(40));
            }
            Ok(())
        }
    }
}

fn expect(address: &str, body: &Value, statuses: &[u16]) -> Result<()> {
    let (status, answer) = fetch(address, "POST", "/v1/completions", &body.to_string())?;
    if statuses.contains(&status) {
        Ok(())
    } else {
        bail!("status {status}: {answer}")
    }
}

/// Waits until nobody waits or runs.
fn settle(address: &str) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < SETTLE {
        let busy = metric(address, "inertiakv_requests_waiting")? + metric(address, "inertiakv_answers_running")?;
        if busy == 0.0 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!(
        "requests were still running {} s after the last client had gone",
        SETTLE.as_secs()
    )
}
