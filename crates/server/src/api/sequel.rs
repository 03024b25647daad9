//! The next turn of a conversation, foreseen: the engine commits what its prompt will begin with while it has
//! nothing else to do.

use std::sync::Arc;

use shamrock_text::{Message, Piece, Prompt, RenderOptions};

use crate::api::App;
use crate::api::answer::Ended;
use crate::api::error::Result;

/// A conversation, and what its template is told beside.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) render: RenderOptions,
}

impl Conversation {
    /// The prompt of its next answer.
    pub(crate) async fn prompt(self: &Arc<Self>, app: &App) -> Result<Prompt> {
        let told = self.clone();
        app.prompt(move |prompter| prompter.chat(&told.messages, &told.render)).await
    }
}

/// Listens to the one answer to a conversation.
pub(crate) struct Sequel {
    app: Arc<App>,
    conversation: Arc<Conversation>,
    content: String,
}

impl Sequel {
    /// Nothing, where the engine does not prepare.
    pub(crate) fn new(app: &Arc<App>, conversation: &Arc<Conversation>) -> Option<Sequel> {
        let sequel =
            || Sequel { app: app.clone(), conversation: conversation.clone(), content: String::new() };
        app.engine.prepares().then(sequel)
    }

    pub(crate) fn hear(&mut self, piece: &Piece) {
        if let Piece::Content(text) = piece {
            self.content.push_str(text);
        }
    }

    /// The answer has ended. A call is gone on with by its result, at once.
    pub(crate) fn foresee(self, ended: &Ended) {
        let Sequel { app, conversation, content } = self;
        if content.is_empty() || ended.calls > 0 {
            return;
        }
        tokio::task::spawn_blocking(move || {
            let Conversation { messages, render } = &*conversation;
            match app.prompter.next_turn(messages, render, &content) {
                Ok(ids) => app.engine.prepare(ids),
                Err(error) => tracing::debug!(%error, "foreseeing the next turn"),
            }
        });
    }
}
