//! `serve` as a process: what it refuses, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use shamrock_testkit::root;

fn serve(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shamrock"));
    command
        .args(["serve", "--port", "0", "--backend", "cpu"])
        .args(args)
        .arg(root().join("models/clover-nano.cmf"))
        .env("SHAMROCK_CONFIG", "/dev/null")
        .stdin(Stdio::null());
    command
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for (args, said) in [
        (["--timeout", "0"], "at least 1"),
        (["--stall", "0"], "at least 1"),
        (["-n", "0"], "at least 1"),
        (["--cors-origin", "foo"], "https://example.org"),
        (["--allow-host", "https://example.org"], "without a port"),
        (["--mode", "magic"], "denoise, draft, causal, auto"),
        (["--name", ""], "at least one letter"),
    ] {
        let output = serve(&args).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(said), "{args:?}: {told}");
        assert!(told.starts_with(&format!("error: invalid value '{}'", args[1])), "{told}");
    }
}

#[test]
fn a_context_without_room_for_any_answer_is_refused() {
    let told = |ctx: &str| {
        let output = serve(&["--ctx", ctx]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let shortest = told("1");
    assert!(shortest.starts_with("error: --ctx 1: nothing can be served"), "{shortest}");
    let takes = shortest.split("takes ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(told(takes).contains("nothing can be served"));
    let enough = takes.parse::<usize>().unwrap() + 1;
    Server::start(&["--ctx", &enough.to_string()]);
}

/// A server and what it says, line by line; ended when dropped.
struct Server {
    process: Child,
    told: BufReader<ChildStderr>,
}

impl Server {
    fn start(args: &[&str]) -> (Server, String) {
        let mut process = serve(args).stderr(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(process.stderr.take().unwrap());
        let mut server = Server { process, told };
        let line = server.line();
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split(',').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        (server, address)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line
    }

    fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_second_request_to_end_is_heeded_at_once() {
    let (mut server, address) = Server::start(&["--drain", "3600"]);
    let body = r#"{"prompt": "Once", "max_tokens": 1000000, "stream": true, "shamrock": {"mode": "causal", "ignore_eos": true}}"#;
    let mut socket = TcpStream::connect(&address).unwrap();
    write!(
        socket,
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut head = [0; 12];
    socket.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    server.terminate();
    assert!(server.line().starts_with("shutting down"));
    assert!(server.process.try_wait().unwrap().is_none(), "the answer is still in the making");
    server.terminate();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = server.process.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "an hour is what the first one leaves");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(130));
}
