//! A crowd of clients at the real server on the loopback interface: mixed requests, mixed lengths, and
//! some who go away in the queue, in the prompt or in the middle of an answer.
//!
//!     cargo test --release -p shamrock-cli --test load -- --seconds 600
//!
//! It fails on any error, on an answer that differs from the one the request gets alone, on a request
//! that does not end, on memory that goes on growing, on a connection that is left open, and on a server
//! that does not end when told to.

#![allow(unreachable_pub, reason = "a test has no outside: pub marks what its modules share")]

mod client;
mod memory;
mod report;
mod server;
mod work;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;

use client::{Client, Ending};
use memory::Memory;
use report::{Phase, report};
use server::Server;
use work::{Job, Random, jobs};

/// Of a hundred requests so many are given up.
const GIVEN_UP: u64 = 15;
/// The server has to be idle again so soon after the last client.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Options {
    /// How long the crowd stays
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// How long one client asks alone before that, each request once at least
    #[arg(long, default_value_t = 0)]
    alone: u64,
    /// Clients at once
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// Answers that the server makes at once
    #[arg(long, default_value_t = 8)]
    parallel: u64,
    #[command(flatten)]
    harness: Harness,
}

/// What `cargo test` may say to any test; this one is run whole or not at all.
#[derive(clap::Args)]
#[command(next_help_heading = "As of other tests")]
struct Harness {
    filters: Vec<String>,
    #[arg(long)]
    list: bool,
    #[arg(long)]
    ignored: bool,
    #[arg(long)]
    include_ignored: bool,
    #[arg(long)]
    exact: bool,
    #[arg(long, alias = "show-output")]
    nocapture: bool,
    #[arg(short, long)]
    quiet: bool,
    #[arg(long)]
    test_threads: Option<String>,
    #[arg(long)]
    skip: Vec<String>,
    #[arg(long)]
    format: Option<String>,
}

fn main() {
    let options = Options::parse();
    let Harness { filters, list, ignored, skip, .. } = &options.harness;
    let names_us = |filter: &String| "load".contains(filter.as_str());
    if *list {
        println!("load: test");
    } else if !*ignored && (filters.is_empty() || filters.iter().any(names_us)) && !skip.iter().any(names_us)
    {
        run(&options);
    }
}

fn run(options: &Options) {
    let server = Server::start(options.parallel, options.clients);
    let jobs = jobs();
    let alone = one_at_a_time(&server, &jobs, Duration::from_secs(options.alone));
    let open = server.descriptors();
    let memory = Memory::watch(server.pid());
    let crowd = crowd(&server, &jobs, &alone, options);
    let memory = memory.stop();
    server.settles(SETTLES_WITHIN, open);
    let counts = server.counts();
    server.ends();

    println!("{}", report(&alone, &crowd, &memory, options.clients));
    let wrong = crowd.problems.iter().chain(&alone.problems).take(10).cloned().collect::<Vec<_>>();
    assert!(wrong.is_empty(), "problems:\n{}", wrong.join("\n"));
    assert!(crowd.answers.len() > jobs.len() && crowd.given_up > 0, "too little happened to tell anything");
    assert_eq!(counts.failed, 0.0, "answers failed");
    assert_eq!(counts.refused, 0.0, "the queue has a place for every client");
    if let Some(growth) = memory.growth() {
        assert!(growth.is_bounded(), "memory goes on growing: {growth}");
    }
}

/// Every job by itself, again and again: what the crowd's answers and times are held against.
fn one_at_a_time(server: &Server, jobs: &[Job], time: Duration) -> Phase {
    let client = Client::new(server.address());
    let mut phase = Phase::begin();
    client.run(&jobs[0], None).unwrap_or_else(|problem| panic!("{problem}"));
    phase.restart();
    let begun = Instant::now();
    loop {
        for job in jobs {
            match client.run(job, None) {
                Ok(Ending::Answered(answer)) => phase.answers.push((job.id, answer)),
                Ok(Ending::GivenUp) => {}
                Err(problem) => phase.problems.push(format!("{} alone: {problem}", job.id)),
            }
        }
        if begun.elapsed() >= time {
            return phase.end();
        }
    }
}

fn crowd(server: &Server, jobs: &[Job], alone: &Phase, options: &Options) -> Phase {
    let phase = Mutex::new(Phase::begin());
    let until = Instant::now() + Duration::from_secs(options.seconds);
    std::thread::scope(|scope| {
        for number in 0..options.clients {
            let phase = &phase;
            scope.spawn(move || {
                let (client, mut random) = (Client::new(server.address()), Random::new(number));
                while Instant::now() < until {
                    let job = &jobs[random.below(jobs.len() as u64) as usize];
                    let patience = (random.below(100) < GIVEN_UP).then(|| random.patience());
                    let result = client.run(job, patience);
                    let mut phase = phase.lock().unwrap();
                    match result {
                        Ok(Ending::GivenUp) => phase.given_up += 1,
                        Ok(Ending::Answered(answer)) => {
                            let expected = alone.answers.iter().find(|(id, _)| *id == job.id);
                            let same = expected.is_none_or(|(_, expected)| expected.text == answer.text);
                            if job.repeatable && !same {
                                phase.problems.push(format!("{}: {:?} in the crowd", job.id, answer.text));
                            }
                            phase.answers.push((job.id, answer));
                        }
                        Err(problem) => phase.problems.push(format!("{}: {problem}", job.id)),
                    }
                }
            });
        }
    });
    phase.into_inner().unwrap().end()
}
