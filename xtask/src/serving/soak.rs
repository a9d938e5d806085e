//! `cargo xtask soak`: does a server survive what clients do, with every block back and its memory flat?
//!
//! Requests of all kinds come from several clients at once: short and long ones, shared documents, several answers,
//! clients that leave in the middle or in the prompt, nonsense, half requests, readers that hardly read. The first third
//! warms up; from then on the memory may not grow.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Metrics, fetch, send};
use super::options::Options;
use super::process::Server;
use crate::table::table;

/// Clients at once.
const CLIENTS: usize = 10;

/// What the resident memory, KV cache aside, may grow by after the warm-up: the allocator's noise.
const GROWTH: i64 = 32 << 20;

/// How long a client that was told to come back stays away.
const PAUSE: Duration = Duration::from_millis(500);

/// How long the server may take to notice that the last client has gone.
const SETTLE: Duration = Duration::from_mins(1);

/// How often each kind of request ended how.
type Endings = BTreeMap<&'static str, BTreeMap<String, usize>>;

#[derive(Serialize)]
struct Report {
    requests: usize,
    seconds: f64,
    endings: Endings,
    answers: f64,
    cancelled: f64,
    failed: f64,
    refused: f64,
    generated_tokens: f64,
    kv_bytes: f64,
    kv_bytes_prefixes: f64,
    kv_bytes_peak: f64,
    kv_bytes_limit: f64,
    /// Without the KV cache; `None` where the system does not tell.
    resident_bytes_after_warm_up: Option<i64>,
    resident_bytes: Option<i64>,
}

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let options = Options::soak().parse("soak", arguments)?;
    // Room in the queue for fewer than there are clients: some are told to come back.
    let server = Server::start(&options, &["--method", &options.methods[0], "--max-queue", "6"])?;
    let start = Instant::now();
    let endings = Mutex::default();
    let warm_up = options.requests / 3;
    let before = storm(&options, &server, 0..warm_up, &endings)?;
    let after = storm(&options, &server, warm_up..options.requests, &endings)?;
    let metrics = Metrics::of(&server.address)?;
    server.stop()?;
    let report = Report {
        requests: options.requests,
        seconds: start.elapsed().as_secs_f64(),
        endings: endings.into_inner().unwrap_or_else(PoisonError::into_inner),
        answers: metrics.sum("inertiakv_answers_total", ""),
        cancelled: metrics.sum("inertiakv_answers_total", "outcome=\"cancelled\""),
        failed: metrics.sum("inertiakv_answers_total", "outcome=\"failed\""),
        refused: metrics.sum("inertiakv_refused_total", ""),
        generated_tokens: metrics.sum("inertiakv_generated_tokens_total", ""),
        kv_bytes: metrics.sum("inertiakv_kv_bytes_used", ""),
        kv_bytes_prefixes: metrics.sum("inertiakv_kv_bytes_prefixes", ""),
        kv_bytes_peak: metrics.sum("inertiakv_kv_bytes_peak", ""),
        kv_bytes_limit: (options.kv_mebibytes << 20) as f64,
        resident_bytes_after_warm_up: before,
        resident_bytes: after,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", shown(&report));
    }
    judge(&report)
}

fn judge(report: &Report) -> Result<()> {
    // Nobody is there any more, so what is in use is what was kept, to the byte.
    if report.kv_bytes.to_bits() != report.kv_bytes_prefixes.to_bits() {
        let Report {
            kv_bytes,
            kv_bytes_prefixes,
            ..
        } = report;
        bail!("{kv_bytes} bytes of KV cache are in use, but the kept prompts hold {kv_bytes_prefixes}");
    }
    if report.kv_bytes_peak > report.kv_bytes_limit {
        bail!("more bytes of KV cache were in use than the limit");
    }
    if report.failed > 0.0 {
        bail!("{} answers failed", report.failed);
    }
    let growth = report.resident_bytes.zip(report.resident_bytes_after_warm_up);
    match growth {
        Some((after, before)) if after - before > GROWTH => bail!("the memory grew by {} bytes", after - before),
        _ => Ok(()),
    }
}

/// Requests of these numbers from all clients. Returns the resident bytes beside the KV cache when all are over.
fn storm(
    options: &Options,
    server: &Server,
    numbers: std::ops::Range<usize>,
    endings: &Mutex<Endings>,
) -> Result<Option<i64>> {
    let address = server.address.as_str();
    let next = AtomicUsize::new(numbers.start);
    thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return Ok(());
                }
                let (kind, ending) = request(options, address, number).with_context(|| format!("request {number}"))?;
                let mut endings = endings.lock().unwrap_or_else(PoisonError::into_inner);
                *endings.entry(kind).or_default().entry(ending).or_default() += 1;
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|_| bail!("a client panicked")))
    })?;
    settle(address)?;
    let cache = Metrics::of(address)?.sum("inertiakv_kv_bytes_used", "");
    Ok(server.resident().map(|bytes| bytes.cast_signed() - cache as i64))
}

