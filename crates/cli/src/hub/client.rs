//! The requests: what a repository holds, and the bytes of a file from some place on.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};

use super::download::Trouble;
use super::name::local_path;

/// A connection on which nothing comes for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// No listing of a repository is longer.
const MAX_LISTING: u64 = 64 << 20;

/// A hub, and who we are to it.
pub struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// A file of a repository at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path in the repository.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// What they hash to.
    pub hash: Hash,
}

/// The hash a hub gives for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256 of a large file, in lower-case hexadecimal.
    Sha256(String),
    /// The name of a small file's Git blob: SHA-1 of `blob SIZE\0` and the bytes.
    GitBlob(String),
}

impl Hash {
    /// The digits.
    pub fn hex(&self) -> &str {
        match self {
            Hash::Sha256(hex) | Hash::GitBlob(hex) => hex,
        }
    }
}

/// What a repository holds.
pub struct Listing {
    /// The commit that the revision stands for now.
    pub commit: String,
    /// Its files, as the hub lists them.
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Hub {
    /// A hub at an address such as `https://huggingface.co`.
    pub fn new(endpoint: &str, token: Option<String>) -> Hub {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Large files lie on other hosts, to whom the token must not go.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .user_agent(concat!("shamrock/", env!("CARGO_PKG_VERSION")))
            .build();
        Hub { agent: config.into(), endpoint: endpoint.trim_end_matches('/').to_owned(), token }
    }

    /// The files of a repository.
    ///
    /// # Errors
    /// A repository that is not there or not open to us, a hub that cannot be reached.
    pub fn list(&self, repo: &str, revision: &str) -> Result<Listing> {
        let url = format!("{}/api/models/{repo}/revision/{}?blobs=true", self.endpoint, segment(revision));
        let response = self.get(&url, None).map_err(Trouble::into_error)?;
        let response = self.accept(response, repo, revision).map_err(Trouble::into_error)?;
        let text = response.into_body().into_with_config().limit(MAX_LISTING).read_to_vec();
        let text = text.with_context(|| format!("reading what {repo} holds"))?;
        let info: Info = serde_json::from_slice(&text)
            .with_context(|| format!("{url}: this is not the listing of a model repository"))?;
        let files = info.siblings.into_iter().map(Sibling::file).collect::<Result<_>>()?;
        Ok(Listing { commit: info.sha, files })
    }

    /// The bytes of a file from `start` on.
    pub(super) fn read(
        &self,
        repo: &str,
        commit: &str,
        file: &RemoteFile,
        start: u64,
    ) -> Result<impl Read + use<>, Trouble> {
        let path: Vec<String> = file.name.split('/').map(segment).collect();
        let url = format!("{}/{repo}/resolve/{}/{}", self.endpoint, segment(commit), path.join("/"));
        let response = self.accept(self.get(&url, Some(start))?, repo, &file.name)?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            if start > 0 {
                return Err(Trouble::Lasting(anyhow!(
                    "{url}: the server gives whole files only, so this download cannot go on; \
                     remove the .part file and pull again"
                )));
            }
        } else if let Some(range) = response.headers().get("content-range") {
            let begins = format!("bytes {start}-");
            if !range.to_str().is_ok_and(|range| range.starts_with(&begins)) {
                return Err(Trouble::Passing(anyhow!(
                    "{url}: the server sent {range:?} instead of {begins}"
                )));
            }
        }
        // One byte more than there should be tells a file that is too long.
        let rest = file.size.saturating_sub(start).saturating_add(1);
        Ok(response.into_body().into_with_config().limit(u64::MAX).reader().take(rest))
    }

    fn get(&self, url: &str, start: Option<u64>) -> Result<Response<ureq::Body>, Trouble> {
        let mut request = self.agent.get(url);
        if let Some(start) = start {
            request = request.header("range", format!("bytes={start}-"));
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| match error {
            ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => {
                Trouble::Passing(anyhow!(error).context(format!("asking {url}")))
            }
            error => Trouble::Lasting(anyhow!(error).context(format!("asking {url}"))),
        })
    }

    /// The response if it is the one that was asked for; otherwise what its status means.
    fn accept(
        &self,
        response: Response<ureq::Body>,
        repo: &str,
        what: &str,
    ) -> Result<Response<ureq::Body>, Trouble> {
        let status = response.status();
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or("");
        let page = format!("{}/{repo}", self.endpoint);
        let with_token = "give a token of yours in HF_TOKEN or with --token-file";
        Err(Trouble::Lasting(match status.as_u16() {
            200 | 206 => return Ok(response),
            401 | 403 if code == "GatedRepo" => {
                anyhow!("{repo} is gated: accept its conditions at {page}, then {with_token}")
            }
            401 | 403 if self.token.is_some() => {
                anyhow!("{repo}: no such repository, or the token does not open it ({status})")
            }
            401 | 403 => anyhow!("{repo}: no such repository, or a private one: {with_token}"),
            404 if matches!(code, "RevisionNotFound" | "EntryNotFound") => anyhow!("{repo} has no {what}"),
            404 => anyhow!("{page}: not found"),
            408 | 429 | 500.. => {
                return Err(Trouble::Passing(anyhow!("{page}: the server answers {status}")));
            }
            _ => anyhow!("{page}: the server answers {status}"),
        }))
    }
}

impl Sibling {
    fn file(self) -> Result<RemoteFile> {
        let Sibling { rfilename: name, size, blob_id, lfs } = self;
        local_path(&name)
            .map_err(|problem| anyhow!("the hub lists a file that cannot be kept: {problem}"))?;
        let (size, hash) = match (lfs, size, blob_id) {
            (Some(lfs), ..) => (lfs.size, Hash::Sha256(lfs.sha256)),
            (None, Some(size), Some(blob)) => (size, Hash::GitBlob(blob)),
            _ => bail!("{name}: the hub gives neither size nor hash"),
        };
        let digits = if matches!(hash, Hash::Sha256(_)) { 64 } else { 40 };
        let hex = |c: char| c.is_ascii_digit() || matches!(c, 'a'..='f');
        if hash.hex().len() != digits || !hash.hex().chars().all(hex) {
            bail!("{name}: the hub gives {:?} for a hash", hash.hex());
        }
        Ok(RemoteFile { name, size, hash })
    }
}

/// One segment of a URL's path.
fn segment(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
