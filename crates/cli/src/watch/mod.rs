//! `run --watch`: an answer in the making, on the terminal. Masks turn into tokens, coloured by how sure
//! the model was of them; afterwards the passes can be gone through one by one.
//!
//! The view is drawn on standard error, in the terminal's alternate screen, so that standard output
//! carries the answer alone, as without it.

mod draw;
mod film;
mod screen;

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Result;
use shamrock_generate::Event;
use shamrock_text::{Piece, Tokenizer};

use crate::generation::{Answer, Audience};
use crate::interrupt;
use film::Film;
use screen::{Key, Screen};

/// Drawing more often would only be flicker, and time taken from the passes.
const FRAME: Duration = Duration::from_millis(30);
/// How long a pass is shown in a replay.
const REPLAY: Duration = Duration::from_millis(150);

/// The view of one answer.
pub struct Watch {
    screen: Screen,
    film: Film,
    tokenizer: Tokenizer,
    title: String,
    begun: Instant,
    drawn: Option<Instant>,
    /// Somebody looks at an earlier pass.
    looking_back: bool,
}

impl Watch {
    /// That there is a terminal to draw on, before anything else is done.
    pub fn check_terminal() -> Result<()> {
        screen::check()
    }

    /// Takes the terminal over until it is dropped; `mask` is the token of rows that are open.
    ///
    /// # Errors
    /// When there is no terminal.
    pub fn open(tokenizer: Tokenizer, title: String, mask: Option<u32>) -> Result<Watch> {
        let (screen, begun) = (Screen::open()?, Instant::now());
        let film = Film::new(mask);
        let mut watch = Watch { screen, film, tokenizer, title, begun, drawn: None, looking_back: false };
        watch.draw(draw::HELP_WHILE_IT_RUNS)?;
        Ok(watch)
    }

    /// Lets the person go through the passes of an answer that has ended, until they have seen enough or a
    /// signal comes.
    pub fn browse(&mut self, answer: &Answer, signal: &AtomicBool) -> Result<()> {
        self.film.end(answer.outcome.tokens.len());
        let (mut playing, help) = (false, format!("{}   {}", draw::HELP_AFTERWARDS, answer.ending()));
        while !interrupt::is_raised(signal) {
            self.draw(&help)?;
            match self.screen.wait(REPLAY)? {
                Some(Key::Leave | Key::Stop) => break,
                Some(Key::Play) => {
                    playing = !playing;
                    if playing && self.film.shown() == self.film.len() {
                        self.film.show(0);
                    }
                }
                Some(key) => {
                    playing = false;
                    self.step(key);
                }
                None if playing => {
                    self.film.show(self.film.shown() + 1);
                    playing = self.film.shown() < self.film.len();
                }
                None => {}
            }
        }
        Ok(())
    }

    fn step(&mut self, key: Key) {
        let (shown, len) = (self.film.shown(), self.film.len());
        match key {
            Key::Back => self.film.show(shown.saturating_sub(1)),
            Key::Forward => self.film.show(shown + 1),
            Key::First => self.film.show(0),
            Key::Last => self.film.show(len),
            Key::Leave | Key::Stop | Key::Play => return,
        }
        self.looking_back = self.film.shown() < len;
    }

    fn draw(&mut self, help: &str) -> Result<()> {
        self.drawn = Some(Instant::now());
        let (film, title) = (&self.film, &self.title);
        self.screen.draw(|frame| draw::draw(frame, film, title, help))
    }
}

impl Audience for Watch {
    fn event(&mut self, event: &Event<'_>) -> Result<ControlFlow<()>> {
        let tokenizer = &self.tokenizer;
        let text = |id: u32| tokenizer.decode(&[id], false).unwrap_or_default();
        let Event::Pass(pass) = event else {
            return Ok(ControlFlow::Continue(()));
        };
        self.film.record(pass, self.begun.elapsed(), text);
        if !self.looking_back {
            self.film.show(self.film.len());
        }
        while let Some(key) = self.screen.wait(Duration::ZERO)? {
            if key == Key::Stop {
                return Ok(ControlFlow::Break(()));
            }
            self.step(key);
        }
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= FRAME) {
            self.draw(draw::HELP_WHILE_IT_RUNS)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn piece(&mut self, _: &Piece) -> Result<()> {
        Ok(())
    }
}
