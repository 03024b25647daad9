//! `shamrock pull` against a hub on the loopback interface that can be as unreliable as the real world.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use shamrock_testkit::fixture;

/// What came in: path, byte to start from, `Authorization`.
#[derive(Clone, Debug, PartialEq)]
struct Request {
    path: String,
    start: Option<usize>,
    token: Option<String>,
}

/// What goes out.
#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Stop after so many bytes of the body: hang up, or say nothing more.
    cut: Option<(usize, Cut)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Cut {
    HangUp,
    Silence,
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server that answers each connection's one request.
struct Server {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (requests, handler): (Arc<Mutex<Vec<Request>>>, Arc<Handler>) =
            (Arc::default(), Arc::new(handler));
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, handler) = (seen.clone(), handler.clone());
                std::thread::spawn(move || serve(stream, &seen, &*handler));
            }
        });
        Server { address, requests }
    }

    /// Requests for contents, not for listings.
    fn downloads(&self) -> Vec<Request> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| !request.path.starts_with("/api/")).cloned().collect()
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Request>>, handler: &Handler) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let headers: HashMap<String, String> = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(k, v)| (k.to_lowercase(), v.to_owned())))
        .collect();
    let start = headers.get("range").map(|range| {
        range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')).unwrap().parse().unwrap()
    });
    let path = first.split(' ').nth(1).unwrap().to_owned();
    let request = Request { path, start, token: headers.get("authorization").cloned() };
    seen.lock().unwrap().push(request.clone());
    let reply = handler(&request);
    let mut head = format!("HTTP/1.1 {} X\r\ncontent-length: {}\r\n", reply.status, reply.body.len());
    for (name, value) in reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let (len, cut) =
        reply.cut.map_or((reply.body.len(), None), |(at, cut)| (at.min(reply.body.len()), Some(cut)));
    let _ = stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(&reply.body[..len]);
    let _ = stream.flush();
    if cut == Some(Cut::Silence) {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn status(status: u16) -> Reply {
    Reply { status, ..Reply::default() }
}

fn error(code: u16, name: &str) -> Reply {
    Reply { headers: vec![("x-error-code", name.into())], ..status(code) }
}

/// A file's bytes from where the request wants them.
fn content(bytes: &[u8], request: &Request) -> Reply {
    match request.start {
        None => Reply { body: bytes.to_vec(), ..status(200) },
        Some(start) => Reply {
            body: bytes[start..].to_vec(),
            headers: vec![("content-range", format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len()))],
            ..status(206)
        },
    }
}

