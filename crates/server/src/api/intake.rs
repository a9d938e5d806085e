//! How does a body come in, however many come at once?
//!
//! Bodies that are read or parsed at one time have a bounded number of bytes together; who does not fit waits. Small ones
//! never wait, since there are no more of them than connections: so a few large ones that hardly come keep nobody out who
//! just wants to chat. Who sends too slowly is let go: others wait for the room.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use futures_core::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::Context;
use super::error::ApiError;

/// How many of the largest bodies there is room for.
const BODIES: usize = 4;

/// So many bytes of each body need no room.
const SMALL: usize = 64 << 10;

/// A body must bring so many bytes, or its end, within so much time.
const STRETCH: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// Room for bodies.
pub(super) struct Room {
    /// Most bytes of one.
    limit: usize,
    free_kibibytes: Arc<Semaphore>,
}

/// A body that has come in. Whoever has understood it drops it, and makes room.
pub(super) struct Intake {
    pub(super) bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            free_kibibytes: Arc::new(Semaphore::new(BODIES * kibibytes(limit) as usize)),
        }
    }

    /// Reads the body, and waits for room once it is not small any more.
    pub(super) async fn take(&self, body: Body) -> Result<Intake, ApiError> {
        let announced = body.size_hint().exact();
        let most = announced.map_or(self.limit, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        // Nothing has been read, so a client that asked whether to send is told before it does.
        if most > self.limit {
            return Err(self.too_large());
        }
        let mut room = None;
        let mut bytes = Vec::new();
        let mut stream = body.into_data_stream();
        let (mut deadline, mut stretch_end) = (Instant::now() + PATIENCE, STRETCH);
        while let Some(piece) = timeout_at(deadline, next(&mut stream)).await.map_err(|_| too_slow())? {
            let piece = piece.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}"))
            })?;
            let length = bytes.len() + piece.len();
            if length > self.limit {
                return Err(self.too_large());
            }
            if length > SMALL && room.is_none() {
                room = Some(self.room_for(most).await?);
                deadline = Instant::now() + PATIENCE;
                if announced.is_some() {
                    bytes.reserve_exact(most - bytes.len());
                }
            }
            bytes.extend_from_slice(&piece);
            if length >= stretch_end {
                (deadline, stretch_end) = (Instant::now() + PATIENCE, length + STRETCH);
            }
        }
        Ok(Intake { bytes, _room: room })
    }

    async fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let room = Arc::clone(&self.free_kibibytes).acquire_many_owned(kibibytes(bytes));
        // It is never closed.
        room.await.map_err(|error| ApiError::failed(error.to_string()))
    }

    fn too_large(&self) -> ApiError {
        let message = format!(
            "the body is larger than the {} bytes that this server takes; send less, or start it with more --body-limit",
            self.limit
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }
}

impl FromRequest<Context> for Intake {
    type Rejection = ApiError;

    async fn from_request(request: Request, context: &Context) -> Result<Self, ApiError> {
        context.inner.room.take(request.into_body()).await
    }
}

async fn next(stream: &mut BodyDataStream) -> Option<Result<Bytes, axum::Error>> {
    poll_fn(|task| Pin::new(&mut *stream).poll_next(task)).await
}

fn too_slow() -> ApiError {
    let message = format!(
        "the body came too slowly: {STRETCH} bytes or its end must come within {} s; send it again",
        PATIENCE.as_secs()
    );
    ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
}

/// A semaphore counts in 32 bits; nobody has memory for a body of more than this.
fn kibibytes(bytes: usize) -> u32 {
    bytes.div_ceil(1024).clamp(1, 1 << 26) as u32
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context as TaskContext, Poll, Waker};

    use super::*;

    const LIMIT: usize = 4 * SMALL;

    fn body(bytes: usize) -> Body {
        Body::from(vec![b' '; bytes])
    }

    fn refused(outcome: Result<Intake, ApiError>) -> Option<StatusCode> {
        outcome.err().map(|error| error.status())
    }

    /// A body of which this much comes, and then nothing.
    struct Stalled(Option<Bytes>);

    impl Stream for Stalled {
        type Item = Result<Bytes, axum::Error>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
            self.0
                .take()
                .map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(bytes))))
        }
    }

    #[tokio::test]
    async fn who_does_not_fit_waits_until_another_has_been_understood() {
        let room = Room::new(LIMIT);
        let mut inside = Vec::new();
        for _ in 0..BODIES {
            inside.push(room.take(body(LIMIT)).await.expect("there is room"));
        }
        let mut task = TaskContext::from_waker(Waker::noop());
        let mut waiting = pin!(room.take(body(SMALL + 1)));
        assert!(waiting.as_mut().poll(&mut task).is_pending());
        assert!(room.take(body(SMALL)).await.is_ok(), "a small one need not wait");
        inside.pop();
        let taken = waiting.await.expect("now there is room");
        assert_eq!(taken.bytes.len(), SMALL + 1);
        drop(taken);
        // Of what does not say how long it is, the longest is assumed.
        let unknown = |bytes: usize| room.take(Body::from_stream(Stalled(Some(vec![0; bytes].into()))));
        let mut waiting = pin!(unknown(SMALL + 1));
        assert!(waiting.as_mut().poll(&mut task).is_pending());
        assert_eq!(room.free_kibibytes.available_permits(), 0, "it has begun to read");
        assert_eq!(refused(unknown(LIMIT + 1).await), Some(StatusCode::PAYLOAD_TOO_LARGE));
    }

    #[tokio::test]
    async fn what_is_said_to_be_too_large_is_not_waited_for() {
        let room = Room::new(LIMIT);
        let _inside = room.take(body(LIMIT)).await;
        assert_eq!(
            refused(room.take(body(LIMIT + 1)).await),
            Some(StatusCode::PAYLOAD_TOO_LARGE)
        );
        assert!(room.take(body(LIMIT)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_let_go() {
        let room = Room::new(LIMIT);
        let start = Instant::now();
        let stalled = Body::from_stream(Stalled(Some(vec![b' '; SMALL + 1].into())));
        assert_eq!(refused(room.take(stalled).await), Some(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(start.elapsed().as_secs(), PATIENCE.as_secs());
        assert_eq!(room.free_kibibytes.available_permits(), BODIES * LIMIT / 1024);
    }
}
