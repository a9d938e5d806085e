//! Who computes next?
//!
//! One thread owns the engine and goes round: take in new requests, let go of those whose client has gone, admit what
//! fits, prefill one chunk of one prompt, run one step of all answers together. So a running answer waits at most one
//! chunk and one step for its next token, and blocks are free one chunk or step after a client has gone.

mod answer;
mod handle;
mod job;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use inertiakv::{Engine, Error, Method, Session};

use crate::prefixes::Prefixes;
use answer::{Answering, drop_ended};
pub(crate) use handle::{Handle, Refused};
use handle::{Message, Shared};
pub(crate) use job::{Answer, Ending, Event, Probability, Request};
use job::{Job, SlotRecord, SlotState};

/// Most answers that run at once: each holds logits and draws by itself, whatever its cache holds.
pub(crate) const MOST_ANSWERS: usize = 256;

/// How the scheduler shares the engine.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Most prompts in the queue.
    pub queue: usize,
    /// Rows of a prompt that run between two steps.
    pub prefill_chunk: usize,
    /// Most bytes of prompts kept for reuse.
    pub prefix_memory: usize,
}

/// The thread's state.
struct Scheduler {
    engine: Engine,
    shared: Arc<Shared>,
    messages: Receiver<Message>,
    queue: VecDeque<Job>,
    prefilling: Option<Prefilling>,
    answering: Vec<Answering>,
    prefixes: Prefixes,
    chunk: usize,
}

/// A prompt under way.
struct Prefilling {
    job: Job,
    /// Under the full cache, whatever the method: others can then reuse it.
    session: Session,
    /// Tokens that an earlier prompt saved.
    cached: usize,
}

impl Scheduler {
    /// Works until nobody is left who could ask for anything.
    fn run(mut self) {
        while self.receive() {
            self.let_go();
            self.admit();
            self.prefill();
            self.step();
            self.publish();
        }
    }

    /// Takes in what has come; waits where there is nothing else to do. Says whether more can come.
    fn receive(&mut self) -> bool {
        loop {
            let idle = self.queue.is_empty() && self.prefilling.is_none() && self.answering.is_empty();
            let message = if idle {
                match self.messages.recv() {
                    Ok(message) => message,
                    Err(_) => return false,
                }
            } else {
                match self.messages.try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            };
            match message {
                Message::Submit(job) => self.queue.push_back(*job),
                // Whoever asked may have gone.
                Message::Slots(reply) => drop(reply.send(self.slots())),
                Message::CancelAll => self.cancel_all(),
            }
        }
    }

    /// Drops every request whose client has gone.
    fn let_go(&mut self) {
        let shared = &self.shared;
        let gone = |job: &Job, answers: usize| {
            let gone = job.client_has_gone();
            if gone {
                job.count_end(&shared.metrics, Ending::Cancelled, answers);
            }
            gone
        };
        let before = self.queue.len();
        self.queue.retain(|job| !gone(job, job.request.choices));
        shared.waiting.fetch_sub(before - self.queue.len(), Ordering::SeqCst);
        let prompt_gone = |prefilling: &Prefilling| gone(&prefilling.job, prefilling.job.request.choices);
        if self.prefilling.as_ref().is_some_and(prompt_gone) {
            self.prefilling = None;
        }
        self.answering
            .retain(|answering| !gone(&answering.job, answering.running()));
    }

    fn cancel_all(&mut self) {
        self.shared.waiting.fetch_sub(self.queue.len(), Ordering::SeqCst);
        let prefilling = self.prefilling.take().map(|prefilling| prefilling.job);
        let whole = self.queue.drain(..).chain(prefilling);
        let whole = whole.map(|job| (job.request.choices, job));
        let answering = self.answering.drain(..);
        let answering = answering.map(|answering| (answering.running(), answering.job));
        for (answers, job) in whole.chain(answering) {
            job.fail(&self.shared.metrics, "the server is shutting down", answers);
        }
    }

    /// Takes the next request out of the queue, first come, first served, if it fits.
    fn admit(&mut self) {
        if self.prefilling.is_some() {
            return;
        }
        let Some(job) = self.queue.front() else { return };
        let choices = job.request.choices;
        let needed = job.footprint.bytes_in_all(&self.engine, choices);
        if self.reserved() + needed > self.limit() || self.answers() + choices > MOST_ANSWERS {
            return;
        }
        let Some(job) = self.queue.pop_front() else { return };
        self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        let begun = self.begin_prompt(&job.request);
        let metrics = &self.shared.metrics;
        match begun {
            Ok(session) => {
                let cached = session.position();
                metrics.method(&job.method, |method| {
                    method.queue.add(job.received.elapsed());
                    method.prompt_tokens += job.request.prompt.len() as u64;
                    method.cached_tokens += cached as u64;
                });
                tracing::debug!(id = job.request.id, cached, "admitted");
                self.prefilling = Some(Prefilling { job, session, cached });
            }
            Err(error) => job.fail(metrics, &error.to_string(), choices),
        }
    }

    /// A session that has run as much of the prompt as is known. What a method needs of the prompt to compress it is not
    /// known of earlier ones.
    fn begin_prompt(&mut self, request: &Request) -> Result<Session, Error> {
        if request.method.prefill.is_none() {
            return self.prefixes.begin(&self.engine, &request.prompt);
        }
        let mut session = self.engine.session(&Method::full())?;
        session.remember_for([&request.method])?;
        Ok(session)
    }

