//! What does a monitoring system see? Counters, gauges and histograms in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::scheduler::Ending;

/// Upper bounds of the buckets of all histograms, in seconds.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Everything that is counted. Written by the scheduler, read by whoever asks.
#[derive(Default)]
pub(crate) struct Metrics {
    counted: Mutex<Counted>,
}

/// What is counted, by the name of the method.
#[derive(Default)]
pub(crate) struct Counted {
    methods: BTreeMap<String, OfMethod>,
    refused: BTreeMap<Reason, u64>,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// The body is too large, or came too slowly.
    Body,
    /// It does not fit into the context of the model.
    Context,
    /// It has no key, or a wrong one.
    Key,
    /// It can never fit into the KV memory.
    KvMemory,
    /// Its method or budget cannot be had.
    Method,
    /// Too many prompts have not begun.
    Queue,
    /// Anything else in it is wrong.
    Request,
    /// Nothing is there.
    Route,
    /// There is no scheduler any more.
    Stopped,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::Body,
        Self::Context,
        Self::Key,
        Self::KvMemory,
        Self::Method,
        Self::Queue,
        Self::Request,
        Self::Route,
        Self::Stopped,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Context => "context",
            Self::Key => "key",
            Self::KvMemory => "kv_memory",
            Self::Method => "method",
            Self::Queue => "queue",
            Self::Request => "request",
            Self::Route => "route",
            Self::Stopped => "stopped",
        }
    }
}

/// What is counted for one method.
#[derive(Default)]
pub(crate) struct OfMethod {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) evictions: u64,
    pub(crate) scoring_seconds: f64,
    pub(crate) queue: Histogram,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    answers: BTreeMap<Ending, u64>,
}

impl OfMethod {
    pub(crate) fn end(&mut self, ending: Ending, answers: usize) {
        *self.answers.entry(ending).or_default() += answers as u64;
    }
}

#[derive(Default)]
pub(crate) struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }
}

/// What is measured at the moment of asking.
pub(crate) struct Gauges {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) block_bytes: usize,
    pub(crate) kv_bytes: usize,
    pub(crate) kv_bytes_peak: usize,
    pub(crate) kv_bytes_reserved: usize,
    pub(crate) kv_bytes_prefixes: usize,
    pub(crate) kv_bytes_limit: Option<usize>,
}

impl Metrics {
    /// Counts for a method, by its name alone: the texts of methods are without number.
    pub(crate) fn method(&self, name: &str, count: impl FnOnce(&mut OfMethod)) {
        let mut counted = self.lock();
        if !counted.methods.contains_key(name) {
            counted.methods.insert(name.to_owned(), OfMethod::default());
        }
        if let Some(of_method) = counted.methods.get_mut(name) {
            count(of_method);
        }
    }