/// One request, of the kind that its number says. Returns the kind and how it ended.
fn request(options: &Options, address: &str, number: usize) -> Result<(&'static str, String)> {
    let document = "The harbour was quiet and the boats lay still. ".repeat(options.prompt_tokens / 10);
    let tokens = 1 + number * 13 % options.tokens;
    let method = &options.methods[number / 7 % options.methods.len()];
    let mut body = json!({
        "prompt": format!("{number} boats"), "max_tokens": tokens, "seed": number, "ignore_eos": true,
        "kv": {"method": method},
    });
    let left = || "left".to_owned();
    Ok(match number % 10 {
        0 | 1 => ("short", answered(address, &body)?),
        2 => {
            body["prompt"] = format!("{number} {document}").into();
            ("long", answered(address, &body)?)
        }
        3 => {
            body["prompt"] = format!("{document} {number}").into();
            body["n"] = 2.into();
            ("shared beginning, two answers", answered(address, &body)?)
        }
        4 => {
            body["stream"] = true.into();
            body["max_tokens"] = 2000.into();
            let mut some = [0; 600];
            let ending = insistently(|| {
                let mut sent = send(address, "POST", "/v1/completions", &body.to_string())?;
                let status = sent.head()?;
                // A refusal is shorter than this.
                let _ = sent.stream.read(&mut some)?;
                Ok((status, String::new()))
            })?;
            ("leaves while it streams", ending.replace("200", "left"))
        }
        5 => {
            body["prompt"] = format!("{number} {document}").into();
            body["stream"] = (number / 10).is_multiple_of(2).into();
            let sent = send(address, "POST", "/v1/completions", &body.to_string())?;
            thread::sleep(Duration::from_millis(100 + number as u64 % 7 * 50));
            drop(sent);
            ("leaves in the prompt or the queue", left())
        }
        6 => {
            body["temperature"] = "hot".into();
            ("wrong field", refused(address, &body.to_string())?)
        }
        7 => ("half a JSON", refused(address, "{\"prompt\": [")?),
        8 => {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{\"pro")?;
            ("half a request", left())
        }
        _ => {
            body["stream"] = true.into();
            let mut some = [0; 512];
            let ending = insistently(|| {
                let mut sent = send(address, "POST", "/v1/completions", &body.to_string())?;
                let status = sent.head()?;
                while sent.stream.read(&mut some)? > 0 {
                    thread::sleep(Duration::from_millis(40));
                }
                Ok((status, String::new()))
            })?;
            ("hardly reads", ending)
        }
    })
}

fn answered(address: &str, body: &Value) -> Result<String> {
    insistently(|| fetch(address, "POST", "/v1/completions", &body.to_string()))
}

fn refused(address: &str, body: &str) -> Result<String> {
    let (status, answer) = fetch(address, "POST", "/v1/completions", body)?;
    if status != 400 {
        bail!("nonsense gave status {status}: {answer}");
    }
    Ok(status.to_string())
}

/// Asks until it is not told to come back; anything but an answer then is an error.
fn insistently(mut ask: impl FnMut() -> Result<(u16, String)>) -> Result<String> {
    let mut ending = "200";
    loop {
        match ask()? {
            (200, _) => return Ok(ending.to_owned()),
            (503, _) => ending = "200 after 503",
            (status, answer) => bail!("status {status}: {answer}"),
        }
        thread::sleep(PAUSE);
    }
}

/// Waits until nobody waits or runs.
fn settle(address: &str) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < SETTLE {
        let metrics = Metrics::of(address)?;
        let busy = metrics.sum("inertiakv_requests_waiting", "") + metrics.sum("inertiakv_answers_running", "");
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

fn shown(report: &Report) -> String {
    let mebibytes = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    let resident = |bytes: Option<i64>| bytes.map_or("unknown".to_owned(), |bytes| mebibytes(bytes as f64));
    let cells: Vec<Vec<String>> = report
        .endings
        .iter()
        .map(|(kind, endings)| {
            let endings = endings.iter().map(|(ending, count)| format!("{count} × {ending}"));
            vec![(*kind).to_owned(), endings.collect::<Vec<_>>().join(", ")]
        })
        .collect();
    let lines = [
        format!(
            "{} requests in {:.0} s; {} answers: {} cancelled, {} failed; {} requests refused; {} tokens generated",
            report.requests,
            report.seconds,
            report.answers,
            report.cancelled,
            report.failed,
            report.refused,
            report.generated_tokens
        ),
        format!(
            "KV cache: {} in use at the end, {} of it kept prompts; at most {} of {}",
            mebibytes(report.kv_bytes),
            mebibytes(report.kv_bytes_prefixes),
            mebibytes(report.kv_bytes_peak),
            mebibytes(report.kv_bytes_limit)
        ),
        format!(
            "memory beside it: {} after the warm-up, {} at the end",
            resident(report.resident_bytes_after_warm_up),
            resident(report.resident_bytes)
        ),
    ];
    table(&["request", "ended"], &cells, &[]) + "\n" + &lines.join("\n") + "\n"
}
