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

/// What a template is told.
struct Told<'a> {
    template: &'a ChatTemplate,
    messages: Cow<'a, [Message]>,
    options: Cow<'a, RenderOptions>,
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
        let Told { template, messages, options } = self.told(messages, options)?;
        let (rendered, ids) = template.render_and_encode(&self.tokenizer, &messages, &options)?;
        let history = RenderOptions { add_generation_prompt: false, ..options.into_owned() };
        let history = template.encode(&self.tokenizer, &messages, &history)?;
        let stable = shared(&ids, &history);
        Ok(Prompt { ids, stable: Some(stable), in_reasoning: ReasoningTags::default().opened_by(&rendered) })
    }

    /// Ids with which the prompt of the next turn begins if somebody goes on after `answer`. They need not go on
    /// from this turn's prompt: templates show a past turn without its reasoning, or without the tags that
    /// said there was to be none.
    ///
    /// # Errors
    /// Those of [`chat`](Prompter::chat).
    pub fn next_turn(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        answer: &str,
    ) -> Result<Vec<u32>, Error> {
        let options = RenderOptions { add_generation_prompt: false, ..options.clone() };
        let going_on_with = |text: &str| {
            let turn = [Message::new("assistant", answer), Message::new("user", text)];
            let messages = [messages, &turn].concat();
            let Told { template, messages, options } = self.told(&messages, &options)?;
            template.encode(&self.tokenizer, &messages, &options)
        };
        // What comes next may begin with anything, and its first bytes may join the token before them.
        let (mut ids, other) = (going_on_with("a")?, going_on_with("\n")?);
        ids.truncate(shared(&ids, &other));
        Ok(ids)
    }

    /// The template, and messages and options as it understands them.
    fn told<'a>(&'a self, messages: &'a [Message], options: &'a RenderOptions) -> Result<Told<'a>, Error> {
        let template = self.template.as_ref().ok_or(Error::NoChatTemplate)?;
        let tools = options.tools.is_some()
            || messages.iter().any(|message| message.tool_calls.is_some() || message.role == "tool");
        if !tools || template.source().contains("tools") {
            let (messages, options) = (Cow::Borrowed(messages), Cow::Borrowed(options));
            return Ok(Told { template, messages, options });
        }
        let messages = Cow::Owned(spell_out(messages, options.tools.as_ref()));
        let options = Cow::Owned(RenderOptions { tools: None, ..options.clone() });
        Ok(Told { template, messages, options })
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

/// How many ids two prompts begin with together.
fn shared(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
