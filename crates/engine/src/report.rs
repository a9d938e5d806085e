//! In which words is a run reported?

use serde::{Deserialize, Serialize};

use crate::decoder::Profile;

/// One decode step, for whoever wants to watch.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Number of the step, from 1.
    pub step: usize,
    /// Tokens that the step ran.
    pub tokens: usize,
    /// Whether scores were computed.
    pub refresh: bool,
    /// Entries that left each head; the mean where heads differ.
    pub evicted: usize,
    /// Entries per head at the end of the step; the mean where heads differ.
    pub retained: usize,
    /// Bytes of the cache at the end of the step, from the allocator.
    pub kv_bytes: usize,
    /// Where the time went.
    pub profile: Profile,
}

/// A run under one method. Field names are the keys of every JSON output of the project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The model by the name it was opened with: the stem of its file, which is the name of a catalog model.
    pub model: String,
    /// Method in its textual form.
    pub method: String,
    /// L0: tokens of the prefill, and of follow-up turns.
    pub prompt_tokens: usize,
    /// ρ: the share of the prompt that the method does not keep; `None` for the full cache.
    pub compression_ratio: Option<f64>,
    /// B: entries kept at the end of a step; `None` for the full cache.
    pub budget: Option<usize>,
    /// Refresh interval r, or `once`; `None` where nothing is evicted while decoding.
    pub refresh: Option<String>,
    /// α that an adaptive method has come to; `None` under any other, and before it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Decode steps.
    pub steps: usize,
    /// Entries evicted of a head, from the prompt and in all steps; the mean over heads where they differ.
    pub evictions: usize,
    /// Entries per layer and head now; the mean, rounded up, where heads differ.
    pub retained: usize,
    /// Entries of the emptiest head now.
    pub retained_min: usize,
    /// Entries of the fullest head now.
    pub retained_max: usize,
    /// Layers with a window, which are not evicted from and do not count in what is retained; `None` without such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windowed_layers: Option<usize>,
    /// Entries per head that are hidden from attention but still held; the mean where heads differ.
    pub masked: usize,
    /// Entries of the fullest head at its fullest, within a step.
    pub peak_entries: usize,
    /// Bytes of the cache now, from the allocator.
    pub kv_bytes: usize,
    /// Most bytes at any time.
    pub kv_bytes_peak: usize,
    /// Bytes when the prompt was complete, before its last compression.
    pub kv_bytes_prefill: usize,
    /// Bytes by which evictions shrank this cache, summed; what a fork shares stays with the others.
    pub kv_bytes_freed: usize,
    /// Seconds of prefill.
    pub prefill_seconds: f64,
    /// Seconds of compressing the prompt, which are part of `prefill_seconds` unless the prefill was shared.
    pub compression_seconds: f64,
    /// Seconds of all decode steps.
    pub decode_seconds: f64,
    /// Prompt tokens per second, without those that another prefill saved.
    pub prefill_tokens_per_second: f64,
    /// Tokens per second of the steps of one token, which is how fast an answer comes; questions do not count.
    pub decode_tokens_per_second: f64,
    /// Share of the decode time spent on scores and utilities.
    pub scoring_share: f64,
}
