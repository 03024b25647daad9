//! `run --session`: a conversation in a file, with the states that spare it its earlier turns.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use shamrock_generate::Session;
use shamrock_model::{Executor, Origin, StateReader, StateWriter};
use shamrock_text::Message;

use crate::output::noteln;

/// The file of one conversation.
pub struct SessionFile {
    path: PathBuf,
    origin: Origin,
}

/// That there is a folder to keep the file in, before an answer is made that would be lost.
pub fn check_place(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "--session {}: there is no folder {}", path.display(), folder.display());
    Ok(())
}

/// What the file notes beside the states.
#[derive(Serialize, Deserialize)]
struct Note<'a> {
    messages: std::borrow::Cow<'a, [Message]>,
}

impl SessionFile {
    /// The file at `path`, which need not exist, for states of this origin.
    pub fn new(path: PathBuf, origin: Origin) -> SessionFile {
        SessionFile { path, origin }
    }

    /// The messages of the conversation so far; the session gets the states. States that cannot be used
    /// are done without: the messages are then read anew, with the same result.
    ///
    /// # Errors
    /// Another kind of file, another model's conversation, damage that reaches the messages.
    pub fn load(&self, executor: &mut dyn Executor, session: &mut Session) -> Result<Vec<Message>> {
        let place = || self.path.display().to_string();
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            file => file.with_context(place)?,
        };
        let metadata = file.metadata().with_context(place)?;
        ensure!(metadata.is_file(), "{}: not a regular file", place());
        let mut reader = StateReader::new(BufReader::new(file), metadata.len())
            .with_context(|| format!("{}: no conversation to go on with", place()))?;
        if reader.origin().model != self.origin.model {
            bail!("{}: this is a conversation with another model; name another file", place());
        }
        let note: Note<'_> = serde_json::from_slice(reader.note())
            .with_context(|| format!("{}: the messages in it", place()))?;
        let states = if reader.origin().engine == self.origin.engine {
            resume(&mut reader, executor, session)
        } else {
            Err(anyhow!("its states are of {}, this is {}", reader.origin().engine, self.origin.engine))
        };
        if let Err(error) = states {
            session.close(executor);
            noteln(&format!("note: {}: {error:#}; reading its messages again", place()));
        }
        Ok(note.messages.into_owned())
    }

    /// Writes the conversation, in place of what the file held.
    pub fn save(&self, executor: &mut dyn Executor, session: &Session, messages: &[Message]) -> Result<()> {
        let partial = appended(&self.path, ".partial");
        let written = self.write(&partial, executor, session, messages).and_then(|()| {
            fs::rename(&partial, &self.path)?;
            Ok(())
        });
        written
            .inspect_err(|_| drop(fs::remove_file(&partial)))
            .with_context(|| format!("saving the conversation in {}", self.path.display()))
    }

    fn write(
        &self,
        partial: &Path,
        executor: &mut dyn Executor,
        session: &Session,
        messages: &[Message],
    ) -> Result<()> {
        let note = serde_json::to_vec(&Note { messages: messages.into() })?;
        let file = private(OpenOptions::new().write(true).create(true).truncate(true)).open(partial)?;
        let records = session.states() as u32;
        let mut writer = StateWriter::new(BufWriter::new(file), &self.origin, &note, records)?;
        session.save(executor, |ids, state| Ok::<(), Error>(writer.push(ids, state)?))?;
        let mut file = writer.into_inner();
        file.flush()?;
        Ok(file.get_ref().sync_all()?)
    }
}

fn resume(
    reader: &mut StateReader<BufReader<File>>,
    executor: &mut dyn Executor,
    session: &mut Session,
) -> Result<()> {
    while let Some((ids, state)) = reader.next(executor.config())? {
        session.resume(executor, &ids, &state)?;
    }
    Ok(())
}

/// For nobody else's eyes.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

fn appended(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(ending);
    name.into()
}
