//! Replies as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;

use crate::api::answer::{Answers, Update};
use crate::api::error::ApiError;

/// How an API shows answers as they come.
pub(crate) trait Encode: Send + 'static {
    /// Before anything is known.
    fn begin(&mut self) -> Vec<Event>;

    /// For one update.
    fn update(&mut self, update: Update) -> Vec<Event>;

    /// After the last answer's end.
    fn end(&mut self) -> Vec<Event>;

    /// When it goes wrong; nothing follows.
    fn error(&mut self, error: ApiError) -> Vec<Event>;
}

/// The reply. When its reader goes away it is dropped, and the answers with it.
pub(crate) fn stream(answers: Answers, mut encode: impl Encode) -> Response {
    let ready = VecDeque::from(encode.begin());
    let state = State { answers, encode, ready, over: false };
    let events = unfold(state, |mut state| async {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::default()).into_response();
    // nginx would collect the events otherwise.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.headers_mut().extend([unbuffered]);
    response
}

struct State<E> {
    answers: Answers,
    encode: E,
    ready: VecDeque<Event>,
    over: bool,
}

impl<E: Encode> State<E> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            let events = match self.answers.next().await {
                Some(Ok(update)) => self.encode.update(update),
                Some(Err(error)) => {
                    self.over = true;
                    self.encode.error(error)
                }
                None => {
                    self.over = true;
                    self.encode.end()
                }
            };
            self.ready.extend(events);
        }
    }
}
