//! How do others reach the scheduler?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use inertiakv::{Engine, Error, Method};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{oneshot, watch};

use super::job::{Event, Job, Request, SlotRecord};
use crate::footprint::Footprint;
use crate::metrics::{Gauges, Metrics};

/// A way to the scheduler. It runs as long as there is one.
#[derive(Clone)]
pub(crate) struct Handle {
    engine: Engine,
    messages: Sender<Message>,
    most_waiting: usize,
    shared: Arc<Shared>,
}

/// What both sides see.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) metrics: Metrics,
    /// Requests sent and not admitted yet.
    pub(super) waiting: AtomicUsize,
    pub(super) running: AtomicUsize,
    pub(super) reserved: AtomicUsize,
    pub(super) prefixes: AtomicUsize,
    /// Heard by every request that is in hand.
    in_hand: watch::Sender<()>,
    /// The scheduler has stopped, or failed.
    pub(super) ended: AtomicBool,
}

/// Held as long as somebody works on a request, for those who wait for the last.
pub(crate) struct InHand {
    _listening: watch::Receiver<()>,
}

pub(super) enum Message {
    Submit(Box<Job>),
    Slots(oneshot::Sender<Vec<SlotRecord>>),
    CancelAll,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Method(Error),
    #[error(
        "`{0}` compresses the prompt while it runs, which does not go together with prompts that run in turns with \
         others; leave out its `interval`"
    )]
    OwnPrefill(Box<Method>),
    #[error(
        "the prompt has {prompt} tokens, but the context of the model has {context}, and an answer needs at least one; \
         shorten it"
    )]
    TooLong { prompt: usize, context: usize },
    #[error(transparent)]
    NoRoomToRepeat(Error),
    #[error("{prompts} prompts at once are more than the {most} that may wait; send fewer")]
    TooManyPrompts { prompts: usize, most: usize },
    #[error(
        "{prompt} prompt tokens and up to {answer} generated ones need {needed} bytes of KV cache under this method, but \
         the server has {limit}; shorten the prompt, ask for fewer tokens or choices, or start it with more --kv-memory"
    )]
    TooLarge {
        prompt: usize,
        answer: usize,
        needed: usize,
        limit: usize,
    },
    #[error("{waiting} requests are waiting already; try again later")]
    QueueFull { waiting: usize },
    #[error("the server is shutting down or has failed; see its log")]
    Gone,
}

impl Handle {
    pub(super) fn new(engine: Engine, most_waiting: usize) -> (Self, Receiver<Message>) {
        let (messages, receiver) = mpsc::channel();
        let handle = Self {
            engine,
            messages,
            most_waiting,
            shared: Arc::default(),
        };
        (handle, receiver)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What the request needs at most, if it can be answered at all with nobody else there. `max_tokens` becomes what
    /// the context allows.
    fn footprint(&self, request: &mut Request) -> Result<Footprint, Refused> {
        let (prompt, context) = (request.prompt.len(), self.engine.context());
        if prompt >= context {
            return Err(Refused::TooLong { prompt, context });
        }
        self.engine.check_method(&request.method).map_err(Refused::Method)?;
        if request.method.needs_own_prefill() {
            return Err(Refused::OwnPrefill(Box::new(request.method.clone())));
        }
        let repeating = self
            .engine
            .check_prompt(&request.method, &request.prompt)
            .map_err(Refused::NoRoomToRepeat)?;
        let answer = request.options.max_tokens.min(context - prompt);
        request.options.max_tokens = answer;
        let footprint = Footprint::new(&request.method, prompt, answer, repeating);
        let needed = footprint.bytes_in_all(&self.engine, request.choices);
        match self.engine.kv_pool().limit() {
            Some(limit) if needed > limit => Err(Refused::TooLarge {
                prompt,
                answer,
                needed,
                limit,
            }),
            _ => Ok(footprint),
        }
    }

    /// Sends requests, all or none; what happens to them comes out of the receiver. Dropping it cancels them.
    pub(crate) fn submit(&self, requests: Vec<Request>) -> Result<UnboundedReceiver<Event>, Refused> {
        let (prompts, most) = (requests.len(), self.most_waiting);
        if prompts > most {
            return Err(Refused::TooManyPrompts { prompts, most });
        }
        let (events, receiver) = unbounded_channel();
        let mut jobs = Vec::with_capacity(requests.len());
        for mut request in requests {
            let footprint = self.footprint(&mut request)?;
            jobs.push(Job::new(request, footprint, events.clone(), self.in_hand()));
        }
        let room = |waiting: usize| {
            let then = waiting + jobs.len();
            (then <= self.most_waiting).then_some(then)
        };
        self.shared
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, room)
            .map_err(|waiting| Refused::QueueFull { waiting })?;
        for job in jobs {
            if self.messages.send(Message::Submit(Box::new(job))).is_err() {
                return Err(Refused::Gone);
            }
        }
        Ok(receiver)
    }

    /// Takes a request in hand before it is submitted.
    pub(crate) fn in_hand(&self) -> InHand {
        InHand {
            _listening: self.shared.in_hand.subscribe(),
        }
    }

    /// Waits until no request is in hand.
    pub(crate) async fn idle(&self) {
        self.shared.in_hand.closed().await;
    }

    /// Whether there is a scheduler; told at once, whatever it computes.
    pub(crate) fn is_alive(&self) -> bool {
        !self.shared.ended.load(Ordering::Relaxed)
    }

    /// What every answer under way looks like now.
    pub(crate) async fn slots(&self) -> Result<Vec<SlotRecord>, Refused> {
        let (reply, answer) = oneshot::channel();
        self.messages.send(Message::Slots(reply)).map_err(|_| Refused::Gone)?;
        answer.await.map_err(|_| Refused::Gone)
    }

    /// Ends every request that has not been answered yet.
    pub(crate) fn cancel_all(&self) {
        // A scheduler that has gone has nothing left to cancel.
        let _ = self.messages.send(Message::CancelAll);
    }

    /// Counts for a method from now on, from 0.
    pub(crate) fn count(&self, method: &Method) {
        self.metrics().method(&super::job::name(method), |_| {});
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    pub(crate) fn gauges(&self) -> Gauges {
        let pool = self.engine.kv_pool();
        let config = pool.config();
        Gauges {
            waiting: self.shared.waiting.load(Ordering::Relaxed),
            running: self.shared.running.load(Ordering::Relaxed),
            block_bytes: pool.bytes_for(1) / (config.layers * config.kv_heads),
            kv_bytes: pool.bytes_in_use(),
            kv_bytes_peak: pool.bytes_peak(),
            kv_bytes_reserved: self.shared.reserved.load(Ordering::Relaxed),
            kv_bytes_prefixes: self.shared.prefixes.load(Ordering::Relaxed),
            kv_bytes_limit: pool.limit(),
        }
    }
}
