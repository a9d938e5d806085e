//! How do connections come, and how do they end?
//!
//! So many are open at a time, and no more: who comes then waits to be let in. One that asks for nothing is closed after a
//! while, so that there is room again; one that is being answered stays, however long that takes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// The head of a request must have come so long after the connection was opened, or after the last answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most bytes of the head of a request.
const LARGEST_HEAD: usize = 64 << 10;

/// Time until the next try where the system has no connection for us.
const PAUSE: Duration = Duration::from_secs(1);

/// All connections of a server.
pub(crate) struct Connections {
    router: Router,
    stopped: watch::Receiver<bool>,
    most: u32,
    places: Arc<Semaphore>,
}

impl Connections {
    /// Answers with the router, and ends each connection with its answer once it is stopped.
    pub(crate) fn new(router: Router, most: u32, stopped: watch::Receiver<bool>) -> Self {
        Self {
            router,
            stopped,
            most,
            places: Arc::new(Semaphore::new(most as usize)),
        }
    }

    /// Lets in who comes, for ever.
    pub(crate) async fn accept(&self, listener: &TcpListener) {
        // The places are never closed.
        while let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(converse(stream, self.router.clone(), self.stopped.clone(), place));
                }
                Err(error) if has_gone_already(&error) => {}
                Err(error) => {
                    let open = self.open() - 1;
                    tracing::warn!("no connection can be let in beside {open} others, trying again: {error}");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits until all have ended, but not longer than this. Says how many have not.
    pub(crate) async fn end(&self, patience: Duration) -> u32 {
        match timeout(patience, self.places.acquire_many(self.most)).await {
            Ok(_) => 0,
            Err(_) => self.open(),
        }
    }

    fn open(&self) -> u32 {
        self.most - self.places.available_permits() as u32
    }
}

/// Answers the requests of one connection.
async fn converse(stream: TcpStream, router: Router, mut stopped: watch::Receiver<bool>, _place: OwnedSemaphorePermit) {
    // A token is sent when it is there, not when the client has confirmed the last one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("tokens may come in lumps: {error}");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    // The sender lives as long as the server.
    let stop = async { drop(stopped.wait_for(|stopped| *stopped).await) };
    let ended = tokio::select! {
        // First, so that a request that has come before the stop is read.
        biased;
        ended = connection.as_mut() => ended,
        () = stop => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection broke off: {error}");
    }
}

/// Whether only the connection is broken that was to be let in.
fn has_gone_already(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;

    use super::*;

    /// Connections of a router that takes an hour to answer. Time passes at once where nobody does anything.
    async fn slow(most: u32) -> (SocketAddr, watch::Sender<bool>) {
        let hour = async || {
            sleep(Duration::from_hours(1)).await;
            "at last"
        };
        let (stop, stopped) = watch::channel(false);
        let connections = Connections::new(Router::new().route("/", get(hour)), most, stopped);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { connections.accept(&listener).await });
        (address, stop)
    }

    async fn connect(address: SocketAddr, head: &str) -> TcpStream {
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.writable().await.expect("it is open");
        assert_eq!(stream.try_write(head.as_bytes()).expect("it is open"), head.len());
        stream
    }

    /// What comes until there is a pause, or until the end.
    async fn read(stream: &TcpStream) -> String {
        let mut bytes = [0; 1024];
        loop {
            stream.readable().await.expect("it is open");
            match stream.try_read(&mut bytes) {
                Ok(length) => return String::from_utf8_lossy(&bytes[..length]).into_owned(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    const REQUEST: &str = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_nothing_is_let_go() {
        let (address, _stop) = slow(5).await;
        for head in ["", "GET / HTTP/1.1\r\nHost"] {
            assert_eq!(read(&connect(address, head).await).await, "", "{head:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_answer_is_waited_for_and_then_the_connection_is_let_go() {
        let (address, _stop) = slow(5).await;
        let stream = connect(address, REQUEST).await;
        assert!(read(&stream).await.ends_with("at last"));
        assert_eq!(read(&stream).await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_when_all_places_are_taken_waits() {
        let (address, _stop) = slow(1).await;
        let first = connect(address, "").await;
        let second = connect(address, REQUEST).await;
        assert!(read(&second).await.ends_with("at last"));
        // It had to go before the second could come.
        assert_eq!(first.try_read(&mut [0; 8]).expect("an end"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_ends_who_asks_for_nothing_and_waits_for_the_others() {
        let (stop, stopped) = watch::channel(false);
        let routes = Router::new()
            .route("/soon", get(async || sleep(Duration::from_secs(1)).await))
            .route("/never", get(std::future::pending::<()>));
        let connections = Connections::new(routes, 9, stopped);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let idle = connect(address, "").await;
        let half = connect(address, "GET / HT").await;
        let soon = connect(address, "GET /soon HTTP/1.1\r\nHost: here\r\n\r\n").await;
        let _never = connect(address, "GET /never HTTP/1.1\r\nHost: here\r\n\r\n").await;
        tokio::select! {
            () = connections.accept(&listener) => {}
            () = sleep(Duration::from_millis(1)) => {}
        }
        stop.send_replace(true);
        assert_eq!(read(&idle).await + &read(&half).await, "");
        assert!(read(&soon).await.starts_with("HTTP/1.1 200"));
        assert_eq!(connections.end(PATIENCE).await, 1, "the last");
    }
}
