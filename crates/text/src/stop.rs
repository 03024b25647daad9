//! Stop strings.

use crate::scan::partial_marker;

/// Watches a text stream for stop strings. The result does not depend on how the text is cut into
/// pushes.
///
/// The stream stops where a stop string is first complete; if several end there, at the longest.
/// Neither the stop string nor anything after it is returned, and text that may turn out to be
/// the beginning of one is held back.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: Option<usize>,
}

/// What [`StopStrings::push`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text to pass on.
    pub text: String,
    /// The index of the stop string that ended the stream, once one has.
    pub stopped: Option<usize>,
}

impl StopStrings {
    /// Watches for these strings. Empty ones never match.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { stops: stops.into_iter().map(Into::into).collect(), held: String::new(), stopped: None }
    }

    /// Takes the next piece of text. Once the stream has stopped, text is dropped.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .filter_map(|(which, stop)| {
                let start = self.held.find(stop.as_str())?;
                Some((start + stop.len(), start, which))
            })
            .min();
        if let Some((_, start, which)) = first {
            self.stopped = Some(which);
            self.held.truncate(start);
            return StopOutcome { text: std::mem::take(&mut self.held), stopped: self.stopped };
        }
        let keep = self.held.len() - partial_marker(&self.held, &self.stops);
        let held = self.held.split_off(keep);
        StopOutcome { text: std::mem::replace(&mut self.held, held), stopped: None }
    }

    /// The stream has ended: returns the text held back and starts afresh.
    pub fn finish(&mut self) -> String {
        self.stopped = None;
        std::mem::take(&mut self.held)
    }
}
