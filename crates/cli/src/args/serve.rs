//! What can be typed after `inertiakv serve`?

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::{BoundedMethodArguments, ContextArguments, ModelArguments};
use crate::settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  inertiakv serve
  inertiakv serve --port 8080 --method inertia:ratio=0.9 --kv-memory 4GiB
  inertiakv serve -m qwen2.5-coder-0.5b --max-queue 200 --api-key-file keys.txt
  inertiakv serve --host 0.0.0.0 --api-key \"$(cat key.txt)\" --cors https://example.org

  curl http://127.0.0.1:8080/v1/chat/completions -d \
    '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}], \"max_tokens\": 60}'

Answers OpenAI's chat and text completions, streaming or not, and has a page to chat with at /. A request may choose \
its own method: `\"kv\": {\"method\": \"inertia\", \"budget\": 512}`; every answer says what its cache did.

The default method keeps 1,024 entries of a conversation; a ratio suits long documents better than short chats.

The KV memory is a bound: a request waits until what it may need at most fits beside the others. Prompts are kept in \
what is free, so a document that many ask about is prefilled once. /metrics is for Prometheus, /openapi.json describes \
everything.

Ctrl-C stops taking requests and lets the running ones finish, for --grace seconds at most; a second one ends at once.";

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) context: ContextArguments,

    /// For requests that do not say.
    #[command(flatten)]
    pub(crate) method: BoundedMethodArguments,

    /// Most KV cache over all requests, as `512MiB` or `4GiB`
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = settings::memory, help_heading = "Memory")]
    pub(crate) kv_memory: usize,

    /// Most KV cache that keeps prompts for reuse [default: half of --kv-memory]
    #[arg(long, value_name = "SIZE", value_parser = settings::memory, help_heading = "Memory")]
    pub(crate) prefix_memory: Option<usize>,

    /// Most prompts that have not begun, for want of memory or because others come first; more are told to come back later
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = settings::at_least_one, help_heading = "Memory")]
    pub(crate) max_queue: usize,

    /// Most tokens to generate for requests that do not say
    #[arg(
        short = 'n', long, value_name = "N", default_value_t = 1024, value_parser = settings::at_least_one,
        help_heading = "Generation"
    )]
    pub(crate) max_tokens: usize,

    /// Tokens of a prompt that run between two steps of the answers under way: more is a little faster, less flows more
    /// evenly
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = settings::at_least_one, help_heading = "Generation")]
    pub(crate) prefill_chunk: usize,

    /// Address to listen on; 0.0.0.0 is every network: give it a key, without one there is a warning
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Network")]
    pub(crate) host: IpAddr,

    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080, help_heading = "Network")]
    pub(crate) port: u16,

    /// A key that requests must have, in visible ASCII characters; may be given several times
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new(), help_heading = "Network")]
    pub(crate) api_key: Vec<String>,

    /// A file with keys, one a line
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// An origin whose pages may use the server, as browsers send it: `https://example.org`; or `*`; may be given several
    /// times
    #[arg(long, value_name = "ORIGIN", help_heading = "Network")]
    pub(crate) cors: Vec<String>,

    /// Largest request
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = settings::memory, help_heading = "Network")]
    pub(crate) body_limit: usize,

    /// Seconds that running requests get to finish when the server stops
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = "Network")]
    pub(crate) grace: u64,
}
