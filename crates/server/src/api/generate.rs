//! How does an answer reach the client, at once or piece by piece?

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Context;
use super::body::{Body, Wanted};
use super::error::{ApiError, parse};
use super::guard::RequestId;
use super::intake::Intake;
use super::shape::{Dialect, Shape};
use super::tokens::off_the_network_thread;
use crate::scheduler::Event;

/// A comment is sent when nothing else was for so long, so that nobody between takes the stream for dead.
const PING: Duration = Duration::from_secs(10);

pub(super) async fn chat(
    State(context): State<Context>,
    Extension(id): Extension<RequestId>,
    body: Intake,
) -> Result<Response, ApiError> {
    answer(context, id, body, Dialect::Chat).await
}

pub(super) async fn completions(
    State(context): State<Context>,
    Extension(id): Extension<RequestId>,
    body: Intake,
) -> Result<Response, ApiError> {
    answer(context, id, body, Dialect::Completions).await
}

async fn answer(
    context: Context,
    RequestId(id): RequestId,
    body: Intake,
    dialect: Dialect,
) -> Result<Response, ApiError> {
    let in_hand = context.scheduler().in_hand();
    let (shape, events, stream) = off_the_network_thread(body, move |body| {
        // Until the scheduler has it.
        let _in_hand = in_hand;
        let body: Body = parse(body)?;
        let wanted = match dialect {
            Dialect::Chat => body.chat(&context, &id),
            Dialect::Completions => body.completions(&context, &id),
        }?;
        let shape = Shape::new(dialect, &context, &wanted);
        let Wanted { requests, stream, .. } = wanted;
        let events = context
            .scheduler()
            .submit(requests)
            .map_err(|refused| shape.refusal(refused))?;
        Ok((shape, events, stream))
    })
    .await?;
    if stream {
        let pieces = Pieces {
            shape,
            events,
            ready: VecDeque::new(),
            over: false,
        };
        let ping = KeepAlive::new().interval(PING);
        return Ok(Sse::new(pieces).keep_alive(ping).into_response());
    }
    collect(shape, events).await.map(IntoResponse::into_response)
}

/// The whole answer. Where the client goes away this is dropped, and the receiver with it.
async fn collect(mut shape: Shape, mut events: UnboundedReceiver<Event>) -> Result<Json<Value>, ApiError> {
    while let Some(event) = events.recv().await {
        if let Event::Failed(reason) = event {
            return Err(ApiError::failed(reason));
        }
        shape.add(event);
        if shape.is_complete() {
            return Ok(Json(shape.whole()));
        }
    }
    Err(ApiError::failed("the engine has stopped; see the server's log"))
}

/// The answer as server-sent events.
struct Pieces {
    shape: Shape,
    events: UnboundedReceiver<Event>,
    ready: VecDeque<SseEvent>,
    over: bool,
}

impl Pieces {
    fn push(&mut self, value: &Value) {
        self.ready.push_back(SseEvent::default().data(value.to_string()));
    }

    fn take(&mut self, event: Option<Event>) {
        let failure = match event {
            None => "the engine has stopped; see the server's log".to_owned(),
            Some(Event::Failed(reason)) => reason,
            Some(event) => {
                for chunk in self.shape.chunks(event) {
                    self.push(&chunk);
                }
                if self.shape.is_complete() {
                    if let Some(usage) = self.shape.usage_chunk() {
                        self.push(&usage);
                    }
                    self.ready.push_back(SseEvent::default().data("[DONE]"));
                    self.over = true;
                }
                return;
            }
        };
        self.push(&ApiError::failed(failure).to_json());
        self.over = true;
    }
}

impl Stream for Pieces {
    type Item = Result<SseEvent, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let event = ready!(self.events.poll_recv(task));
            self.take(event);
        }
    }
}
