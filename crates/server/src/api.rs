//! Which routes are there, and what stands in front of them?

mod body;
mod error;
mod fields;
mod generate;
mod guard;
mod intake;
mod shape;
mod status;
mod tokens;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::routing::{get, post};
use axum::{Router, middleware};
use inertiakv::{Engine, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::scheduler::Handle;
use crate::server::{Origins, ServerOptions};
use error::ApiError;
use intake::Room;

/// What every handler may need.
#[derive(Clone)]
pub(crate) struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    scheduler: Handle,
    method: Method,
    max_tokens: usize,
    api_keys: Vec<String>,
    room: Room,
    started: u64,
}

impl Context {
    pub(crate) fn new(scheduler: Handle, options: &ServerOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                scheduler,
                method: options.method.clone(),
                max_tokens: options.max_tokens,
                api_keys: options.api_keys.clone(),
                room: Room::new(options.body_limit),
                started: unix_seconds(),
            }),
        }
    }

    fn scheduler(&self) -> &Handle {
        &self.inner.scheduler
    }

    fn engine(&self) -> &Engine {
        self.scheduler().engine()
    }
}

/// All routes. Those of [`guard::PUBLIC`] need no key.
pub(crate) fn router(context: Context, options: &ServerOptions) -> Router {
    let router = Router::new()
        .route("/", get(status::page))
        .route("/health", get(status::health))
        .route("/v1/health", get(status::health))
        .route("/metrics", get(status::metrics))
        .route("/props", get(status::props))
        .route("/slots", get(status::slots))
        .route("/openapi.json", get(status::openapi))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{model}", get(status::model))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is nothing here; see /openapi.json"))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this path has another method; see /openapi.json",
            )
        })
        .layer(middleware::from_fn_with_state(context.clone(), guard::require_key));
    let router = match cors(&options.origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .layer(middleware::from_fn_with_state(context.clone(), guard::identify))
        .with_state(context)
}

/// Which pages of other origins a browser lets use the server.
fn cors(origins: &Origins) -> Option<CorsLayer> {
    let origins = match origins {
        Origins::None => return None,
        Origins::Any => AllowOrigin::any(),
        // They were checked at the start.
        Origins::These(list) => AllowOrigin::list(list.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    Some(
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods(Any)
            // Clients send headers of their own, such as `x-stainless-os`, and a wildcard would not stand for the key's.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([HeaderName::from_static(guard::REQUEST_ID)]),
    )
}

fn unix_seconds() -> u64 {
    // A clock before 1970 is wrong, and 0 says so.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
