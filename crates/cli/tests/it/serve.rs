//! `inertiakv serve` from its start to its end.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{Serving, World, stderr};

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[cfg(unix)]
#[test]
fn it_says_where_it_is_and_ends_when_told_to() {
    for signal in ["INT", "TERM"] {
        let world = World::new();
        world.tiny_model();
        let arguments = [
            "serve",
            "-m",
            "tiny.gguf",
            "--method",
            "inertia:ratio=0.5",
            "--kv-memory",
            "64MiB",
        ];
        let serving = Serving::start(&world, &arguments);
        let props = get(&serving.address, "/props");
        assert!(props.contains("\"method\":\"inertia:ratio=0.5\""), "{props}");
        assert!(props.contains("\"kv_bytes_limit\":67108864"), "{props}");
        assert!(serving.signal(signal).success(), "{signal} is a clean end");
    }
}

#[test]
fn keys_come_from_files_too() {
    let world = World::new();
    world.tiny_model();
    let keys = world.file("keys.txt", "one\n\n two \n");
    let keys = keys.to_string_lossy().into_owned();
    let serving = Serving::start(&world, &["serve", "-m", "tiny.gguf", "--api-key-file", &keys]);
    assert!(get(&serving.address, "/props").starts_with("HTTP/1.1 401"));
    assert!(get(&serving.address, "/health").starts_with("HTTP/1.1 200"));
    world.file("empty.txt", "\n");
    let refused = world.run(&["serve", "-m", "tiny.gguf", "--api-key-file", "empty.txt"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn what_cannot_be_served_is_refused() {
    let world = World::new();
    world.tiny_model();
    for (arguments, reason) in [
        (&["--kv-memory", "lots"][..], "512MiB"),
        (&["--method", "full", "--budget", "5"], "keeps everything"),
        (&["--method", "inertia:window=9999"], "window"),
        (&["--host", "nowhere"], "invalid"),
        (&["--method", "tova:interval=64"], "interval"),
        (&["--cors", "example.org"], "not an origin"),
        (&["--api-key", " "], "API key"),
    ] {
        let output = world.run(&[&["serve", "-m", "tiny.gguf"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
    }
}
