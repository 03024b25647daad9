//! One file: from where it was left, checked as it comes, in place only when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::client::{Hash, Hub, RemoteFile};

/// Attempts that bring not a byte before we give up.
const ATTEMPTS: u32 = 5;
const PIECE: usize = 256 << 10;

/// What went wrong, by whether it is worth trying again.
pub(super) enum Trouble {
    Passing(Error),
    Lasting(Error),
}

impl Trouble {
    pub(super) fn into_error(self) -> Error {
        match self {
            Trouble::Passing(error) | Trouble::Lasting(error) => error,
        }
    }
}

/// How a file came to be in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It was there, with the right hash.
    Already,
    /// It came now.
    Now,
    /// Somebody broke off; what has come stays for the next time.
    Stopped,
}

/// Hears how many bytes of the file are here; `Break` stops.
pub type OnBytes<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// Brings a file of a repository to `target`, which exists afterwards with the right contents or is as it
/// was.
///
/// # Errors
/// A refusal of the hub, no way to it for several attempts, a full disk, contents of another hash.
pub fn fetch(
    hub: &Hub,
    repo: &str,
    commit: &str,
    file: &RemoteFile,
    target: &Path,
    on_bytes: &mut OnBytes<'_>,
) -> Result<Fetched> {
    if fs::metadata(target).is_ok_and(|there| there.is_file() && there.len() == file.size) {
        let mut hasher = Hasher::new(file);
        hasher.read(File::open(target)?, file.size, on_bytes)?;
        if hasher.fits(&file.hash) {
            return Ok(Fetched::Already);
        }
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let mut part = Part::open(target, file, on_bytes)?;
    let mut failures = 0;
    while part.len < file.size {
        let before = part.len;
        match part.advance(hub, repo, commit, on_bytes) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => return Ok(Fetched::Stopped),
            Err(Trouble::Lasting(error)) => return Err(error),
            Err(Trouble::Passing(error)) => {
                failures = if part.len > before { 1 } else { failures + 1 };
                if failures >= ATTEMPTS {
                    return Err(error.context(format!("{}: gave up after {ATTEMPTS} attempts", file.name)));
                }
                tracing::info!("{error:#}; trying again");
                if wait(Duration::from_millis(500 << failures), part.len, on_bytes).is_break() {
                    return Ok(Fetched::Stopped);
                }
            }
        }
    }
    part.finish(target)?;
    Ok(Fetched::Now)
}

/// Waits, listening for somebody who wants to stop.
fn wait(time: Duration, len: u64, on_bytes: &mut OnBytes<'_>) -> ControlFlow<()> {
    const NAP: Duration = Duration::from_millis(100);
    for _ in 0..time.as_millis() / NAP.as_millis() {
        on_bytes(len)?;
        std::thread::sleep(NAP);
    }
    ControlFlow::Continue(())
}

/// The beginning of a file. Its name has the hash, so that it never goes on with another version's bytes.
struct Part<'a> {
    of: &'a RemoteFile,
    path: PathBuf,
    file: File,
    len: u64,
    hasher: Hasher,
}

impl<'a> Part<'a> {
    fn open(target: &Path, of: &'a RemoteFile, on_bytes: &mut OnBytes<'_>) -> Result<Part<'a>> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", &of.hash.hex()[..16]));
        let path = target.with_file_name(name);
        let place = || path.display().to_string();
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(&path).with_context(|| format!("opening {}", place()))?;
        if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
            bail!("{}: another pull is writing this file", place());
        }
        let mut len = file.metadata().with_context(|| format!("inspecting {}", place()))?.len();
        if len > of.size {
            file.set_len(0).with_context(|| format!("clearing {}", place()))?;
            len = 0;
        }
        let mut hasher = Hasher::new(of);
        hasher.read(&file, len, on_bytes).with_context(|| format!("reading {}", place()))?;
        file.seek(io::SeekFrom::Start(len)).with_context(|| format!("reading {}", place()))?;
        Ok(Part { of, path, file, len, hasher })
    }

    /// Takes what one request brings.
    fn advance(
        &mut self,
        hub: &Hub,
        repo: &str,
        commit: &str,
        on_bytes: &mut OnBytes<'_>,
    ) -> Result<ControlFlow<()>, Trouble> {
        let mut body = hub.read(repo, commit, self.of, self.len)?;
        let mut piece = vec![0; PIECE];
        loop {
            if on_bytes(self.len).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let n = match body.read(&mut piece) {
                Ok(0) if self.len < self.of.size => {
                    return Err(Trouble::Passing(anyhow!("{}: the connection ended early", self.of.name)));
                }
                Ok(0) => return Ok(ControlFlow::Continue(())),
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Trouble::Passing(anyhow!(error).context(self.of.name.clone())));
                }
            };
            if self.len + n as u64 > self.of.size {
                return Err(Trouble::Lasting(anyhow!(
                    "{}: the server sends more than the {} bytes it has listed",
                    self.of.name,
                    self.of.size
                )));
            }
            self.file.write_all(&piece[..n]).map_err(|error| Trouble::Lasting(self.not_written(error)))?;
            self.hasher.update(&piece[..n]);
            self.len += n as u64;
        }
    }

    fn not_written(&self, error: io::Error) -> Error {
        use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let full = matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge);
        let place = self.path.display();
        if full {
            let missing = crate::output::bytes(self.of.size - self.len);
            anyhow!(error).context(format!(
                "{place}: no room, {missing} are missing; what has come stays, pull again when there is"
            ))
        } else {
            anyhow!(error).context(format!("writing {place}"))
        }
    }

    /// Checks the whole file and puts it into its place.
    fn finish(self, target: &Path) -> Result<()> {
        if !self.hasher.fits(&self.of.hash) {
            // Nothing tells which of the bytes are wrong.
            fs::remove_file(&self.path).with_context(|| format!("removing {}", self.path.display()))?;
            bail!("{}: what came has another hash than the hub lists; pull it again", self.of.name);
        }
        self.file.sync_all().map_err(|error| self.not_written(error))?;
        fs::rename(&self.path, target).with_context(|| format!("putting {} in place", target.display()))
    }
}

/// The hash of a file as it comes.
enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    fn new(file: &RemoteFile) -> Hasher {
        match file.hash {
            Hash::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Hash::GitBlob(_) => Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {}\0", file.size))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    /// Takes `len` bytes of a file that is here already.
    fn read(&mut self, file: impl Read, len: u64, on_bytes: &mut OnBytes<'_>) -> Result<()> {
        let (mut file, mut piece, mut done) = (file.take(len), vec![0; PIECE], 0);
        loop {
            if on_bytes(done).is_break() {
                bail!("stopped");
            }
            match file.read(&mut piece)? {
                0 => return Ok(()),
                n => {
                    self.update(&piece[..n]);
                    done += n as u64;
                }
            }
        }
    }

    fn fits(&self, hash: &Hash) -> bool {
        let hex = match self {
            Hasher::Sha256(hasher) => format!("{:x}", hasher.clone().finalize()),
            Hasher::GitBlob(hasher) => format!("{:x}", hasher.clone().finalize()),
        };
        hex == hash.hex()
    }
}
