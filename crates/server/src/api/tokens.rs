//! How does a client look at tokens? The routes of llama-server: tokenize, detokenize, apply-template.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Context;
use super::body::{Messages, conversation};
use super::error::{ApiError, parse};
use super::intake::Intake;

#[derive(Deserialize)]
struct Tokenize {
    content: String,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct ApplyTemplate {
    messages: Messages,
}

pub(super) async fn tokenize(State(context): State<Context>, body: Intake) -> Result<Json<Value>, ApiError> {
    off_the_network_thread(body, move |body| {
        let body: Tokenize = parse(body)?;
        let tokenizer = context.engine().tokenizer();
        let mut tokens = tokenizer.encode(&body.content, body.parse_special.unwrap_or(true));
        if body.add_special.unwrap_or(false) {
            tokens = tokenizer.with_bos(tokens);
        }
        let tokens: Value = if body.with_pieces.unwrap_or(false) {
            let piece = |&token: &u32| {
                let bytes = tokenizer.token_bytes(token);
                // A piece that is not text by itself comes as its bytes.
                let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
                json!({"id": token, "piece": piece})
            };
            tokens.iter().map(piece).collect()
        } else {
            tokens.into()
        };
        Ok(Json(json!({ "tokens": tokens })))
    })
    .await
}

pub(super) async fn detokenize(State(context): State<Context>, body: Intake) -> Result<Json<Value>, ApiError> {
    off_the_network_thread(body, move |body| {
        let body: Detokenize = parse(body)?;
        let vocabulary = context.engine().tokenizer().vocabulary();
        if let Some(index) = body.tokens.iter().position(|&token| token as usize >= vocabulary) {
            let message = format!("token {} is outside the vocabulary of {vocabulary}", body.tokens[index]);
            return Err(ApiError::bad(format!("tokens[{index}]"), message));
        }
        let content = context.engine().tokenizer().decode_special(&body.tokens);
        Ok(Json(json!({ "content": content })))
    })
    .await
}

pub(super) async fn apply_template(State(context): State<Context>, body: Intake) -> Result<Json<Value>, ApiError> {
    off_the_network_thread(body, move |body| {
        let body: ApplyTemplate = parse(body)?;
        let template = context
            .engine()
            .chat_template()
            .ok_or_else(|| ApiError::bad("messages", "this model has no chat template"))?;
        let prompt = template
            .render(&conversation(&body.messages.0)?, true)
            .map_err(|error| ApiError::bad("messages", error.to_string()))?;
        Ok(Json(json!({ "prompt": prompt })))
    })
    .await
}

/// Runs what takes long for a long body where it keeps nobody else waiting, and then makes room for other bodies.
pub(super) async fn off_the_network_thread<T: Send + 'static>(
    body: Intake,
    work: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(move || work(&body.bytes)).await {
        Ok(outcome) => outcome,
        Err(error) => Err(ApiError::failed(format!("the request could not be read: {error}"))),
    }
}
