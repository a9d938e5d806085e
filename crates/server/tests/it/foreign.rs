//! Clients that others have written: the `async-openai` crate, and the `openai` package for Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::chat::{
    ChatCompletionRequestUserMessageArgs, ChatCompletionStreamOptions, CreateChatCompletionRequest,
    CreateChatCompletionRequestArgs,
};
use futures_util::StreamExt;
use inertiakv_server::ServerOptions;

use crate::browser::installed;
use crate::support::World;

const KEY: &str = "the key";

/// The Python package and its version.
const OPENAI: &str = "openai==3.57.0";

fn world() -> World {
    let options = ServerOptions {
        api_keys: vec![KEY.to_owned()],
        prefix_memory: 0,
        ..ServerOptions::default()
    };
    World::with(options, None)
}

fn client(world: &World, key: &str) -> Client<OpenAIConfig> {
    let base = format!("http://{}/v1", world.address);
    Client::with_config(OpenAIConfig::new().with_api_base(base).with_api_key(key))
}

fn request(tokens: u32, stream: bool) -> CreateChatCompletionRequest {
    let message = ChatCompletionRequestUserMessageArgs::default()
        .content("hello")
        .build()
        .expect("complete");
    let mut request = CreateChatCompletionRequestArgs::default();
    request
        .model("default")
        .messages([message.into()])
        .max_completion_tokens(tokens)
        .seed(5_i64);
    if stream {
        request.stream_options(ChatCompletionStreamOptions {
            include_usage: Some(true),
            include_obfuscation: None,
        });
    }
    request.build().expect("complete")
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work);
}

#[test]
fn async_openai_chats() {
    let world = world();
    run(async {
        let client = client(&world, KEY);
        let answer = client.chat().create(request(8, false)).await.expect("an answer");
        let text = answer.choices[0].message.content.clone().expect("text");
        let usage = answer.usage.expect("usage");
        assert_eq!(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);

        let mut stream = client.chat().create_stream(request(8, true)).await.expect("a stream");
        let (mut streamed, mut counted) = (String::new(), None);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.expect("a chunk");
            streamed.extend(chunk.choices.iter().filter_map(|choice| choice.delta.content.clone()));
            counted = chunk.usage.or(counted);
        }
        assert_eq!(streamed, text);
        assert_eq!(
            counted.expect("the usage chunk").completion_tokens,
            usage.completion_tokens
        );
    });
}

#[test]
fn async_openai_understands_errors() {
    let world = world();
    run(async {
        let refused = client(&world, "wrong").chat().create(request(8, false)).await;
        assert!(matches!(refused, Err(OpenAIError::ApiError(_))), "{refused:?}");
        let mut hot = request(8, false);
        hot.temperature = Some(-1.0);
        match client(&world, KEY).chat().create(hot).await {
            Err(OpenAIError::ApiError(error)) => assert!(format!("{error:?}").contains("temperature")),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn async_openai_leaves_and_the_blocks_are_free() {
    let world = world();
    run(async {
        let mut stream = client(&world, KEY)
            .chat()
            .create_stream(request(3000, true))
            .await
            .expect("a stream");
        stream.next().await.expect("a chunk").expect("a piece");
    });
    // Dropped with its runtime.
    while world.engine.kv_pool().bytes_in_use() > 0 {
        std::thread::yield_now();
    }
}

/// The folder with the Python package, installed once per checkout.
fn python_package(python: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(OPENAI);
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        OPENAI,
        "--target",
    ];
    installed(&folder, Command::new(python).args(pip).arg(&folder));
    folder
}

#[test]
fn real_client_openai_for_python() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let package = python_package(&python);
    let world = world();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/openai_client.py");
    let output = Command::new(python)
        .arg(script)
        .args([format!("http://{}/v1", world.address), KEY.to_owned()])
        .env("PYTHONPATH", package)
        .output()
        .expect("python starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("all as expected"), "{said}");
    while world.engine.kv_pool().bytes_in_use() > 0 {
        std::thread::yield_now();
    }
}
