//! How does the server start, and how does it stop?

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::http::{HeaderValue, Uri};
use inertiakv::policy::{Budget, Preset};
use inertiakv::{Engine, Error, Method};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::{self, Context};
use crate::connections::Connections;
use crate::footprint::Footprint;
use crate::scheduler::{self, Handle, Limits, MOST_ANSWERS, Refused};

/// Time that connections get to read the end of what was cancelled.
const FAREWELL: Duration = Duration::from_secs(1);

/// Connections beside those whose requests wait or run: pages that are open, monitoring.
const MORE_CONNECTIONS: usize = 256;

/// How to serve. The default listens on this machine alone, on a port of the system's choice, and needs no key.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 for one of the system's choice.
    pub port: u16,
    /// What stays in the cache of requests that do not say.
    pub method: Method,
    /// Most tokens to generate for requests that do not say.
    pub max_tokens: usize,
    /// Most prompts that have not begun, for want of KV memory or because others come first; more are told to come back
    /// later. Each holds its tokens, 4 bytes each.
    pub max_queue: usize,
    /// Rows of a prompt that run between two steps of the running answers. More rows prefill a little faster and make
    /// the others wait longer. Answers depend on it in their last bits.
    pub prefill_chunk: usize,
    /// Most bytes of KV cache to keep prompts for reuse; they are given up when anything else needs the memory.
    pub prefix_memory: usize,
    /// Keys of which a request must have one; none for no keys.
    pub api_keys: Vec<String>,
    /// Pages of other origins that browsers let use the server.
    pub origins: Origins,
    /// Most bytes of a request.
    pub body_limit: usize,
    /// Time that running requests get to finish when the server stops.
    pub grace: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            method: Method::from(Preset::Inertia).with_budget(Budget::Tokens(1024)),
            max_tokens: 1024,
            max_queue: 512,
            prefill_chunk: 256,
            prefix_memory: 256 << 20,
            api_keys: Vec::new(),
            origins: Origins::None,
            body_limit: 16 << 20,
            grace: Duration::from_secs(10),
        }
    }
}

impl ServerOptions {
    /// Refuses keys and origins that would let nobody in.
    fn check_access(&self) -> Result<(), ServerError> {
        let can_be_sent =
            |key: &String| key.is_ascii() && !key.is_empty() && key.trim() == key && HeaderValue::from_str(key).is_ok();
        if !self.api_keys.iter().all(can_be_sent) {
            return Err(ServerError::Key);
        }
        let Origins::These(origins) = &self.origins else {
            return Ok(());
        };
        let is_origin = |origin: &String| {
            let Ok(uri) = origin.parse::<Uri>() else { return false };
            let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
                return false;
            };
            *origin == format!("{scheme}://{authority}").to_lowercase() && !origin.contains('@')
        };
        match origins.iter().find(|origin| !is_origin(origin)) {
            Some(origin) => Err(ServerError::Origin(origin.clone())),
            None => Ok(()),
        }
    }
}

/// Origins (CORS) that may use the server from a browser, besides its own page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// None.
    #[default]
    None,
    /// Every one.
    Any,
    /// These, each as `https://example.org`.
    These(Vec<String>),
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}{}", advice(source.kind()))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A thread cannot be started, or the network fails.
    #[error("the system refused what a server needs")]
    System(#[from] io::Error),
    /// The default method does not run on this model.
    #[error(transparent)]
    Method(#[from] Error),
    /// An option has a value that cannot work.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// Nobody could ever be answered.
    #[error(
        "a KV memory of {limit} bytes is too small: the shortest request, of one token, needs {needed}; give it more \
         (--kv-memory)"
    )]
    KvMemory {
        /// Bytes that there are.
        limit: usize,
        /// Bytes that one token takes.
        needed: usize,
    },
    /// The default method compresses the prompt while it runs.
    #[error("{}", Refused::OwnPrefill(.0.clone()))]
    OwnPrefill(Box<Method>),
    /// A key that no request can have.
    #[error(
        "an API key is empty, begins or ends with a space, or has characters that clients cannot send alike; use visible \
         ASCII characters"
    )]
    Key,
    /// An origin that no browser sends.
    #[error(
        "`{0}` is not an origin; write it as browsers send it, such as `https://example.org`: lower case and no path"
    )]
    Origin(String),
    /// A thread has panicked.
    #[error("the server has failed; its log says why")]
    Panicked,
}

/// What to do about an address that cannot be listened on.
fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::AddrInUse => ", where another program listens; choose another --port",
        io::ErrorKind::AddrNotAvailable => ", which is no address of this machine; choose another --host",
        io::ErrorKind::PermissionDenied => {
            ", which needs rights that this user does not have; choose a --port above 1023"
        }
        _ => "",
    }
}

/// A running server. Dropping it stops it, without waiting for its end.
pub struct Server {
    address: SocketAddr,
    stop: StopOnDrop,
    thread: JoinHandle<Result<(), ServerError>>,
}

