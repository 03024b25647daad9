//! The server: a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use shamrock_testkit::root;

use super::client::Client;

/// A running `shamrock serve`; ended when dropped.
pub struct Server {
    process: Child,
    address: SocketAddr,
}

/// Counters of a server.
pub struct Counts {
    pub failed: f64,
    pub refused: f64,
}

impl Server {
    pub fn start(parallel: u64, clients: u64) -> Server {
        let mut process = Command::new(env!("CARGO_BIN_EXE_shamrock"))
            .args(["serve", "--port", "0", "--prefix-cache", "16", "--backend", "cpu"])
            .args(["--parallel", &parallel.to_string(), "--queue", &clients.to_string()])
            .arg(root().join("models/clover-nano.cmf"))
            .env("SHAMROCK_CONFIG", "/dev/null")
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(process.stderr.take().expect("standard error")).lines();
        let mut told = Vec::new();
        let address = loop {
            let line = lines.next().and_then(Result::ok).unwrap_or_else(|| panic!("no server: {told:?}"));
            let address =
                line.split_once("http://").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
            if let Some(address) = address {
                break address;
            }
            told.push(line);
        };
        // What it says from now on belongs to the test's own output.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("server: {line}")));
        Server { process, address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Files and sockets that it has open; none where the system does not tell.
    pub fn descriptors(&self) -> Option<usize> {
        Some(std::fs::read_dir(format!("/proc/{}/fd", self.pid())).ok()?.count())
    }

    /// Waits until nothing is being made, nobody waits, and no more is open than was before.
    pub fn settles(&self, within: Duration, open: Option<usize>) {
        let begun = Instant::now();
        loop {
            let metrics = self.get("/metrics");
            let busy =
                value(&metrics, "shamrock_active_sequences") + value(&metrics, "shamrock_queue_length");
            if busy == 0.0 {
                break;
            }
            assert!(begun.elapsed() < within, "{busy} answers are left without a client");
            std::thread::sleep(Duration::from_millis(50));
        }
        while self.descriptors() > open {
            assert!(
                begun.elapsed() < within,
                "{:?} descriptors are left, {open:?} before",
                self.descriptors()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        self.get("/health");
    }

    pub fn counts(&self) -> Counts {
        let metrics = self.get("/metrics");
        Counts {
            failed: value(&metrics, "shamrock_answers_total{finish=\"error\"}"),
            refused: value(&metrics, "shamrock_refused_total"),
        }
    }

    fn get(&self, path: &str) -> String {
        Client::new(self.address).get(path).unwrap_or_else(|problem| panic!("{path}: {problem}"))
    }

    /// Tells the server to end, which it must do at once: nobody is there.
    pub fn ends(mut self) {
        let sent = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()));
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                break status;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The value of a metric.
fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
}