/// The listing of a repository with large files.
fn listing(files: &[(&str, &[u8])]) -> Reply {
    let siblings: Vec<String> = files
        .iter()
        .map(|(name, bytes)| {
            let hash = format!("{:x}", Sha256::digest(bytes));
            let size = bytes.len();
            format!(r#"{{"rfilename":"{name}","size":{size},"lfs":{{"sha256":"{hash}","size":{size}}}}}"#)
        })
        .collect();
    let body = format!(r#"{{"sha":"c0ffee","siblings":[{}]}}"#, siblings.join(","));
    Reply { body: body.into_bytes(), ..status(200) }
}

/// The program, with a place of its own for models.
struct Client {
    home: tempfile::TempDir,
    endpoint: String,
}

impl Client {
    fn of(server: &Server) -> Client {
        Client { home: tempfile::tempdir().unwrap(), endpoint: format!("http://{}", server.address) }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shamrock"));
        command.args(args);
        self.at_home(command)
    }

    /// A command with nothing of the environment that `pull` heeds but what is this client's.
    fn at_home(&self, mut command: Command) -> Command {
        command.env("XDG_DATA_HOME", self.home.path()).env("SHAMROCK_CONFIG", "/dev/null");
        command.env("HF_ENDPOINT", &self.endpoint).env_remove("HF_TOKEN").env_remove("HF_TOKEN_PATH");
        // What these tests talk to is on this machine.
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(proxy).env_remove(proxy.to_lowercase());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn pull(&self, name: &str) -> Output {
        self.run(&["pull", name])
    }

    /// The one line of a refusal.
    fn refused(&self, name: &str) -> String {
        let output = self.pull(name);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
        told
    }

    fn folder(&self, repo: &str) -> PathBuf {
        self.home.path().join("shamrock/models").join(repo)
    }
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn model() -> Vec<u8> {
    fs::read(fixture("small/model.q4tp.cmf")).unwrap()
}

/// Names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .map(|entries| entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

#[test]
fn a_pulled_model_is_found_by_its_name_and_not_pulled_twice() {
    let bytes = model();
    let server = Server::start(move |request| match request.path.as_str() {
        "/api/models/a/nano/revision/main?blobs=true" => {
            listing(&[("README.md", b"x"), ("nano.cmf", &bytes)])
        }
        "/a/nano/resolve/c0ffee/nano.cmf" => content(&bytes, request),
        _ => status(404),
    });
    let client = Client::of(&server);
    let missing = client.run(&["info", "a/nano"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("shamrock pull a/nano"));

    assert!(succeeded(&client.pull("a/nano")).contains("the hash matches"));
    assert_eq!(names(&client.folder("a/nano")), ["nano.cmf"]);
    assert_eq!(fs::read(client.folder("a/nano").join("nano.cmf")).unwrap(), model());
    for name in ["a/nano", "a/nano:nano.cmf"] {
        assert!(succeeded(&client.run(&["info", name])).contains("diffusion"));
        assert!(succeeded(&client.run(&["verify", name])).contains("all hashes match"));
    }
    assert!(succeeded(&client.pull("a/nano")).contains("is here already"));
    assert_eq!(server.downloads().len(), 1);

    // A file that is not the hub's is replaced.
    fs::write(client.folder("a/nano").join("nano.cmf"), vec![7; model().len()]).unwrap();
    succeeded(&client.pull("a/nano:nano.cmf"));
    assert_eq!(fs::read(client.folder("a/nano").join("nano.cmf")).unwrap(), model());
}

#[test]
fn a_broken_download_goes_on_where_it_was() {
    let bytes = model();
    let third = bytes.len() / 3;
    let server = Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/api/") => listing(&[("m.cmf", &bytes)]),
        _ => Reply { cut: Some((third, Cut::HangUp)), ..content(&bytes, request) },
    });
    let client = Client::of(&server);
    succeeded(&client.pull("a/b"));
    assert_eq!(fs::read(client.folder("a/b").join("m.cmf")).unwrap(), model());
    let starts: Vec<usize> = server.downloads().iter().map(|request| request.start.unwrap()).collect();
    assert_eq!(starts, [0, third, 2 * third, 3 * third][..starts.len()]);
    assert!(starts.len() >= 3);
}

#[test]
fn a_killed_pull_goes_on_where_it_was() {
    let bytes = model();
    let half = bytes.len() / 2;
    let server = Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/api/") => listing(&[("m.cmf", &bytes)]),
        _ if request.start == Some(0) => {
            Reply { cut: Some((half, Cut::Silence)), ..content(&bytes, request) }
        }
        _ => content(&bytes, request),
    });
    let client = Client::of(&server);
    let mut child = Killed(client.command(&["pull", "a/b"]).spawn().unwrap());
    let folder = client.folder("a/b");
    let written = || fs::read_dir(&folder).ok()?.next()?.ok()?.metadata().ok().map(|m| m.len() as usize);
    let begun = Instant::now();
    while written() != Some(half) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", child.0.try_wait());
        std::thread::sleep(Duration::from_millis(10));
    }
    // Two at once would write over each other.
    assert!(client.refused("a/b").contains("another pull"));
    drop(child);
    assert!(names(&folder)[0].ends_with(".part"));
    succeeded(&client.pull("a/b"));
    assert_eq!(names(&folder), ["m.cmf"]);
    assert_eq!(fs::read(folder.join("m.cmf")).unwrap(), model());
    assert_eq!(server.downloads().last().unwrap().start, Some(half));
}