/// Stops a server from anywhere.
#[derive(Clone)]
pub struct Stop {
    stopped: watch::Sender<bool>,
}

impl Stop {
    /// Asks the server to stop: it takes no more requests, gives the running ones their time, and cancels the rest.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }
}

struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Server {
    /// Listens, and answers from now on.
    ///
    /// # Errors
    /// If the address is taken, the default method cannot run on the model or in turns with others, or an option has a
    /// value that cannot work.
    pub fn start(engine: Engine, options: ServerOptions) -> Result<Self, ServerError> {
        for (name, value) in [
            ("max_queue", options.max_queue),
            ("prefill_chunk", options.prefill_chunk),
            ("max_tokens", options.max_tokens),
            ("body_limit", options.body_limit),
        ] {
            if value == 0 {
                return Err(ServerError::Zero(name));
            }
        }
        options.check_access()?;
        engine.check_method(&options.method)?;
        if options.method.needs_own_prefill() {
            return Err(ServerError::OwnPrefill(Box::new(options.method)));
        }
        let needed = Footprint::new(&Method::full(), 1, 1, 0).bytes_in_all(&engine, 1);
        if let Some(limit) = engine.kv_pool().limit()
            && limit < needed
        {
            return Err(ServerError::KvMemory { limit, needed });
        }
        let wanted = SocketAddr::new(options.host, options.port);
        let limits = Limits {
            queue: options.max_queue,
            prefill_chunk: options.prefill_chunk,
            prefix_memory: options.prefix_memory,
        };
        let (stopped, _) = watch::channel(false);
        let stop = Stop { stopped };
        let told = stop.clone();
        let (say, listens) = mpsc::channel();
        // All of it on a thread of its own: whoever starts the server may be in a runtime, where another cannot wait.
        let network = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let listener = runtime
                .block_on(TcpListener::bind(wanted))
                .map_err(|source| ServerError::Bind {
                    address: wanted,
                    source,
                })?;
            let address = listener.local_addr()?;
            let (handle, scheduler) = scheduler::start(engine, &limits)?;
            handle.count(&options.method);
            // Whoever started it waits for this.
            let _ = say.send(address);
            runtime.block_on(serve(listener, handle, &options, &told));
            // Whatever still holds a way to the scheduler goes with the runtime.
            runtime.shutdown_timeout(FAREWELL);
            scheduler.join().map_err(|_| ServerError::Panicked)
        };
        let thread = std::thread::Builder::new()
            .name("inertiakv-network".to_owned())
            .spawn(network)?;
        match listens.recv() {
            Ok(address) => Ok(Self {
                address,
                stop: StopOnDrop(stop),
                thread,
            }),
            Err(_) => Err(match thread.join() {
                Ok(Err(error)) => error,
                _ => ServerError::Panicked,
            }),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A way to stop it.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        self.stop.0.clone()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// If the network failed or a thread panicked.
    pub fn wait(self) -> Result<(), ServerError> {
        self.thread.join().map_err(|_| ServerError::Panicked)?
    }
}

/// Serves until told to stop, and then at most the grace and [`FAREWELL`] longer.
async fn serve(listener: TcpListener, scheduler: Handle, options: &ServerOptions, stop: &Stop) {
    let mut stopped = stop.stopped.subscribe();
    let router = api::router(Context::new(scheduler.clone(), options), options);
    let connections = Connections::new(router, most_connections(options.max_queue), stopped.clone());
    tokio::select! {
        () = connections.accept(&listener) => {}
        // The sender lives as long as this borrow of it.
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    drop(listener);
    tracing::info!("stopping; running requests have {} s", options.grace.as_secs_f64());
    // A request that is still being sent is not waited for.
    if timeout(options.grace, scheduler.idle()).await.is_err() {
        tracing::warn!("the time is over; what still runs is cancelled");
        scheduler.cancel_all();
    }
    match connections.end(FAREWELL).await {
        0 => tracing::info!("stopped; every connection has ended"),
        open => tracing::warn!("stopped; {open} connections were closed that had not read or sent everything"),
    }
}

/// Connections for every request that may wait or run and some more, as far as the system has files for them: what else
/// is open in this process needs some too.
fn most_connections(queue: usize) -> u32 {
    let wanted = u32::try_from(queue.saturating_add(MOST_ANSWERS + MORE_CONNECTIONS)).unwrap_or(u32::MAX);
    let wanted = wanted.min(1 << 20);
    let Some(files) = most_files() else { return wanted };
    let possible = u32::try_from(files / 4 * 3).unwrap_or(u32::MAX).max(1);
    if possible < wanted {
        tracing::warn!(
            "the system lets this process open {files} files, so at most {possible} connections are open at a time and \
             others wait; {wanted} would be enough for the queue"
        );
    }
    wanted.min(possible)
}

#[cfg(unix)]
fn most_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(unix))]
fn most_files() -> Option<u64> {
    None
}
