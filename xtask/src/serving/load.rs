//! `cargo xtask load`: how many long conversations does a KV memory hold, and how fast do they flow?
//!
//! For each method a server is started with the same `--kv-memory`, and more conversations than fit are opened at once.
//! A conversation is resident while it decodes. Each prompt is another one, so that none is saved by reuse.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Metrics, Streamed, fetch, send};
use super::options::Options;
use super::process::Server;
use crate::table::table;

/// How often it is counted who is resident.
const INTERVAL: Duration = Duration::from_millis(200);

/// What one method did.
#[derive(Debug, Serialize)]
struct Row {
    method: String,
    requests: usize,
    completed: usize,
    resident: usize,
    kv_bytes_limit: u64,
    kv_bytes_peak: u64,
    retained: u64,
    seconds: f64,
    prompt_tokens_per_second: f64,
    generated_tokens_per_second: f64,
    /// 50th, 95th and 100th percentile, in seconds.
    first_token: [f64; 3],
    between_tokens: [f64; 3],
}

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let options = Options::load().parse("load", arguments)?;
    let mut rows = Vec::new();
    for method in &options.methods {
        eprintln!("{method}: {} conversations …", options.requests);
        rows.push(measure(&options, method)?);
    }
    if options.json {
        let settings = json!({
            "model": options.model, "prompt_tokens": options.prompt_tokens, "tokens": options.tokens,
            "prefill_chunk": options.prefill_chunk, "rows": rows,
        });
        println!("{}", serde_json::to_string_pretty(&settings)?);
    } else {
        print!("{}", shown(&rows));
    }
    if rows.iter().any(|row| row.completed < row.requests) {
        bail!("conversations were lost");
    }
    Ok(())
}

fn measure(options: &Options, method: &str) -> Result<Row> {
    let queue = options.requests.to_string();
    let server = Server::start(
        options,
        &["--method", method, "--prefix-memory", "0", "--max-queue", &queue],
    )?;
    let address = server.address.as_str();
    let prompts: Vec<Vec<u64>> = (0..options.requests)
        .map(|index| prompt(index, options.prompt_tokens))
        .collect();
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let (streams, resident) = thread::scope(|scope| {
        let watcher = scope.spawn(|| most_resident(address, &over));
        let clients: Vec<_> = prompts
            .iter()
            .map(|prompt| scope.spawn(|| converse(address, prompt, options.tokens)))
            .collect();
        let streams: Vec<Result<Streamed>> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| bail!("a client panicked")))
            .collect();
        over.store(true, Ordering::Relaxed);
        (streams, watcher.join().unwrap_or(0))
    });
    let seconds = start.elapsed().as_secs_f64();
    let metrics = Metrics::of(address)?;
    let kv_bytes_peak = metrics.sum("inertiakv_kv_bytes_peak", "") as u64;
    let left = metrics.sum("inertiakv_kv_bytes_used", "");
    server.stop()?;
    if left > 0.0 {
        bail!("{left} bytes of KV cache were not given back");
    }
    for error in streams.iter().filter_map(|stream| stream.as_ref().err()) {
        eprintln!("{method}: a conversation failed: {error:#}");
    }
    let streams: Vec<&Streamed> = streams.iter().filter_map(|stream| stream.as_ref().ok()).collect();
    let generated: usize = streams.iter().map(|stream| stream.tokens.len()).sum();
    let between = streams.iter().flat_map(|stream| stream.between_tokens());
    Ok(Row {
        method: method.to_owned(),
        requests: options.requests,
        completed: streams.len(),
        resident,
        kv_bytes_limit: (options.kv_mebibytes as u64) << 20,
        kv_bytes_peak,
        retained: streams
            .iter()
            .filter_map(|stream| stream.kv["retained"].as_u64())
            .max()
            .unwrap_or(0),
        seconds,
        prompt_tokens_per_second: (streams.len() * options.prompt_tokens) as f64 / seconds,
        generated_tokens_per_second: generated as f64 / seconds,
        first_token: percentiles(streams.iter().map(|stream| stream.first_token()).collect()),
        between_tokens: percentiles(between.collect()),
    })
}

pub(super) fn converse(address: &str, prompt: &[u64], tokens: usize) -> Result<Streamed> {
    let body = json!({
        "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "temperature": 0, "stream": true, "logprobs": 0,
    });
    send(address, "POST", "/v1/completions", &body.to_string())?.streamed()
}

/// Tokens of a prompt that no other conversation has; small numbers are in every vocabulary.
pub(super) fn prompt(index: usize, tokens: usize) -> Vec<u64> {
    let mut state = index as u64 + 1;
    (0..tokens)
        .map(|_| {
            // Knuth's linear congruential generator.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            100 + (state >> 33) % 4000
        })
        .collect()
}

/// The most conversations that decoded at one time.
fn most_resident(address: &str, over: &AtomicBool) -> usize {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        most = most.max(resident(address).unwrap_or(0));
        thread::sleep(INTERVAL);
    }
    most
}

fn resident(address: &str) -> Result<usize> {
    let (_, text) = fetch(address, "GET", "/slots", "")?;
    let slots: Value = serde_json::from_str(&text)?;
    let slots = slots["slots"].as_array().context("there are slots")?;
    Ok(slots.iter().filter(|slot| slot["state"] == "decode").count())
}

/// The 50th, 95th and 100th percentile, in seconds.
pub(super) fn percentiles(mut times: Vec<Duration>) -> [f64; 3] {
    times.sort_unstable();
    [0.5, 0.95, 1.0].map(|share| {
        let index = ((times.len() as f64 * share).ceil() as usize).max(1) - 1;
        times.get(index).map_or(0.0, Duration::as_secs_f64)
    })
}

fn shown(rows: &[Row]) -> String {
    let header = [
        "method",
        "resident",
        "completed",
        "KV peak",
        "of",
        "prompt tok/s",
        "answer tok/s",
        "TTFT p50",
        "p95",
        "between p50",
        "p95",
        "worst",
    ];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
            let seconds = |seconds: f64| format!("{seconds:.2} s");
            let milliseconds = |seconds: f64| format!("{:.0} ms", seconds * 1e3);
            vec![
                row.method.clone(),
                row.resident.to_string(),
                format!("{}/{}", row.completed, row.requests),
                mebibytes(row.kv_bytes_peak),
                mebibytes(row.kv_bytes_limit),
                format!("{:.0}", row.prompt_tokens_per_second),
                format!("{:.1}", row.generated_tokens_per_second),
                seconds(row.first_token[0]),
                seconds(row.first_token[1]),
                milliseconds(row.between_tokens[0]),
                milliseconds(row.between_tokens[1]),
                milliseconds(row.between_tokens[2]),
            ]
        })
        .collect();
    table(&header, &cells, &(1..header.len()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::{percentiles, prompt};
    use std::time::Duration;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times = (1..=100).rev().map(Duration::from_secs).collect();
        assert_eq!(percentiles(times), [50.0, 95.0, 100.0]);
        assert_eq!(percentiles(vec![Duration::from_secs(7)]), [7.0; 3]);
        assert_eq!(percentiles(Vec::new()), [0.0; 3]);
    }

    #[test]
    fn prompts_differ_from_the_first_tokens_on() {
        assert_eq!(prompt(3, 50), prompt(3, 50));
        assert_ne!(prompt(3, 4), prompt(4, 4));
        assert!(prompt(0, 1000).iter().all(|&token| (100..4100).contains(&token)));
    }
}