    /// Runs one chunk of the prompt under way. When it is complete, its answers begin.
    fn prefill(&mut self) {
        let Some(mut prefilling) = self.prefilling.take() else {
            return;
        };
        let prompt = &prefilling.job.request.prompt;
        let done = prefilling.session.position();
        if done < prompt.len() {
            // The borders are the same for every prompt, so that one can go on where another ends.
            let end = (done / self.chunk + 1) * self.chunk;
            let chunk = &prompt[done..end.min(prompt.len())];
            self.make_room(self.rows(chunk.len()) + 2 * self.rows(1));
            let outcome = prefilling
                .session
                .prefill(chunk, &mut |_, _| std::ops::ControlFlow::Continue(()));
            if let Err(error) = outcome {
                let choices = prefilling.job.request.choices;
                prefilling.job.fail(&self.shared.metrics, &error.to_string(), choices);
                return;
            }
        }
        if prefilling.session.position() < prefilling.job.request.prompt.len() {
            self.prefilling = Some(prefilling);
            return;
        }
        self.begin_answers(prefilling);
    }

    fn begin_answers(&mut self, prefilling: Prefilling) {
        let Prefilling { job, session, cached } = prefilling;
        let choices = job.request.choices;
        if job.request.method.prefill.is_none()
            && let Err(error) = self.prefixes.keep(&job.request.prompt, &session)
        {
            job.fail(&self.shared.metrics, &error.to_string(), choices);
            return;
        }
        // The prompt is there already.
        let needed = job.footprint.bytes_in_all(&self.engine, choices);
        self.make_room(needed.saturating_sub(session.kv_bytes()));
        self.answering
            .extend(Answering::begin(job, &session, cached, &self.shared.metrics));
        drop_ended(&mut self.answering);
    }

    /// One step of all answers.
    fn step(&mut self) {
        if self.answering.is_empty() {
            return;
        }
        let needed = self
            .answering
            .iter()
            .map(|answering| answering.bytes_to_step(&self.engine))
            .sum();
        self.make_room(needed);
        let start = Instant::now();
        let mut sessions: Vec<&mut Session> = self.answering.iter_mut().flat_map(Answering::sessions).collect();
        let tokens = vec![&[][..]; sessions.len()];
        let reports = match Session::step_together(&mut sessions, &tokens) {
            Ok(reports) => reports,
            Err(error) => {
                tracing::error!("a step failed: {error}");
                for answering in self.answering.drain(..) {
                    answering.fail(&self.shared.metrics, &error.to_string());
                }
                return;
            }
        };
        tracing::trace!(
            answers = sessions.len(),
            seconds = start.elapsed().as_secs_f64(),
            "step"
        );
        // The time of scoring is that of the whole step; those who had scores computed share it.
        let scored = reports.iter().filter(|report| report.refresh).count();
        let scoring = reports
            .first()
            .map_or(0.0, |report| report.profile.scoring.as_secs_f64())
            / scored.max(1) as f64;
        let mut reports = reports.iter();
        for answering in &mut self.answering {
            answering.draw(&mut reports, scoring, &self.shared.metrics);
        }
        drop_ended(&mut self.answering);
    }

    /// Gives up kept prompts until so many bytes are free, or none is left: what the running requests need is free then,
    /// since no more were admitted than fit.
    fn make_room(&mut self, bytes: usize) {
        while self.limit() - self.engine.kv_pool().bytes_in_use().min(self.limit()) < bytes {
            if !self.prefixes.drop_oldest() {
                return;
            }
        }
    }

    /// What the requests that run may need at most.
    fn reserved(&self) -> usize {
        let prefilling = self.prefilling.iter().map(|prefilling| {
            let Job { request, footprint, .. } = &prefilling.job;
            footprint.bytes_in_all(&self.engine, request.choices)
        });
        let answering = self.answering.iter().map(|answering| answering.reserved(&self.engine));
        prefilling.chain(answering).sum()
    }

    fn limit(&self) -> usize {
        self.engine.kv_pool().limit().unwrap_or(usize::MAX)
    }

    fn rows(&self, rows: usize) -> usize {
        self.engine.kv_pool().bytes_for(rows)
    }

    /// Answers under way.
    fn answers(&self) -> usize {
        self.answering.iter().map(Answering::running).sum()
    }

    /// What gauges show between two rounds.
    fn publish(&self) {
        let prefilling = usize::from(self.prefilling.is_some());
        self.shared
            .running
            .store(self.answers() + prefilling, Ordering::Relaxed);
        self.shared.reserved.store(self.reserved(), Ordering::Relaxed);
        self.shared.prefixes.store(self.prefixes.bytes(), Ordering::Relaxed);
    }

    fn slots(&self) -> Vec<SlotRecord> {
        let waiting = self.queue.iter().map(|job| job.slot(SlotState::Waiting, None));
        let prefilling = self
            .prefilling
            .iter()
            .map(|prefilling| prefilling.job.slot(SlotState::Prefill, Some(&prefilling.session)));
        let answering = self.answering.iter().flat_map(Answering::slots);
        answering.chain(prefilling).chain(waiting).collect()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

/// Starts the thread; it ends when the last handle has gone.
pub(crate) fn start(engine: Engine, limits: &Limits) -> std::io::Result<(Handle, std::thread::JoinHandle<()>)> {
    let (handle, messages) = Handle::new(engine.clone(), limits.queue);
    let scheduler = Scheduler {
        shared: Arc::clone(handle.shared()),
        messages,
        queue: VecDeque::new(),
        prefilling: None,
        answering: Vec::new(),
        prefixes: Prefixes::new(limits.prefill_chunk, limits.prefix_memory),
        chunk: limits.prefill_chunk,
        engine,
    };
    let thread = std::thread::Builder::new()
        .name("inertiakv-scheduler".to_owned())
        .spawn(move || scheduler.run())?;
    Ok((handle, thread))
}
