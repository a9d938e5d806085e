//! What is asked of the scheduler, and what does it answer?

use std::time::Instant;

use inertiakv::{FinishReason, GenerateOptions, Method, RunReport, Session, negative_log_likelihood};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

use super::handle::InHand;
use crate::footprint::Footprint;
use crate::metrics::Metrics;

/// A prompt to answer.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// For logs and slots.
    pub id: String,
    pub prompt: Vec<u32>,
    pub method: Method,
    /// Answer `i` is drawn with the seed plus `i`.
    pub options: GenerateOptions,
    /// Number of answers.
    pub choices: usize,
    /// Index of the first one in what the client sees.
    pub first_choice: usize,
    /// Report log-probabilities, with so many of the most likely tokens.
    pub logprobs: Option<usize>,
    /// Report which tokens of the prompt are still held.
    pub retained_share: bool,
}

/// What happens to an answer.
#[derive(Debug)]
pub(crate) enum Event {
    /// A token was drawn.
    Token {
        choice: usize,
        /// Text that is certain by now.
        text: String,
        probability: Option<Probability>,
    },
    /// The answer is complete.
    Done(Box<Answer>),
    /// Nothing more will come, for this reason.
    Failed(String),
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub choice: usize,
    /// The last piece of text.
    pub text: String,
    pub ending: FinishReason,
    /// Tokens generated.
    pub tokens: usize,
    /// Tokens of the prompt that an earlier one saved.
    pub cached: usize,
    pub report: RunReport,
    /// For every token of the prompt, the share of all layers and heads that hold it.
    pub retained_share: Option<Vec<f32>>,
}

/// A token's natural log-probability under the model, whatever the sampling, and those of the most likely ones.
#[derive(Clone, Debug)]
pub(crate) struct Probability {
    pub token: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}

impl Probability {
    pub(super) fn new(logits: &[f32], token: u32, top: usize) -> Self {
        let of = |token: u32| f64::from(logits[token as usize]);
        let log_sum = of(token) + negative_log_likelihood(logits, token);
        let logprob = |token: u32| (of(token) - log_sum) as f32;
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let descending = |a: &u32, b: &u32| {
            let (left, right) = (logits[*a as usize], logits[*b as usize]);
            right.total_cmp(&left).then(a.cmp(b))
        };
        if top > 0 && top < order.len() {
            order.select_nth_unstable_by(top, descending);
        }
        order.truncate(top);
        order.sort_unstable_by(descending);
        Self {
            token,
            logprob: logprob(token),
            top: order.into_iter().map(|token| (token, logprob(token))).collect(),
        }
    }
}

/// How a request ended, in the words of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    Stop,
    Length,
    Cancelled,
    Failed,
}

impl Ending {
    pub(crate) const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Cancelled, Self::Failed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// The names of the method's halves without their settings, for the metrics.
pub(crate) fn name(method: &Method) -> String {
    let Method { prefill, decode } = method;
    match prefill {
        None => decode.name.to_string(),
        Some(prefill) if decode.policy.evicts() => format!("{}+{}", prefill.name, decode.name),
        Some(prefill) => prefill.name.to_string(),
    }
}

/// A request in the scheduler's hands.
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) footprint: Footprint,
    /// Its [`name`].
    pub(super) method: String,
    pub(super) events: UnboundedSender<Event>,
    pub(super) received: Instant,
    _in_hand: InHand,
}

impl Job {
    pub(super) fn new(request: Request, footprint: Footprint, events: UnboundedSender<Event>, in_hand: InHand) -> Self {
        Self {
            method: name(&request.method),
            request,
            footprint,
            events,
            received: Instant::now(),
            _in_hand: in_hand,
        }
    }

    pub(super) fn client_has_gone(&self) -> bool {
        self.events.is_closed()
    }

    pub(super) fn count_end(&self, metrics: &Metrics, ending: Ending, answers: usize) {
        tracing::info!(
            id = self.request.id,
            ending = ending.name(),
            answers,
            seconds = self.received.elapsed().as_secs_f64(),
            "ended"
        );
        metrics.method(&self.method, |method| method.end(ending, answers));
    }

    /// Tells the client that nothing more comes.
    pub(super) fn fail(&self, metrics: &Metrics, reason: &str, answers: usize) {
        tracing::warn!(id = self.request.id, reason, "failed");
        self.count_end(metrics, Ending::Failed, answers);
        // The client may have gone meanwhile.
        let _ = self.events.send(Event::Failed(reason.to_owned()));
    }

    pub(super) fn slot(&self, state: SlotState, session: Option<&Session>) -> SlotRecord {
        let report = session.map(Session::report);
        SlotRecord {
            id: self.request.id.clone(),
            choice: self.request.first_choice,
            state,
            method: self.request.method.to_string(),
            prompt_tokens: self.request.prompt.len(),
            prefilled_tokens: session.map_or(0, |session| session.position().min(self.request.prompt.len())),
            generated_tokens: 0,
            budget: report.as_ref().and_then(|report| report.budget),
            evictions: report.as_ref().map_or(0, |report| report.evictions),
            retained: report.as_ref().map_or(0, |report| report.retained),
            kv_bytes: report.as_ref().map_or(0, |report| report.kv_bytes),
        }
    }
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SlotState {
    Waiting,
    Prefill,
    Decode,
}

/// One answer under way, in the vocabulary of the reports.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SlotRecord {
    pub(crate) id: String,
    pub(crate) choice: usize,
    pub(crate) state: SlotState,
    pub(crate) method: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) prefilled_tokens: usize,
    pub(crate) generated_tokens: usize,
    pub(crate) budget: Option<usize>,
    pub(crate) evictions: usize,
    pub(crate) retained: usize,
    pub(crate) kv_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::Probability;

    #[test]
    fn log_probabilities_are_those_of_the_softmax() {
        let logits = [1.0_f32, 3.0, 2.0, 3.0];
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        let probability = Probability::new(&logits, 2, 2);
        assert!((probability.logprob - (2.0 - sum.ln())).abs() < 1e-6);
        let top: Vec<u32> = probability.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(top, [1, 3], "the lower number first where two are equal");
        assert_eq!(Probability::new(&logits, 0, 9).top.len(), 4);
        assert!(Probability::new(&logits, 0, 0).top.is_empty());
    }
}
