//! Who may ask, and under which name is a request known?

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Context;
use super::error::ApiError;

/// Header of a request's name: what a client sends comes back.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// Paths that tell nothing about anybody.
pub(super) const PUBLIC: [&str; 4] = ["/", "/health", "/v1/health", "/openapi.json"];

/// Longest name that a client may give its request.
const LONGEST_ID: usize = 128;

/// The name of a request, in its extensions.
#[derive(Clone, Debug)]
pub(super) struct RequestId(pub(super) String);

/// Gives every request a name and every response that of its request, writes both into the log, and counts what was
/// refused.
pub(super) async fn identify(State(context): State<Context>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = given
        .filter(|id| !id.is_empty() && id.len() <= LONGEST_ID)
        .map_or_else(|| format!("req-{}", unique()), str::to_owned);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(RequestId(id.clone()));
    tracing::debug!(id, %method, path, "request");
    let mut response = next.run(request).await;
    tracing::info!(id, %method, path, status = response.status().as_u16(), "response");
    if let Some(reason) = response.extensions().get() {
        context.scheduler().metrics().refused(*reason);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Refuses requests without a key where keys are needed.
pub(super) async fn require_key(State(context): State<Context>, request: Request, next: Next) -> Response {
    let keys = &context.inner.api_keys;
    let open = keys.is_empty() || PUBLIC.contains(&request.uri().path()) || request.method() == Method::OPTIONS;
    if !open {
        let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(bearer).unwrap_or_default();
        // All keys are compared, whichever fits.
        let fits = keys.iter().fold(false, |fits, key| fits | same(key.as_bytes(), given));
        if !fits {
            return ApiError::unauthorised().into_response();
        }
    }
    next.run(request).await
}

/// What stands behind the scheme, in whatever case that is.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"Bearer".len())?;
    let key = key.strip_prefix(b" ")?;
    scheme.eq_ignore_ascii_case(b"Bearer").then_some(key.trim_ascii_start())
}

/// Compares in a time that depends on the length of what was given alone.
fn same(key: &[u8], given: &[u8]) -> bool {
    let mut different = u8::from(key.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        different |= byte ^ key.get(index % key.len().max(1)).unwrap_or(&0);
    }
    std::hint::black_box(different) == 0
}

/// A name that nobody else has, and that cannot be guessed.
pub(super) fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{count:06x}", random())
}

/// A number from the randomness that the standard library seeds its hash maps with.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::{same, unique};

    #[test]
    fn only_the_same_key_fits() {
        assert!(same(b"secret", b"secret"));
        for wrong in ["", "secre", "secrets", "secretsecret", "Secret", "secres"] {
            assert!(!same(b"secret", wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn names_differ() {
        assert_ne!(unique(), unique());
    }
}
