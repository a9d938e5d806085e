//! What does a client learn when something is wrong? `OpenAI`'s error object.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::metrics::Reason;
use crate::scheduler::Refused;

/// Seconds after which a client that met a full queue may try again.
const RETRY_AFTER: u32 = 5;

/// An error with its status and the field it is about.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    /// For the metrics, where the request was not taken.
    reason: Option<Reason>,
    /// Prompt tokens and context, where the one is too long for the other.
    lengths: Option<(usize, usize)>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            reason: match status {
                StatusCode::UNAUTHORIZED => Some(Reason::Key),
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Some(Reason::Route),
                StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => Some(Reason::Body),
                status if status.is_client_error() => Some(Reason::Request),
                _ => None,
            },
            lengths: None,
        }
    }

    /// A request that cannot be carried out because of this field.
    pub(crate) fn bad(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(StatusCode::BAD_REQUEST, message)
        }
    }

    pub(crate) fn unauthorised() -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
            )
        }
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Something went wrong after the request was taken.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The same error about another field.
    pub(crate) fn about(self, param: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..self
        }
    }

    /// The same error, counted under this reason.
    pub(crate) fn because(self, reason: Reason) -> Self {
        Self {
            reason: Some(reason),
            ..self
        }
    }

    /// The `{"error": …}` object, which also ends a stream that fails.
    pub(crate) fn to_json(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let mut error = json!({"message": self.message, "type": kind, "param": self.param, "code": self.code});
        if let Some((prompt, context)) = self.lengths {
            error["n_prompt_tokens"] = prompt.into();
            error["n_ctx"] = context.into();
        }
        json!({ "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        tracing::debug!(
            status = self.status.as_u16(),
            param = self.param,
            "refused: {}",
            self.message
        );
        let mut response = (self.status, Json(self.to_json())).into_response();
        // Whoever hands out all responses counts.
        if let Some(reason) = self.reason {
            response.extensions_mut().insert(reason);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER));
        }
        response
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::Method(_) | Refused::OwnPrefill(_) => Self::bad("kv.method", message).because(Reason::Method),
            Refused::TooLong { prompt, context } => Self {
                code: Some("context_length_exceeded"),
                lengths: Some((prompt, context)),
                ..Self::bad("prompt", message).because(Reason::Context)
            },
            Refused::NoRoomToRepeat(_) => Self::bad("prompt", message).because(Reason::Context),
            Refused::TooManyPrompts { .. } => Self::bad("prompt", message).because(Reason::Queue),
            Refused::TooLarge { .. } => Self {
                code: Some("kv_memory_exceeded"),
                ..Self::bad("max_tokens", message).because(Reason::KvMemory)
            },
            Refused::QueueFull { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, message).because(Reason::Queue),
            Refused::Gone => Self::new(StatusCode::SERVICE_UNAVAILABLE, message).because(Reason::Stopped),
        }
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

/// A body as JSON; an error names the field that is wrong.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.inner();
        if inner.is_data() && path != "." {
            ApiError::bad(path.clone(), format!("`{path}`: {inner}"))
        } else {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the body is not the JSON expected here: {inner}"),
            )
        }
    })?;
    reader
        .end()
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format!("after the JSON: {error}")))?;
    Ok(value)
}
