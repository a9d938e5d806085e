//! How do the answers to one prompt come, token by token?

use std::time::Instant;

use inertiakv::{Engine, Error, FinishReason, GenerateOptions, Generator, Sampling, Session, StepReport};

use super::job::{Answer, Ending, Event, Job, Probability, SlotRecord, SlotState};
use crate::metrics::Metrics;

/// A request whose prompt has been prefilled.
pub(super) struct Answering {
    pub(super) job: Job,
    cached: usize,
    lanes: Vec<Lane>,
    /// The method has evicted in every lane; what the prompt needed is free.
    settled: bool,
}

/// One of its answers.
struct Lane {
    choice: usize,
    session: Session,
    /// `None` once the answer has ended.
    generator: Option<Generator>,
    tokens: usize,
    last_token: Instant,
}

/// Forgets requests whose answers have all ended.
pub(super) fn drop_ended(answering: &mut Vec<Answering>) {
    answering.retain(|answering| !answering.lanes.is_empty());
}

impl Answering {
    /// Draws the first token of every answer from what the prompt ended with. `None` if that fails, which the client has
    /// been told then.
    pub(super) fn begin(job: Job, prompt: &Session, cached: usize, metrics: &Metrics) -> Option<Self> {
        match Lane::all(&job, prompt) {
            Ok(lanes) => {
                metrics.method(&job.method, |method| {
                    method.first_token.add(job.received.elapsed());
                });
                let settled = lanes.iter().all(|lane| job.footprint.has_settled(&lane.session));
                let mut answering = Self {
                    job,
                    cached,
                    lanes,
                    settled,
                };
                answering.draw_lanes(metrics);
                Some(answering)
            }
            Err(error) => {
                job.fail(metrics, &error.to_string(), job.request.choices);
                None
            }
        }
    }

    /// Tells the client that nothing more comes.
    pub(super) fn fail(&self, metrics: &Metrics, reason: &str) {
        self.job.fail(metrics, reason, self.lanes.len());
    }

    /// Sessions with a token to run.
    pub(super) fn sessions(&mut self) -> impl Iterator<Item = &mut Session> {
        self.lanes.iter_mut().map(|lane| &mut lane.session)
    }

    /// Draws the next token of every answer after a step, of which `reports` has the next reports.
    pub(super) fn draw<'a>(
        &mut self,
        reports: &mut impl Iterator<Item = &'a StepReport>,
        scoring: f64,
        metrics: &Metrics,
    ) {
        let reports: Vec<&StepReport> = reports.take(self.lanes.len()).collect();
        let now = Instant::now();
        metrics.method(&self.job.method, |method| {
            for (lane, report) in self.lanes.iter_mut().zip(&reports) {
                method.between_tokens.add(now - lane.last_token);
                lane.last_token = now;
                method.evictions += report.evicted as u64;
                if report.refresh {
                    method.scoring_seconds += scoring;
                }
            }
        });
        let footprint = self.job.footprint;
        self.settled = self.settled || self.lanes.iter().all(|lane| footprint.has_settled(&lane.session));
        self.draw_lanes(metrics);
    }

    /// Clients are told last: who knows that an answer has ended finds it counted and its blocks free.
    fn draw_lanes(&mut self, metrics: &Metrics) {
        let mut events = Vec::new();
        let mut failure = None;
        let drawn = |lanes: &[Lane]| lanes.iter().map(|lane| lane.tokens as u64).sum::<u64>();
        let before = drawn(&self.lanes);
        for lane in &mut self.lanes {
            match lane.draw(&self.job, self.cached, &mut events) {
                Ok(None) => {}
                Ok(Some(ending)) => self.job.count_end(metrics, ending, 1),
                Err(error) => failure = Some(error),
            }
        }
        let drawn = drawn(&self.lanes) - before;
        metrics.method(&self.job.method, |method| method.generated_tokens += drawn);
        self.lanes.retain(|lane| lane.generator.is_some());
        let failed = failure.map(|error| (error, std::mem::take(&mut self.lanes).len()));
        for event in events {
            // A client that has gone is noticed in the next round.
            let _ = self.job.events.send(event);
        }
        if let Some((error, answers)) = failed {
            self.job.fail(metrics, &error.to_string(), answers);
        }
    }

    /// Answers under way.
    pub(super) fn running(&self) -> usize {
        self.lanes.len()
    }

    /// Bytes that this request may need at most.
    pub(super) fn reserved(&self, engine: &Engine) -> usize {
        self.job.footprint.bytes(engine, self.lanes.len(), self.settled)
    }

    /// Bytes that the next step may take before it gives any back.
    pub(super) fn bytes_to_step(&self, engine: &Engine) -> usize {
        self.job.footprint.bytes_to_step(engine, self.lanes.len(), self.settled)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = SlotRecord> {
        self.lanes.iter().map(|lane| SlotRecord {
            choice: lane.choice,
            generated_tokens: lane.tokens,
            ..self.job.slot(SlotState::Decode, Some(&lane.session))
        })
    }
}