    /// Counts a request that was not taken.
    pub(crate) fn refused(&self, reason: Reason) {
        *self.lock().refused.entry(reason).or_default() += 1;
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn render(&self, gauges: &Gauges) -> String {
        let mut page = Page::default();
        page.gauges(gauges);
        page.counted(&self.lock());
        page.text
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        // Counters are right or one behind, whatever happened.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one of a method's counters.
type Read = fn(&OfMethod) -> f64;
/// Reads one of its histograms.
type Times = fn(&OfMethod) -> &Histogram;

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn gauges(&mut self, gauges: &Gauges) {
        let block = gauges.block_bytes;
        let numbers = [
            ("requests_waiting", "Prompts that have not begun.", gauges.waiting),
            (
                "answers_running",
                "Answers that are prefilled or decoded.",
                gauges.running,
            ),
            ("kv_block_bytes", "Bytes of a block of the KV cache.", block),
            ("kv_blocks_used", "Blocks in use.", gauges.kv_bytes / block),
            ("kv_bytes_used", "Bytes of the blocks in use.", gauges.kv_bytes),
            (
                "kv_bytes_peak",
                "Most bytes that were in use at one time.",
                gauges.kv_bytes_peak,
            ),
            (
                "kv_bytes_reserved",
                "Bytes that the running answers may need at most.",
                gauges.kv_bytes_reserved,
            ),
            (
                "kv_bytes_prefixes",
                "Bytes of the prompts kept for reuse.",
                gauges.kv_bytes_prefixes,
            ),
        ];
        for (name, help, value) in numbers {
            self.head(name, help, "gauge");
            self.number(name, "", value);
        }
        if let Some(limit) = gauges.kv_bytes_limit {
            self.head("kv_bytes_limit", "Bytes that may be in use.", "gauge");
            self.number("kv_bytes_limit", "", limit);
            self.head("kv_blocks_total", "Blocks that may be in use.", "gauge");
            self.number("kv_blocks_total", "", limit / block);
        }
    }

    fn counted(&mut self, counted: &Counted) {
        let counters: [(&str, &str, Read); 5] = [
            ("prompt_tokens_total", "Tokens of prompts.", |m| m.prompt_tokens as f64),
            (
                "cached_tokens_total",
                "Tokens of prompts that an earlier prompt saved.",
                |m| m.cached_tokens as f64,
            ),
            ("generated_tokens_total", "Tokens generated.", |m| {
                m.generated_tokens as f64
            }),
            ("evictions_total", "Entries evicted.", |m| m.evictions as f64),
            (
                "scoring_seconds_total",
                "Time for scores; in a step of several methods, shared equally by the answers that evict.",
                |m| m.scoring_seconds,
            ),
        ];
        for (name, help, read) in counters {
            self.head(name, help, "counter");
            for (method, of_method) in &counted.methods {
                self.number(name, &format!("{{method=\"{method}\"}}"), read(of_method));
            }
        }
        self.head("answers_total", "Answers, by how they ended.", "counter");
        for (method, of_method) in &counted.methods {
            for ending in Ending::ALL {
                let labels = format!("{{method=\"{method}\",outcome=\"{}\"}}", ending.name());
                let count = of_method.answers.get(&ending).copied();
                self.number("answers_total", &labels, count.unwrap_or(0));
            }
        }
        self.head("refused_total", "Requests that were not taken, by reason.", "counter");
        for reason in Reason::ALL {
            let count = counted.refused.get(&reason).copied();
            self.number(
                "refused_total",
                &format!("{{reason=\"{}\"}}", reason.name()),
                count.unwrap_or(0),
            );
        }
        let histograms: [(&str, &str, Times); 3] = [
            ("queue_seconds", "Time in the queue.", |m| &m.queue),
            (
                "time_to_first_token_seconds",
                "From the request to the first token.",
                |m| &m.first_token,
            ),
            ("inter_token_seconds", "From one token of an answer to its next.", |m| {
                &m.between_tokens
            }),
        ];
        for (name, help, times) in histograms {
            self.head(name, help, "histogram");
            for (method, of_method) in &counted.methods {
                self.histogram(name, method, times(of_method));
            }
        }
    }

    fn histogram(&mut self, name: &str, method: &str, histogram: &Histogram) {
        for (bound, count) in BUCKETS.iter().zip(histogram.buckets) {
            let labels = format!("{{method=\"{method}\",le=\"{bound}\"}}");
            self.number(&format!("{name}_bucket"), &labels, count);
        }
        let labels = format!("{{method=\"{method}\",le=\"+Inf\"}}");
        self.number(&format!("{name}_bucket"), &labels, histogram.count);
        let labels = format!("{{method=\"{method}\"}}");
        self.number(&format!("{name}_sum"), &labels, histogram.sum);
        self.number(&format!("{name}_count"), &labels, histogram.count);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.text,
            "# HELP inertiakv_{name} {help}\n# TYPE inertiakv_{name} {kind}"
        );
    }

    fn number(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "inertiakv_{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_everything_below_them() {
        let metrics = Metrics::default();
        for milliseconds in [2, 2, 700, 60_000] {
            let time = Duration::from_millis(milliseconds);
            metrics.method("full", |method| method.first_token.add(time));
        }
        let text = metrics.render(&Gauges {
            waiting: 3,
            running: 1,
            block_bytes: 10,
            kv_bytes: 50,
            kv_bytes_peak: 60,
            kv_bytes_reserved: 70,
            kv_bytes_prefixes: 0,
            kv_bytes_limit: Some(200),
        });
        for line in [
            "inertiakv_requests_waiting 3",
            "inertiakv_kv_blocks_used 5",
            "inertiakv_kv_blocks_total 20",
            "inertiakv_time_to_first_token_seconds_bucket{method=\"full\",le=\"0.001\"} 0",
            "inertiakv_time_to_first_token_seconds_bucket{method=\"full\",le=\"0.0025\"} 2",
            "inertiakv_time_to_first_token_seconds_bucket{method=\"full\",le=\"1\"} 3",
            "inertiakv_time_to_first_token_seconds_bucket{method=\"full\",le=\"+Inf\"} 4",
            "inertiakv_time_to_first_token_seconds_sum{method=\"full\"} 60.704",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
