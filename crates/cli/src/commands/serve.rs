//! `inertiakv serve`: answer over HTTP.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use inertiakv::EngineOptions;
use inertiakv_server::{Origins, Server, ServerError, ServerOptions};

use crate::args::ServeArguments;
use crate::failure::usage;
use crate::format::{counted, mebibytes};
use crate::printer::Printer;
use crate::{interrupt, model, settings};

pub(crate) fn run(arguments: &ServeArguments, printer: &Printer) -> anyhow::Result<()> {
    let options = options(arguments)?;
    if !options.host.is_loopback() && options.api_keys.is_empty() {
        printer.warn(&format!(
            "everybody who reaches {} can use this server; give it an --api-key or an --api-key-file",
            options.host
        ));
    }
    let engine_options = EngineOptions {
        kv_memory: Some(arguments.kv_memory),
        ..settings::engine_options(&arguments.model, Some(&arguments.context))
    };
    let engine = model::open(&arguments.model.model, &engine_options, printer)?;
    let whole = engine.kv_pool().bytes_for(engine.context());
    if whole > arguments.kv_memory {
        printer.note(&format!(
            "the context of {} needs {} of KV cache without evictions, more than --kv-memory: longer requests are refused",
            counted(engine.context(), "token"),
            mebibytes(whole)
        ));
    }
    let method = options.method.to_string();
    let server = Server::start(engine, options).map_err(|error| match error {
        ServerError::Bind { .. } | ServerError::System(_) | ServerError::Panicked => error.into(),
        // What was typed cannot work.
        error => usage(error.to_string()),
    })?;
    let stop = server.stopper();
    interrupt::listen_once(printer.clone(), move || stop.stop());
    // A result: whoever starts a server in a script reads where it is.
    printer.line(&format!("listening on http://{} · {method}", server.address()))?;
    server.wait()?;
    Ok(())
}

fn options(arguments: &ServeArguments) -> anyhow::Result<ServerOptions> {
    let mut api_keys = arguments.api_key.clone();
    if let Some(path) = &arguments.api_key_file {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let keys = keys(&text).map_err(|reason| usage(format!("`{}` {reason}", path.display())))?;
        api_keys.extend(keys);
    }
    let origins = match arguments.cors.as_slice() {
        [] => Origins::None,
        list if list.iter().any(|origin| origin == "*") => Origins::Any,
        list => Origins::These(list.to_vec()),
    };
    Ok(ServerOptions {
        host: arguments.host,
        port: arguments.port,
        method: settings::method(&arguments.method.method, &arguments.method.budget)?,
        max_tokens: arguments.max_tokens,
        max_queue: arguments.max_queue,
        prefill_chunk: arguments.prefill_chunk,
        prefix_memory: arguments.prefix_memory.unwrap_or(arguments.kv_memory / 2),
        api_keys,
        origins,
        body_limit: arguments.body_limit,
        grace: Duration::from_secs(arguments.grace),
    })
}

/// The keys of a file, or what is wrong with it.
fn keys(text: &str) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let key = line.trim();
        if key.contains(char::is_whitespace) {
            // Most likely a comment, which everybody who sends it would come in with.
            return Err(format!(
                "has a space within line {}; every line is a key, and nothing else can be in the file",
                index + 1
            ));
        }
        if !key.is_empty() {
            keys.push(key.to_owned());
        }
    }
    if keys.is_empty() {
        return Err("has no key; write one a line".to_owned());
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::keys;

    #[test]
    fn every_line_is_a_key() {
        assert_eq!(keys("one\n\n two \n"), Ok(vec!["one".to_owned(), "two".to_owned()]));
        assert!(keys("\n").is_err());
        assert!(keys("one\n# the second\ntwo").is_err_and(|reason| reason.contains("line 2")));
    }
}
