//! The items and the events of one response.

use axum::response::sse::Event;
use serde_json::{Value, json};
use shamrock_text::Piece;

use crate::api::answer::{Collected, Ended, Update, What};
use crate::api::error::ApiError;
use crate::api::logprobs::{self, TokenProb};
use crate::api::stream::Encode;
use crate::api::usage::Usage;
use crate::random::id;

/// An item of the output.
struct Item {
    id: String,
    content: Content,
}

enum Content {
    Reasoning(String),
    Message { text: String, tokens: Vec<TokenProb> },
    Call { call_id: String, name: String, arguments: String },
}

impl Item {
    fn new(content: Content) -> Item {
        let prefix = match content {
            Content::Reasoning(_) => "rs_",
            Content::Message { .. } => "msg_",
            Content::Call { .. } => "fc_",
        };
        Item { id: id(prefix), content }
    }

    fn reasoning(text: String) -> Item {
        Item::new(Content::Reasoning(text))
    }

    fn message(text: String, tokens: Vec<TokenProb>) -> Item {
        Item::new(Content::Message { text, tokens })
    }

    fn call(name: String, arguments: String) -> Item {
        Item::new(Content::Call { call_id: id("call_"), name, arguments })
    }

    /// What its text is called in events, and the text.
    fn text(&self) -> (&'static str, &str) {
        match &self.content {
            Content::Reasoning(text) => ("reasoning_text", text),
            Content::Message { text, .. } => ("output_text", text),
            Content::Call { arguments, .. } => ("function_call_arguments", arguments),
        }
    }

    /// Its only part; a call has none.
    fn part(&self, logprobs: bool) -> Option<Value> {
        match &self.content {
            Content::Reasoning(text) => Some(json!({ "type": "reasoning_text", "text": text })),
            Content::Message { text, tokens } => {
                let logprobs = if logprobs { logprobs::entries(tokens) } else { json!([]) };
                Some(json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs }))
            }
            Content::Call { .. } => None,
        }
    }

    fn show(&self, status: &str, logprobs: bool) -> Value {
        let id = &self.id;
        let part = self.part(logprobs).filter(|_| status != "in_progress");
        let content: Vec<Value> = part.into_iter().collect();
        match &self.content {
            Content::Reasoning(_) => json!({
                "type": "reasoning", "id": id, "status": status, "summary": [], "content": content,
            }),
            Content::Message { .. } => json!({
                "type": "message", "id": id, "status": status, "role": "assistant", "content": content,
            }),
            Content::Call { call_id, name, arguments } => json!({
                "type": "function_call", "id": id, "call_id": call_id, "name": name,
                "arguments": arguments, "status": status,
            }),
        }
    }
}

/// The events of one response.
pub(super) struct Events {
    /// The response so far, but for its output.
    object: Value,
    usage: Usage,
    /// Whether tokens are shown with their probabilities.
    logprobs: bool,
    /// Items that are complete.
    output: Vec<Value>,
    /// The item being written.
    open: Option<Item>,
    sequence: usize,
    ended: Option<Ended>,
}

impl Events {
    pub(super) fn new(object: Value, usage: Usage, logprobs: bool) -> Events {
        Events { object, usage, logprobs, output: Vec::new(), open: None, sequence: 0, ended: None }
    }

    /// The whole response, of an answer that was waited for.
    pub(super) fn collected(mut self, answer: Collected, ended: &Ended) -> Value {
        let status = if is_cut(ended) { "incomplete" } else { "completed" };
        let mut items = Vec::new();
        if !answer.reasoning.is_empty() {
            items.push(Item::reasoning(answer.reasoning));
        }
        if !answer.content.is_empty() || answer.calls.is_empty() {
            items.push(Item::message(answer.content, answer.tokens));
        }
        items.extend(answer.calls.into_iter().map(|call| Item::call(call.name, call.arguments)));
        for (i, item) in items.iter().enumerate() {
            let status = if i + 1 == items.len() { status } else { "completed" };
            self.output.push(item.show(status, self.logprobs));
        }
        self.finished(ended)
    }

    fn event(&mut self, name: &str, mut data: Value) -> Event {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Event::default().event(name).data(data.to_string())
    }

    /// An event about the text of an item that is being written.
    fn about(&mut self, item: &Item, name: &str, mut data: Value) -> Event {
        data["item_id"] = item.id.as_str().into();
        data["output_index"] = self.output.len().into();
        if !matches!(item.content, Content::Call { .. }) {
            data["content_index"] = 0.into();
        }
        self.event(name, data)
    }

