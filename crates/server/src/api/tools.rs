//! What requests say of tools.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_grammar::{Calls, Otherwise, Source};
use shamrock_text::{Tool, Tools};
use utoipa::ToSchema;

use crate::api::App;
use crate::api::error::{ApiError, Result};
use crate::api::params::Plan;

/// Most tools of a request, and most bytes of a name.
const MAX_TOOLS: usize = 128;
const MAX_NAME_BYTES: usize = 64;

/// A tool of a chat completion.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields, expecting = "an object")]
pub(crate) enum ChatTool {
    /// A function.
    Function {
        /// What it is.
        function: Function,
    },
}

/// A function that a model may call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct Function {
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
    /// Hold calls to the schema.
    strict: Option<bool>,
}

/// A tool of a response; the function lies one level higher there.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields, expecting = "an object")]
pub(crate) enum ResponseTool {
    /// A function.
    Function(Function),
}

/// A tool of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct MessageTool {
    /// `custom`, or nothing.
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments.
    #[schema(value_type = Object)]
    input_schema: Option<Value>,
    /// Hold calls to the schema.
    strict: Option<bool>,
    /// Prefixes are kept anyway.
    #[serde(rename = "cache_control")]
    #[schema(value_type = Option<Object>)]
    _cache_control: Option<Map<String, Value>>,
}

/// Which tool to call, in the OpenAI APIs.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be \"auto\", \"none\", \"required\" or a function")]
pub(crate) enum ToolChoice {
    Word(Word),
    Function(NamedTool),
}

/// A choice in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Word {
    Auto,
    None,
    Required,
}

/// A choice by name: `{"type": "function", "function": {"name": ...}}`, without the inner object in
/// responses.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, deny_unknown_fields)]
pub(crate) enum NamedTool {
    Inner {
        #[serde(rename = "type")]
        _type: FunctionWord,
        function: Name,
    },
    Outer {
        #[serde(rename = "type")]
        _type: FunctionWord,
        name: String,
    },
}

/// The word `function`.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FunctionWord {
    Function,
}

/// The name of a function.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct Name {
    name: String,
}

