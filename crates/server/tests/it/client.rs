//! A client of a few lines: what goes over the wire is in plain sight, and can be wrong on purpose.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    head: Vec<String>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }

    /// The JSON of an answer that must have succeeded.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Status, field and message of an error in the shape of `OpenAI`.
    pub(crate) fn error(&self) -> (u16, Option<String>, String) {
        let error = &self.json()["error"];
        assert!(error["type"].is_string(), "{}", self.body);
        let message = error["message"].as_str().expect("a message").to_owned();
        (self.status, error["param"].as_str().map(str::to_owned), message)
    }

    /// The data of a stream of events, the end mark excluded, which must be there.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{}", self.body);
        let mut data: Vec<&str> = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter()
            .map(|text| serde_json::from_str(text).expect("JSON"))
            .collect()
    }
}

/// A connection on which a request has been sent.
pub(crate) struct Sent {
    stream: BufReader<TcpStream>,
}

/// Sends a request; headers are whole lines.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, headers: &[&str], body: &str) -> Sent {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n");
    if !body.is_empty() {
        head.extend([
            "Content-Type: application/json\r\nContent-Length: ",
            &body.len().to_string(),
            "\r\n",
        ]);
    }
    for line in headers {
        head += line;
        head += "\r\n";
    }
    // A server that refuses may have closed before everything was sent.
    let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
    Sent {
        stream: BufReader::new(stream),
    }
}

impl Sent {
    /// The next line, without its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Everything that comes.
    pub(crate) fn response(mut self) -> Response {
        let first = self.line();
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut head = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        let chunked = head
            .iter()
            .any(|line| line.eq_ignore_ascii_case("transfer-encoding: chunked"));
        let mut body = Vec::new();
        if chunked {
            while let Ok(length @ 1..) = usize::from_str_radix(&self.line(), 16) {
                let mut chunk = vec![0; length];
                self.stream.read_exact(&mut chunk).expect("a whole chunk");
                body.extend(chunk);
                self.line();
            }
        } else {
            self.stream.read_to_end(&mut body).expect("the body");
        }
        Response {
            status: status.unwrap_or_else(|| panic!("no status in {first:?}")),
            head,
            body: String::from_utf8(body).expect("valid UTF-8"),
        }
    }
}
