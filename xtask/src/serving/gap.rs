//! `cargo xtask gap`: how long do running streams wait for their next token while a long prompt is prefilled?
//!
//! For each method a server is started, short conversations stream, and when all of them do a long prompt comes. What counts
//! is the time between two tokens of a stream from when the prompt was sent to its first token, and, to compare, before.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;

use super::client::{Metrics, Streamed};
use super::load::{converse, percentiles, prompt};
use super::options::Options;
use super::process::Server;
use crate::table::table;

/// Tokens of the prompts of the streams.
const SHORT: usize = 16;

/// Tokens that every stream has before the long prompt comes.
const AHEAD: usize = 30;

/// What one method did. Times are the 50th, 95th and 100th percentile, in seconds.
#[derive(Serialize)]
struct Row {
    method: String,
    streams: usize,
    prefill_chunk: usize,
    prompt_tokens: usize,
    first_token_seconds: f64,
    between_tokens_before: [f64; 3],
    between_tokens_during: [f64; 3],
}

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let options = Options::gap().parse("gap", arguments)?;
    let rows: Result<Vec<Row>> = options.methods.iter().map(|method| measure(&options, method)).collect();
    let rows = rows?;
    if options.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&json!({"model": options.model, "rows": rows}))?
        );
    } else {
        print!("{}", shown(&rows));
    }
    Ok(())
}

fn measure(options: &Options, method: &str) -> Result<Row> {
    let server = Server::start(options, &["--method", method, "--prefix-memory", "0"])?;
    let address = server.address.as_str();
    let (streams, long) = thread::scope(|scope| {
        let streams: Vec<_> = (0..options.requests)
            .map(|index| scope.spawn(move || converse(address, &prompt(index, SHORT), options.tokens)))
            .collect();
        let long = when_all_stream(address, options.requests)
            .and_then(|()| converse(address, &prompt(options.requests, options.prompt_tokens), 1));
        let join = |stream: thread::ScopedJoinHandle<'_, Result<Streamed>>| {
            stream.join().unwrap_or_else(|_| bail!("a client panicked"))
        };
        (streams.into_iter().map(join).collect::<Result<Vec<_>>>(), long)
    });
    server.stop()?;
    let (streams, long) = (streams?, long?);
    let (sent, answered) = (long.sent, long.tokens[0]);
    if streams
        .iter()
        .any(|stream| stream.tokens[stream.tokens.len() - 1] < answered)
    {
        bail!("a stream ended before the long prompt was prefilled; raise --tokens");
    }
    let gaps = |counts: &dyn Fn(Instant, Instant) -> bool| {
        let pairs = streams.iter().flat_map(|stream| stream.tokens.windows(2));
        let gaps = pairs
            .filter(|pair| counts(pair[0], pair[1]))
            .map(|pair| pair[1] - pair[0]);
        percentiles(gaps.collect())
    };
    Ok(Row {
        method: method.to_owned(),
        streams: options.requests,
        prefill_chunk: options.prefill_chunk,
        prompt_tokens: options.prompt_tokens,
        first_token_seconds: long.first_token().as_secs_f64(),
        between_tokens_before: gaps(&|_, to| to <= sent),
        between_tokens_during: gaps(&|from, to| to > sent && from < answered),
    })
}

/// Waits until all streams have had some tokens.
fn when_all_stream(address: &str, streams: usize) -> Result<()> {
    loop {
        let metrics = Metrics::of(address)?;
        let begun = metrics.sum("inertiakv_time_to_first_token_seconds_count", "");
        let tokens = metrics.sum("inertiakv_generated_tokens_total", "");
        if begun >= streams as f64 && tokens >= (streams * AHEAD) as f64 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn shown(rows: &[Row]) -> String {
    let header = [
        "method",
        "streams",
        "chunk",
        "prompt",
        "its first token",
        "before p50",
        "p95",
        "worst",
        "during p50",
        "p95",
        "worst",
    ];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut cells = vec![
                row.method.clone(),
                row.streams.to_string(),
                row.prefill_chunk.to_string(),
                row.prompt_tokens.to_string(),
                format!("{:.2} s", row.first_token_seconds),
            ];
            let times = row.between_tokens_before.iter().chain(&row.between_tokens_during);
            cells.extend(times.map(|seconds| format!("{:.0} ms", seconds * 1e3)));
            cells
        })
        .collect();
    table(&header, &cells, &(1..header.len()).collect::<Vec<_>>())
}