/// Which tool to call, in the messages API.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields, expecting = "an object")]
pub(crate) enum MessageChoice {
    /// One, several or none.
    Auto {
        /// At most one.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// At least one.
    Any {
        /// Just one.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// This one.
    Tool {
        /// Its name.
        name: String,
        /// Just one, as always when it is named.
        #[serde(default, rename = "disable_parallel_tool_use")]
        _disable_parallel_tool_use: bool,
    },
    /// None.
    None {},
}

#[derive(Clone, Debug, PartialEq)]
enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

/// The tools of a request and what to do with them, checked.
#[derive(Clone, Debug)]
pub(crate) struct ToolUse {
    tools: Tools,
    choice: Choice,
    parallel: bool,
}

impl ToolUse {
    pub(crate) fn chat(
        tools: Vec<ChatTool>,
        choice: Option<ToolChoice>,
        parallel: Option<bool>,
    ) -> Result<ToolUse> {
        let tool = |ChatTool::Function { function }| {
            tool(function.name, function.description, function.parameters, function.strict)
        };
        ToolUse::new(tools.into_iter().map(tool).collect(), openai(choice), parallel.unwrap_or(true))
    }

    pub(crate) fn response(
        tools: Vec<ResponseTool>,
        choice: Option<ToolChoice>,
        parallel: Option<bool>,
    ) -> Result<ToolUse> {
        let tool = |ResponseTool::Function(Function { name, description, parameters, strict })| {
            tool(name, description, parameters, strict)
        };
        ToolUse::new(tools.into_iter().map(tool).collect(), openai(choice), parallel.unwrap_or(true))
    }

    pub(crate) fn message(tools: Vec<MessageTool>, choice: Option<MessageChoice>) -> Result<ToolUse> {
        for (i, tool) in tools.iter().enumerate() {
            if let Some(kind) = tool.kind.as_deref().filter(|&kind| kind != "custom") {
                let problem = format!("{kind:?} is not supported");
                return Err(ApiError::field(format!("tools[{i}].type"), problem).code("unsupported_value"));
            }
            if tool.input_schema.is_none() {
                return Err(ApiError::missing(format!("tools[{i}].input_schema")));
            }
        }
        let tool = |t: MessageTool| tool(t.name, t.description, t.input_schema, t.strict);
        let (choice, single) = match choice {
            None => (Choice::Auto, false),
            Some(MessageChoice::Auto { disable_parallel_tool_use }) => {
                (Choice::Auto, disable_parallel_tool_use)
            }
            Some(MessageChoice::Any { disable_parallel_tool_use }) => {
                (Choice::Required, disable_parallel_tool_use)
            }
            Some(MessageChoice::Tool { name, .. }) => (Choice::Named(name), true),
            Some(MessageChoice::None {}) => (Choice::None, false),
        };
        ToolUse::new(tools.into_iter().map(tool).collect(), choice, !single)
    }

    fn new(tools: Vec<Tool>, choice: Choice, parallel: bool) -> Result<ToolUse> {
        if tools.len() > MAX_TOOLS {
            return Err(ApiError::field("tools", format!("at most {MAX_TOOLS} are allowed")));
        }
        let mut names = HashSet::new();
        for (i, tool) in tools.iter().enumerate() {
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            let problem = if !(1..=MAX_NAME_BYTES).contains(&tool.name.len()) || !tool.name.bytes().all(fits)
            {
                format!("a name has 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`")
            } else if !names.insert(tool.name.as_str()) {
                format!("{:?} is there twice", tool.name)
            } else if !tool.parameters.is_object() {
                "the schema of the arguments must be an object".to_owned()
            } else {
                continue;
            };
            return Err(ApiError::field(format!("tools[{i}]"), problem));
        }
        match &choice {
            Choice::Named(name) if !names.contains(name.as_str()) => {
                Err(ApiError::field("tool_choice", format!("{name:?} is none of the tools")))
            }
            Choice::Required if tools.is_empty() => {
                Err(ApiError::field("tool_choice", "there is no tool that could be called"))
            }
            _ => Ok(ToolUse { tools: Tools::new(tools), choice, parallel }),
        }
    }

    fn is_on(&self) -> bool {
        !self.tools.is_empty() && self.choice != Choice::None
    }

    /// What the template is told.
    pub(crate) fn told(&self) -> Option<Value> {
        self.is_on().then(|| self.tools.to_json())
    }

    /// The choice as responses repeat it.
    pub(crate) fn choice(&self) -> Value {
        match &self.choice {
            Choice::Auto => "auto".into(),
            Choice::None => "none".into(),
            Choice::Required => "required".into(),
            Choice::Named(name) => json!({ "type": "function", "name": name }),
        }
    }

    /// Puts into a plan what the tools and the form of the answer ask of it; `field` is where the
    /// form was asked for.
    pub(crate) async fn plan(
        self,
        app: &App,
        plan: &mut Plan,
        form: Option<Source>,
        field: &'static str,
    ) -> Result<()> {
        if !self.is_on() {
            if let Some(source) = form {
                plan.grammar = Some((app.grammar(field, source).await?, field));
            }
            return Ok(());
        }
        let format = app.prompter.tool_format();
        let strict = self.tools.iter().any(|tool| tool.strict);
        let otherwise = match (&self.choice, form) {
            (Choice::Required | Choice::Named(_), _) => Some(Otherwise::Nothing),
            (_, Some(Source::JsonSchema(schema))) => Some(Otherwise::Json(schema)),
            (_, Some(_)) => Some(Otherwise::Json(json!({ "type": "object" }))),
            // Without a promise to keep, the model is left to itself.
            _ => strict.then_some(Otherwise::Text),
        };
        if let Some(otherwise) = otherwise {
            let (tools, parallel) = match &self.choice {
                Choice::Named(name) => {
                    let named = self.tools.iter().filter(|tool| tool.name == *name).cloned();
                    (Tools::new(named.collect()), false)
                }
                _ => (self.tools.clone(), self.parallel),
            };
            let calls = Calls { format, tools, otherwise, parallel };
            plan.grammar = Some((app.grammar("tools", Source::Calls(calls)).await?, "tools"));
        }
        plan.calls = Some((format, self.tools));
        Ok(())
    }
}

fn openai(choice: Option<ToolChoice>) -> Choice {
    match choice {
        None | Some(ToolChoice::Word(Word::Auto)) => Choice::Auto,
        Some(ToolChoice::Word(Word::None)) => Choice::None,
        Some(ToolChoice::Word(Word::Required)) => Choice::Required,
        Some(ToolChoice::Function(NamedTool::Inner { function, .. })) => Choice::Named(function.name),
        Some(ToolChoice::Function(NamedTool::Outer { name, .. })) => Choice::Named(name),
    }
}

fn tool(name: String, description: Option<String>, parameters: Option<Value>, strict: Option<bool>) -> Tool {
    let nothing = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let mut parameters = parameters.filter(|schema| !schema.is_null()).unwrap_or_else(nothing);
    // Arguments are an object, also where the schema leaves them open.
    if let Value::Object(schema) = &mut parameters
        && !["type", "$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| schema.contains_key(*key))
    {
        schema.insert("type".into(), "object".into());
    }
    Tool { name, description, parameters, strict: strict.unwrap_or(false) }
}

/// A call of an earlier turn, as templates take it: the arguments as an object if they are one.
pub(crate) fn past_call(id: &str, name: &str, arguments: &Value) -> Value {
    let arguments = match arguments {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(object @ Value::Object(_)) => object,
            _ => arguments.clone(),
        },
        other => other.clone(),
    };
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}