/// On a terminal, which `script` of util-linux makes: a bar that says of which file how much has come.
#[cfg(target_os = "linux")]
#[test]
fn progress_is_drawn() {
    let bytes = model();
    let (total, half) = (bytes.len() as u64, bytes.len() / 2);
    let server = Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/api/") => listing(&[("m.cmf", &bytes)]),
        _ => Reply { cut: Some((half, Cut::Silence)), ..content(&bytes, request) },
    });
    let client = Client::of(&server);
    let pull = format!("'{}' pull a/b", env!("CARGO_BIN_EXE_shamrock"));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &pull, "/dev/null"]).env("TERM", "xterm");
    let mut child = Killed(client.at_home(script).spawn().unwrap());
    let want = format!("{}/{}", HumanBytes(half as u64), HumanBytes(total));
    let (mut drawn, mut piece) = (String::new(), [0; 4096]);
    let mut terminal = child.0.stdout.take().unwrap();
    while !drawn.contains(&want) {
        let read = terminal.read(&mut piece).unwrap();
        assert!(read > 0, "{want} was not drawn: {drawn:?}");
        drawn.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    assert!(drawn.contains("m.cmf"), "{drawn:?}");
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn wrong_contents_never_get_into_place() {
    let bytes = model();
    let server = Server::start(move |request| {
        let mut wrong = bytes.clone();
        wrong[99] ^= 1;
        match request.path.as_str() {
            path if path.starts_with("/api/models/a/long") => listing(&[("m.cmf", &bytes[1..])]),
            path if path.starts_with("/api/") => listing(&[("m.cmf", &bytes)]),
            _ => content(&wrong, request),
        }
    });
    let client = Client::of(&server);
    assert!(client.refused("a/b").contains("m.cmf: what came has another hash"));
    assert_eq!(names(&client.folder("a/b")), [""; 0]);
    assert!(client.refused("a/long").contains("sends more than"));
    assert!(!client.folder("a/long").join("m.cmf").exists());
}

#[test]
fn refusals_say_what_to_do() {
    let server = Server::start(|request| {
        let repo = request.path.split('/').nth(4).unwrap_or_default().to_owned();
        match (repo.as_str(), &request.token) {
            ("gated", None) => error(401, "GatedRepo"),
            ("gated", Some(_)) => error(403, "GatedRepo"),
            ("private", _) => error(401, "RepoNotFound"),
            ("odd", _) => error(404, "RevisionNotFound"),
            ("many", _) => listing(&[("a.cmf", b"1"), ("b.cmf", b"2")]),
            ("none", _) => listing(&[("README.md", b"1")]),
            ("evil", _) => listing(&[("../../evil.cmf", b"1")]),
            ("html", _) => Reply { body: b"<html>".to_vec(), ..status(200) },
            _ => error(404, "RepoNotFound"),
        }
    });
    let client = Client::of(&server);
    for (name, message) in [
        ("a/gated", "accept its conditions at http://"),
        ("a/private", "no such repository, or a private one"),
        ("a/odd", "has no main"),
        ("a/missing", "/a/missing: not found"),
        ("a/many", "name one: a/many:FILE with a.cmf (1 B), b.cmf (1 B)"),
        ("a/many:c.cmf", "a/many has no c.cmf"),
        ("a/none", "neither a model file (.cmf) nor safetensors"),
        ("a/evil", "cannot be kept"),
        ("a/html", "not the listing of a model repository"),
    ] {
        let told = client.refused(name);
        assert!(told.contains(message), "{name}: {told}");
    }
    assert!(!client.home.path().join("shamrock").exists(), "a refusal leaves nothing behind");
    let output = client.command(&["pull", "a/private"]).env("HF_TOKEN", "secret").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("the token does not open it") && !told.contains("secret"), "{told}");
    let nobody = Client { home: tempfile::tempdir().unwrap(), endpoint: "http://not-a-host.invalid".into() };
    assert!(nobody.refused("a/b").contains("asking http://not-a-host.invalid"));
    assert_eq!(client.run(&["pull", "../x"]).status.code(), Some(2));
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let bytes = model();
    let store = {
        let bytes = bytes.clone();
        Server::start(move |request| content(&bytes, request))
    };
    let port = store.address.rsplit(':').next().unwrap().to_owned();
    let server = Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/api/") => listing(&[("m.cmf", &bytes)]),
        "/a/b/resolve/c0ffee/m.cmf" => {
            Reply { headers: vec![("location", format!("http://localhost:{port}/blob"))], ..status(302) }
        }
        _ => status(404),
    });
    let client = Client::of(&server);
    let output = client.command(&["pull", "a/b"]).env("HF_TOKEN", "secret").output().unwrap();
    succeeded(&output);
    let all = server.requests.lock().unwrap().clone();
    assert!(all.len() == 2 && all.iter().all(|request| request.token.as_deref() == Some("Bearer secret")));
    assert_eq!(store.downloads(), [Request { path: "/blob".into(), start: Some(0), token: None }]);
}

#[test]
fn a_checkpoint_comes_whole_and_small_files_are_checked_too() {
    const FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];
    let read = |name: &str| fs::read(fixture("small/hf").join(name)).unwrap();
    let server = Server::start(move |request| {
        if !request.path.starts_with("/api/") {
            return content(&read(request.path.rsplit('/').next().unwrap()), request);
        }
        let siblings: Vec<String> = FILES
            .iter()
            .map(|name| {
                let bytes = read(name);
                let blob = Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(&bytes);
                let (size, blob) = (bytes.len(), blob.finalize());
                format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{blob:x}"}}"#)
            })
            .collect();
        let body = format!(r#"{{"sha":"c0ffee","siblings":[{}]}}"#, siblings.join(","));
        Reply { body: body.into_bytes(), ..status(200) }
    });
    let client = Client::of(&server);
    assert!(succeeded(&client.pull("a/hf")).contains("shamrock convert "));
    let (hf, out) = (client.folder("a/hf"), client.home.path().join("out.cmf"));
    assert_eq!(names(&hf), ["config.json", "model.safetensors", "tokenizer.json"]);
    succeeded(&client.run(&["convert", hf.to_str().unwrap(), out.to_str().unwrap()]));
}

/// The part is a link to a device on which there is never room.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let bytes = model();
    let hash = format!("{:x}", Sha256::digest(&bytes));
    let server = Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/api/") => listing(&[("m.cmf", &bytes)]),
        _ => content(&bytes, request),
    });
    let client = Client::of(&server);
    let folder = client.folder("a/b");
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.join(format!("m.cmf.{}.part", &hash[..16]))).unwrap();
    assert!(client.refused("a/b").contains("no room"));
}