    /// More text for the open item, or for a new one where that is of another kind.
    fn add(&mut self, more: Item) -> Vec<Event> {
        let mut events = Vec::new();
        let same =
            |open: &Item| std::mem::discriminant(&open.content) == std::mem::discriminant(&more.content);
        if !self.open.as_ref().is_some_and(same) {
            events.extend(self.close("completed"));
            let empty = match &more.content {
                Content::Reasoning(_) => Item::reasoning(String::new()),
                _ => Item::message(String::new(), Vec::new()),
            };
            events.extend(self.open(empty));
        }
        let Some(mut open) = self.open.take() else { return events };
        let (kind, delta) = more.text();
        let mut data = json!({ "delta": delta });
        match (&mut open.content, &more.content) {
            (Content::Reasoning(text), Content::Reasoning(more)) => text.push_str(more),
            (Content::Message { text, tokens }, Content::Message { text: more, tokens: with }) => {
                data["logprobs"] = if self.logprobs { logprobs::entries(with) } else { json!([]) };
                text.push_str(more);
                tokens.extend_from_slice(with);
            }
            (Content::Call { arguments, .. }, Content::Call { arguments: more, .. }) => {
                arguments.push_str(more);
            }
            _ => {}
        }
        events.push(self.about(&open, &format!("response.{kind}.delta"), data));
        self.open = Some(open);
        events
    }

    fn open(&mut self, item: Item) -> Vec<Event> {
        let index = self.output.len();
        let shown = item.show("in_progress", self.logprobs);
        let mut events =
            vec![self.event("response.output_item.added", json!({ "output_index": index, "item": shown }))];
        if let Some(part) = item.part(self.logprobs) {
            events.push(self.about(&item, "response.content_part.added", json!({ "part": part })));
        }
        self.open = Some(item);
        events
    }

    fn close(&mut self, status: &str) -> Vec<Event> {
        let Some(item) = self.open.take() else {
            return Vec::new();
        };
        let (kind, text) = item.text();
        let part = item.part(self.logprobs);
        let whole = match &item.content {
            Content::Call { name, .. } => json!({ "name": name, "arguments": text }),
            Content::Message { .. } => {
                json!({ "text": text, "logprobs": part.as_ref().map(|p| &p["logprobs"]) })
            }
            Content::Reasoning(_) => json!({ "text": text }),
        };
        let mut events = vec![self.about(&item, &format!("response.{kind}.done"), whole)];
        if let Some(part) = part {
            events.push(self.about(&item, "response.content_part.done", json!({ "part": part })));
        }
        let shown = item.show(status, self.logprobs);
        let index = self.output.len();
        let over = json!({ "output_index": index, "item": shown });
        events.push(self.event("response.output_item.done", over));
        self.output.push(shown);
        events
    }

    /// The whole response.
    fn finished(&mut self, ended: &Ended) -> Value {
        self.usage.add(0, ended);
        let mut object = self.object.clone();
        object["status"] = if is_cut(ended) { "incomplete" } else { "completed" }.into();
        if is_cut(ended) {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        object["output"] = self.output.clone().into();
        object["usage"] = json!({
            "input_tokens": self.usage.prompt,
            "input_tokens_details": { "cached_tokens": self.usage.cached },
            "output_tokens": self.usage.completion,
            "output_tokens_details": { "reasoning_tokens": self.usage.reasoning },
            "total_tokens": self.usage.prompt + self.usage.completion,
            "shamrock": self.usage.extension(),
        });
        object
    }
}

fn is_cut(ended: &Ended) -> bool {
    ended.finish_reason() == "length"
}

impl Encode for Events {
    fn begin(&mut self) -> Vec<Event> {
        let response = json!({ "response": self.object });
        vec![self.event("response.created", response.clone()), self.event("response.in_progress", response)]
    }

    fn update(&mut self, Update { what, .. }: Update) -> Vec<Event> {
        match what {
            What::Text { piece: Piece::Content(text), tokens } => self.add(Item::message(text, tokens)),
            What::Text { piece: Piece::Reasoning(text), .. } => self.add(Item::reasoning(text)),
            What::Text { piece: Piece::CallStart { name }, .. } => {
                let mut events = self.close("completed");
                events.extend(self.open(Item::call(name, String::new())));
                events
            }
            What::Text { piece: Piece::CallArguments(text), .. } => self.add(Item::call(String::new(), text)),
            What::Text { .. } => Vec::new(),
            What::Pass(pass) => vec![self.event("shamrock", json!({ "shamrock": pass }))],
            What::End(ended) => {
                self.ended = Some(*ended);
                Vec::new()
            }
        }
    }

    fn end(&mut self) -> Vec<Event> {
        let Some(ended) = self.ended.take() else {
            return self.error(ApiError::stopped());
        };
        let mut events = Vec::new();
        if self.output.is_empty() && self.open.is_none() {
            events.extend(self.open(Item::message(String::new(), Vec::new())));
        }
        let cut = is_cut(&ended);
        events.extend(self.close(if cut { "incomplete" } else { "completed" }));
        let response = json!({ "response": self.finished(&ended) });
        let name = if cut { "response.incomplete" } else { "response.completed" };
        events.push(self.event(name, response));
        events
    }

    fn error(&mut self, error: ApiError) -> Vec<Event> {
        let data = json!({ "code": error.code, "message": error.message, "param": error.param });
        vec![self.event("error", data)]
    }
}
