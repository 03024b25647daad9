//! The terminal while it is ours: raw keys, the alternate screen, and both given back however we leave.

use std::io::{BufWriter, IsTerminal, Stderr, stderr};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};

/// Whether the terminal has to be given back.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// What a person can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Ctrl-C.
    Stop,
    Leave,
    Back,
    Forward,
    First,
    Last,
    Play,
}

/// The terminal, taken over until this is dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>,
    _given_back: GiveBack,
}

/// Gives the terminal back.
struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        give_back();
    }
}

impl Screen {
    /// Takes the terminal over.
    pub fn open() -> Result<Screen> {
        check()?;
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            // The message of a panic would be lost with the alternate screen.
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                report(panic);
            }));
        });
        TAKEN.store(true, Ordering::SeqCst);
        let given_back = GiveBack;
        enable_raw_mode().context("--watch: reading keys from the terminal")?;
        execute!(stderr(), EnterAlternateScreen, Hide).context("drawing on the terminal")?;
        let backend = CrosstermBackend::new(BufWriter::new(stderr()));
        let terminal = Terminal::new(backend).context("drawing on the terminal")?;
        Ok(Screen { terminal, _given_back: given_back })
    }

    /// Draws one frame.
    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.terminal.draw(view).context("drawing on the terminal")?;
        Ok(())
    }

    /// The next key that means something, if it comes within `time`.
    pub fn wait(&self, time: Duration) -> Result<Option<Key>> {
        const READING: &str = "reading keys from the terminal";
        if !event::poll(time).context(READING)? {
            return Ok(None);
        }
        loop {
            if let Event::Key(key) = event::read().context(READING)?
                && key.kind != KeyEventKind::Release
                && let Some(key) = meaning(key.code, key.modifiers)
            {
                return Ok(Some(key));
            }
            if !event::poll(Duration::ZERO).context(READING)? {
                return Ok(None);
            }
        }
    }
}

/// That standard error is a terminal.
pub fn check() -> Result<()> {
    ensure!(
        stderr().is_terminal(),
        "--watch draws on the terminal by standard error, which is none here; \
         --trace FILE writes the same events to a file"
    );
    Ok(())
}

fn meaning(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Stop,
        KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter => Key::Leave,
        KeyCode::Left | KeyCode::Char('h') => Key::Back,
        KeyCode::Right | KeyCode::Char('l') => Key::Forward,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Char(' ') => Key::Play,
        _ => return None,
    })
}

/// Gives the terminal back, once; what fails then cannot be helped.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stderr(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}