impl Lane {
    /// All answers to a prompt, which is compressed once for all of them.
    fn all(job: &Job, prompt: &Session) -> Result<Vec<Self>, Error> {
        let request = &job.request;
        let first = prompt.fork(&request.method)?;
        let others: Result<Vec<Session>, Error> = (1..request.choices).map(|_| first.fork(&request.method)).collect();
        let sessions = [first].into_iter().chain(others?);
        sessions
            .enumerate()
            .map(|(choice, session)| Self::new(job, choice, session))
            .collect()
    }

    fn new(job: &Job, choice: usize, session: Session) -> Result<Self, Error> {
        let request = &job.request;
        let options = GenerateOptions {
            sampling: Sampling {
                seed: request.options.sampling.seed.wrapping_add(choice as u64),
                ..request.options.sampling.clone()
            },
            ..request.options.clone()
        };
        Ok(Self {
            choice: request.first_choice + choice,
            generator: Some(Generator::new(session.engine(), &options)?),
            session,
            tokens: 0,
            last_token: Instant::now(),
        })
    }

    /// Draws a token and says what the client is to know of it, and how the answer ended, if it did.
    fn draw(&mut self, job: &Job, cached: usize, events: &mut Vec<Event>) -> Result<Option<Ending>, Error> {
        let Some(generator) = &mut self.generator else {
            return Ok(None);
        };
        let ending = match generator.draw(&mut self.session)? {
            None => Some(FinishReason::Stop),
            Some(draw) => {
                self.tokens += 1;
                let top = job.request.logprobs;
                let logits = self.session.logits()?;
                events.push(Event::Token {
                    choice: self.choice,
                    text: draw.text,
                    probability: top.map(|top| Probability::new(logits, draw.token, top)),
                });
                if draw.stopped {
                    Some(FinishReason::Stop)
                } else if self.tokens >= job.request.options.max_tokens {
                    Some(FinishReason::Length)
                } else if self.session.position() >= self.session.context() {
                    Some(FinishReason::Context)
                } else {
                    None
                }
            }
        };
        let Some(ending) = ending else { return Ok(None) };
        let text = self.generator.take().map_or_else(String::new, Generator::finish);
        let answer = Answer {
            choice: self.choice,
            text,
            ending,
            tokens: self.tokens,
            cached,
            report: self.session.report(),
            retained_share: job
                .request
                .retained_share
                .then(|| retained_share(&self.session, job.request.prompt.len())),
        };
        events.push(Event::Done(Box::new(answer)));
        Ok(Some(match ending {
            FinishReason::Stop => Ending::Stop,
            _ => Ending::Length,
        }))
    }
}

/// For every token of the prompt, the share of all layers and heads that hold it.
fn retained_share(session: &Session, prompt: usize) -> Vec<f32> {
    let Some(policy) = session.policy() else {
        return vec![1.0; prompt];
    };
    let shape = policy.shape();
    let mut held = vec![0_usize; prompt];
    for layer in 0..shape.layers {
        for head in 0..shape.kv_heads {
            for &position in policy.positions(layer, head) {
                if let Some(heads) = held.get_mut(position as usize) {
                    *heads += 1;
                }
            }
        }
    }
    let all = (shape.layers * shape.kv_heads) as f32;
    held.iter().map(|&heads| heads as f32 / all).collect()
}
