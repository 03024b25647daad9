//! Conversations to prompts.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::control::{Defuser, Forbid};
use crate::jinja::Template;
use crate::{Error, Tokenizer};

/// One message of a conversation, in the form that chat templates expect (and that the OpenAI API
/// has). Fields that are `None` or `null` are absent for the template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or `tool`, by convention.
    pub role: String,
    /// What is said: a string, `null` (an assistant that only calls tools), or an array of parts
    /// where the template understands them.
    #[serde(default)]
    pub content: Value,
    /// Reasoning of an assistant turn, without its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls of an assistant turn, handed through to the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// The call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the speaker or the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message with text and nothing else.
    pub fn new(role: impl Into<String>, content: impl Into<Value>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}

/// What a template is told beside the messages.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// End with the beginning of an assistant turn. On by default.
    pub add_generation_prompt: bool,
    /// Ask for reasoning or for none; `None` leaves the choice to the template.
    pub enable_thinking: Option<bool>,
    /// Tools that the model may call, as the JSON array of the OpenAI API.
    pub tools: Option<Value>,
    /// Further variables of the template. They cannot replace `messages`, `tools`,
    /// `add_generation_prompt` and `enable_thinking` where those are given.
    pub extra: Map<String, Value>,
    /// The time that `strftime_now` tells, in the system's time zone. `None` is the present.
    pub now: Option<SystemTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, enable_thinking: None, tools: None, extra: Map::new(), now: None }
    }
}

/// A model's chat template, compiled.
///
/// Templates are Jinja as the transformers library runs it: `trim_blocks`, `lstrip_blocks`,
/// `break` and `continue`, Python's string methods, its `tojson`, `raise_exception` and
/// `strftime_now`; `{% generation %}` marks nothing here. A template is a stranger's program: its
/// work and memory are bounded in proportion to the conversation, and nothing it does can hang or
/// abort the process.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    template: Template,
    /// Template variables for special tokens, such as `bos_token`.
    special_tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles the Jinja source. `special_tokens` are pairs of a variable and its text, as in
    /// `("bos_token", "<s>")`.
    ///
    /// # Errors
    /// [`Error::Template`] if the source is not valid Jinja, or uses what is not supported.
    pub fn new<'a>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Error> {
        Ok(Self {
            template: Template::compile(source)?,
            special_tokens: special_tokens
                .into_iter()
                .map(|(name, text)| (name.to_owned(), text.into()))
                .collect(),
        })
    }

    /// The Jinja source.
    pub fn source(&self) -> &str {
        self.template.source()
    }

    /// Whether the template looks up a variable of this name. Others can be set, but change nothing.
    pub fn uses(&self, variable: &str) -> bool {
        self.template.uses(variable)
    }

    /// Renders a conversation to text, byte for byte what transformers' `apply_chat_template`
    /// gives. The text does not tell messages from markup: use [`encode`](Self::encode) to get it
    /// into a model.
    ///
    /// # Errors
    /// [`Error::Refused`] if the template raises an exception on the conversation;
    /// [`Error::TemplateTooCostly`] if it does not come to an end;
    /// [`Error::Template`] if it fails in another way.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, Error> {
        let messages = messages.iter().map(message_json).collect();
        self.template.render(&self.context(messages, options), options.now)
    }

    /// Renders a conversation and encodes it such that messages cannot contain control tokens
    /// (see [`Tokenizer`]).
    ///
    /// The rule: `<|im_end|>` and its like come from the template only. In every string of
    /// `messages`, `tools` and `extra` the text of a control token is spelled out with ordinary
    /// tokens, and the template does not recognise it either: a user who writes `</think>` has
    /// written eight characters. Of an assistant's own `content`, `reasoning_content` and
    /// `tool_calls` this holds for tokens marked special only: `<think>…</think>` there is how
    /// history is kept, and templates take it apart.
    ///
    /// If no string contains a control token, the ids are those of
    /// [`encode_with_special`](Tokenizer::encode_with_special) of [`render`](Self::render).
    ///
    /// # Errors
    /// As [`render`](Self::render), and [`Error::Encode`] from the tokenizer.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>, Error> {
        self.render_and_encode(tokenizer, messages, options).map(|(_, ids)| ids)
    }

    /// The ids of [`encode`](Self::encode), and the text that they spell: that of
    /// [`render`](Self::render), unless the template looks for control tokens in messages.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn render_and_encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<(String, Vec<u32>), Error> {
        let messages = messages.iter().map(message_json).collect();
        let mut context = self.context(messages, options);
        let plain = format!("{}{}", self.template.source(), Value::Object(context.clone()));
        let mut defuser = Defuser::new(tokenizer, &plain);
        for (name, value) in &mut context {
            match value {
                Value::Array(messages) if name == "messages" => {
                    for message in messages {
                        defuse_message(message, &mut defuser)?;
                    }
                }
                // The template's own tokens, unless a variable in `extra` took the name.
                value if self.special_tokens.get(name) == Some(&*value) => {}
                value => defuser.value(value, Forbid::All)?,
            }
        }
        let sentinels = defuser.into_sentinels();
        let text = self.template.render(&context, options.now)?;
        if sentinels.is_empty() {
            let ids = tokenizer.encode_with_special(&text)?;
            return Ok((text, ids));
        }
        let ids = tokenizer.encode_marked(&text, &sentinels)?;
        Ok((text.chars().map(|c| sentinels.original(c)).collect(), ids))
    }

    /// The template's variables.
    fn context(&self, messages: Vec<Value>, options: &RenderOptions) -> Map<String, Value> {
        // Variables that transformers always passes, so that they are defined.
        let mut context = Map::from_iter([("documents".to_owned(), Value::Null)]);
        context.extend(self.special_tokens.clone());
        context.extend(options.extra.clone());
        if let Some(thinking) = options.enable_thinking {
            context.insert("enable_thinking".to_owned(), thinking.into());
        }
        context.extend([
            ("messages".to_owned(), Value::Array(messages)),
            ("tools".to_owned(), options.tools.clone().into()),
            ("add_generation_prompt".to_owned(), options.add_generation_prompt.into()),
        ]);
        context
    }
}

fn message_json(message: &Message) -> Value {
    let fields = [
        ("role", Some(message.role.clone().into())),
        ("content", Some(message.content.clone())),
        ("reasoning_content", message.reasoning_content.clone().map(Value::from)),
        ("tool_calls", message.tool_calls.clone()),
        ("tool_call_id", message.tool_call_id.clone().map(Value::from)),
        ("name", message.name.clone().map(Value::from)),
    ];
    // Templates handle absent fields better than null, so transformers leaves those out too.
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .filter(|(_, value)| !value.is_null())
        .collect()
}

fn defuse_message(message: &mut Value, defuser: &mut Defuser<'_>) -> Result<(), Error> {
    let Value::Object(fields) = message else {
        return Ok(());
    };
    let by_assistant = fields.get("role").is_some_and(|role| role == "assistant");
    for (name, value) in fields {
        let own_words = matches!(name.as_str(), "content" | "reasoning_content" | "tool_calls");
        let forbid = if by_assistant && own_words { Forbid::Special } else { Forbid::All };
        defuser.value(value, forbid)?;
    }
    Ok(())
}
