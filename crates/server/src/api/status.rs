//! What is the server, and how is it doing?

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Context;
use super::error::ApiError;
use crate::scheduler::Refused;

const PAGE: &str = include_str!("../../assets/page.html");
const OPENAPI: &str = include_str!("../../assets/openapi.json");

/// What Prometheus expects its text to be called.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A chat for people.
pub(super) async fn page() -> impl IntoResponse {
    // The page needs nothing from elsewhere, so a browser need not allow it.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(PAGE))
}

pub(super) async fn health(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    if !context.scheduler().is_alive() {
        return Err(Refused::Gone.into());
    }
    Ok(Json(json!({"status": "ok"})))
}

pub(super) async fn metrics(State(context): State<Context>) -> impl IntoResponse {
    let scheduler = context.scheduler();
    let text = scheduler.metrics().render(&scheduler.gauges());
    ([(header::CONTENT_TYPE, PROMETHEUS)], text)
}

pub(super) async fn props(State(context): State<Context>) -> Json<Value> {
    let engine = context.engine();
    let method = &context.inner.method;
    Json(json!({
        "model": engine.name(),
        "model_info": engine.info(),
        "n_ctx": engine.context(),
        "method": method.to_string(),
        "methods": inertiakv::Method::presets()
            .map(|(name, summary)| json!({"name": name, "summary": summary}))
            .collect::<Vec<_>>(),
        "max_tokens": context.inner.max_tokens,
        "kv_bytes_limit": engine.kv_pool().limit(),
        "threads": engine.threads(),
        "chat_template": engine.chat_template().map(inertiakv::chat_template::ChatTemplate::source),
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

#[derive(Deserialize)]
pub(super) struct SlotsQuery {
    fail_on_no_slot: Option<u8>,
}

pub(super) async fn slots(
    State(context): State<Context>,
    query: Result<Query<SlotsQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(query) = query?;
    let slots = context.scheduler().slots().await?;
    let gauges = context.scheduler().gauges();
    if query.fail_on_no_slot.is_some_and(|flag| flag != 0) && gauges.waiting > 0 {
        return Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{} requests are waiting already", gauges.waiting),
        ));
    }
    Ok(Json(json!({
        "slots": slots,
        "kv_bytes": gauges.kv_bytes,
        "kv_bytes_peak": gauges.kv_bytes_peak,
        "kv_bytes_limit": gauges.kv_bytes_limit,
        "kv_bytes_prefixes": gauges.kv_bytes_prefixes,
    })))
}

pub(super) async fn models(State(context): State<Context>) -> Json<Value> {
    Json(json!({"object": "list", "data": [record(&context)]}))
}

pub(super) async fn model(
    State(context): State<Context>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) = name?;
    if name == context.engine().name() || name == "default" {
        return Ok(Json(record(&context)));
    }
    let message = format!("the model `{name}` is not loaded; `{}` is", context.engine().name());
    Err(ApiError::new(StatusCode::NOT_FOUND, message))
}

pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

fn record(context: &Context) -> Value {
    let engine = context.engine();
    json!({
        "id": engine.name(),
        "object": "model",
        "created": context.inner.started,
        "owned_by": "inertiakv",
        "status": "loaded",
        "context_length": engine.context(),
    })
}
