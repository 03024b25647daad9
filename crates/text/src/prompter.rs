//! From what a person asks to what a model continues.

use std::borrow::Cow;

use crate::tools::spell_out;
use crate::{ChatTemplate, Error, Message, ReasoningTags, RenderOptions, Tokenizer, ToolFormat};

/// The text side of a model file: its tokenizer, and its chat template if it has one.
#[derive(Debug, Clone)]
pub struct Prompter {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

/// A prompt ready to be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Leading ids that the next turn's prompt will share for sure, if that is known.
    pub stable: Option<usize>,
    /// The prompt has opened the reasoning: the answer starts inside it.
    pub in_reasoning: bool,
}

impl Prompter {
    /// Joins the two.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        Self { tokenizer, template }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How this model writes tool calls, as far as its template tells.
    pub fn tool_format(&self) -> ToolFormat {
        self.template.as_ref().map_or(ToolFormat::Json, |template| ToolFormat::taught_by(template.source()))
    }

    /// Whether the chat template [uses](ChatTemplate::uses) a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.template.as_ref().is_some_and(|template| template.uses(variable))
    }

    /// The token that ends reasoning, if one does.
    pub fn reasoning_end(&self) -> Option<u32> {
        self.tokenizer.id(&ReasoningTags::default().close)
    }

    /// A conversation as a prompt. Control tokens in messages are spelled out, see
    /// [`ChatTemplate::encode`].
    ///
    /// A template that knows nothing of tools is told of them in the system message, and of calls and
    /// their results as text.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`], and those of [`ChatTemplate::encode`].
    pub fn chat(&self, messages: &[Message], options: &RenderOptions) -> Result<Prompt, Error> {
        let template = self.template.as_ref().ok_or(Error::NoChatTemplate)?;
        let untold = !template.source().contains("tools")
            && (options.tools.is_some()
                || messages.iter().any(|m| m.tool_calls.is_some() || m.role == "tool"));
        let (messages, options) = if !untold {
            (Cow::Borrowed(messages), Cow::Borrowed(options))
        } else {
            let spelled = spell_out(messages, options.tools.as_ref());
            (Cow::Owned(spelled), Cow::Owned(RenderOptions { tools: None, ..options.clone() }))
        };
        let (messages, options) = (messages.as_ref(), options.as_ref());
        let (rendered, ids) = template.render_and_encode(&self.tokenizer, messages, options)?;
        let history = RenderOptions { add_generation_prompt: false, ..options.clone() };
        let history = template.encode(&self.tokenizer, messages, &history)?;
        let stable = ids.iter().zip(&history).take_while(|(a, b)| a == b).count();
        Ok(Prompt { ids, stable: Some(stable), in_reasoning: ReasoningTags::default().opened_by(&rendered) })
    }

    /// A text as it stands, control tokens recognised.
    ///
    /// # Errors
    /// [`Error::Encode`] from the tokenizer.
    pub fn raw(&self, text: &str) -> Result<Prompt, Error> {
        let ids = self.tokenizer.encode_with_special(text)?;
        Ok(Prompt { ids, stable: None, in_reasoning: ReasoningTags::default().opened_by(text) })
    }
}
