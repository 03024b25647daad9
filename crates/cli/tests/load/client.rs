//! One client: plain HTTP over a socket, which can be closed at any moment.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::work::{Job, Patience};

/// A request that has said nothing for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// How a request ended.
pub enum Ending {
    Answered(Answer),
    GivenUp,
}

/// An answer and its times from the sending of the request.
pub struct Answer {
    pub text: String,
    pub tokens: u64,
    pub first: Duration,
    pub total: Duration,
}

/// Opens a connection for every request.
pub struct Client {
    address: SocketAddr,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        Client { address }
    }

    /// Runs a job to its end, or until patience does.
    pub fn run(&self, job: &Job, patience: Option<Patience>) -> Result<Ending, String> {
        let begun = Instant::now();
        let mut socket = self.send("POST", job.path, &job.body.to_string())?;
        if let Some(Patience::Time(time)) = patience {
            std::thread::sleep(time);
            return Ok(Ending::GivenUp);
        }
        if !job.streams() {
            let body = whole(&mut socket)?;
            let value: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
            let mut answer =
                Answer { text: String::new(), tokens: 0, first: begun.elapsed(), total: begun.elapsed() };
            answer.take(&value)?;
            return Ok(Ending::Answered(answer));
        }
        let mut answer =
            Answer { text: String::new(), tokens: 0, first: Duration::ZERO, total: Duration::ZERO };
        let (mut reader, mut events, mut ended) = (BufReader::new(socket), 0, false);
        let status = line(&mut reader)?.ok_or("no reply")?;
        if !status.contains(" 200 ") {
            return Err(status);
        }
        while let Some(line) = line(&mut reader)? {
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                ended = true;
                continue;
            }
            let value: Value = serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))?;
            answer.take(&value)?;
            ended |= value["type"] == "message_stop";
            if answer.first.is_zero() && !answer.text.is_empty() {
                answer.first = begun.elapsed();
            }
            events += 1;
            if matches!(patience, Some(Patience::Events(most)) if events >= most) {
                return Ok(Ending::GivenUp);
            }
        }
        if !ended {
            return Err(format!("the stream broke off after {events} events"));
        }
        answer.total = begun.elapsed();
        if answer.first.is_zero() {
            answer.first = answer.total;
        }
        Ok(Ending::Answered(answer))
    }

    /// The body of a reply to `GET`.
    pub fn get(&self, path: &str) -> Result<String, String> {
        whole(&mut self.send("GET", path, "")?)
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Result<TcpStream, String> {
        let fail = |error: std::io::Error| format!("{method} {path}: {error}");
        let mut socket = TcpStream::connect(self.address).map_err(fail)?;
        socket.set_read_timeout(Some(STUCK_AFTER)).map_err(fail)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes())).map_err(fail)?;
        Ok(socket)
    }
}

impl Answer {
    /// What one object of any dialect adds: text outside reasoning, and tokens used.
    fn take(&mut self, value: &Value) -> Result<(), String> {
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(value.to_string());
        }
        let choice = &value["choices"][0];
        let parts = [
            &choice["delta"]["content"],
            &choice["message"]["content"],
            &choice["text"],
            &value["delta"]["text"],
        ];
        let blocks = value["content"].as_array().into_iter().flatten().map(|block| &block["text"]);
        for text in parts.into_iter().chain(blocks).filter_map(Value::as_str) {
            self.text.push_str(text);
        }
        let usage = &value["usage"];
        let tokens = usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64());
        self.tokens = tokens.unwrap_or(self.tokens);
        Ok(())
    }
}

/// The body of a reply that must be a success.
fn whole(socket: &mut TcpStream) -> Result<String, String> {
    let mut reply = String::new();
    socket.read_to_string(&mut reply).map_err(stuck)?;
    let (head, body) = reply.split_once("\r\n\r\n").ok_or("no reply")?;
    if head.starts_with("HTTP/1.1 200 ") { Ok(body.to_owned()) } else { Err(reply.clone()) }
}

/// The next line; chunks of a chunked body are lines among others and mean nothing here.
fn line(reader: &mut BufReader<TcpStream>) -> Result<Option<String>, String> {
    let mut line = String::new();
    match reader.read_line(&mut line).map_err(stuck)? {
        0 => Ok(None),
        _ => Ok(Some(line.trim_end().to_owned())),
    }
}

fn stuck(error: std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("stuck: nothing for {STUCK_AFTER:?}"),
        _ => error.to_string(),
    }
}
