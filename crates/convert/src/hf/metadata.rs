//! What travels with the weights: configuration, tokenizer, chat template, token ids.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use shamrock_model::Config;

use super::{bad_json, parse_json, read_if_present};
use crate::error::{Error, Result};
use crate::recipe::Recipe;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// Everything about a checkpoint but its weights.
pub(crate) struct Metadata {
    pub(crate) config: Config,
    pub(crate) text: Text,
    /// The bytes of `tokenizer.json`; empty when there is none.
    pub(crate) tokenizer: Vec<u8>,
    /// Name of the folder.
    pub(crate) source: String,
    /// What is missing without being needed.
    pub(crate) warnings: Vec<String>,
}

/// What a file says about text, beside its tokenizer.
#[derive(Default)]
pub(crate) struct Text {
    pub(crate) chat_template: Option<String>,
    pub(crate) bos_id: Option<u32>,
}

/// Where a file comes from.
pub(crate) struct Origin<'a> {
    pub(crate) tool: &'a str,
    pub(crate) source: &'a str,
}

impl Metadata {
    /// Reads the JSON files and the chat template of a checkpoint folder.
    pub(crate) fn read(dir: &Path) -> Result<Metadata> {
        let mut warnings = Vec::new();
        let config_path = dir.join(CONFIG);
        let config_json = read_json(&config_path)?.ok_or_else(|| Error::Io {
            path: config_path,
            action: "read",
            error: std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "no such file; give the folder of a Hugging Face checkpoint",
            ),
        })?;
        let generation = read_json(&dir.join(GENERATION))?;
        let config = Config::from_hf(&config_json, generation.as_ref())
            .map_err(|error| Error::Config { path: dir.into(), error: Box::new(error) })?;

        let tokenizer_path = dir.join(TOKENIZER);
        let tokenizer = match read_if_present(&tokenizer_path)? {
            Some(bytes) => {
                parse_json(&tokenizer_path, &bytes)?;
                bytes
            }
            None => {
                warnings.push(format!("no {TOKENIZER}: the file will run on token ids only"));
                Vec::new()
            }
        };
        let chat_template = chat_template(dir)?;
        if chat_template.is_none() {
            warnings.push(format!("no chat template in {TOKENIZER_CONFIG} or {TEMPLATE}"));
        }
        let bos_id = bos_id(&config_json, generation.as_ref());
        let text = Text { chat_template, bos_id };
        Ok(Metadata { config, text, tokenizer, source: folder_name(dir), warnings })
    }
}

/// The JSON header of a model file.
pub(crate) fn header(config: &Config, text: &Text, recipe: &Recipe, origin: &Origin<'_>) -> Value {
    let mut tokenizer = Map::new();
    if let Some(template) = &text.chat_template {
        tokenizer.insert("chat_template".into(), template.clone().into());
    }
    if !config.eos_ids.is_empty() {
        tokenizer.insert("eos_token_ids".into(), config.eos_ids.clone().into());
    }
    if let Some(id) = text.bos_id {
        tokenizer.insert("bos_token_id".into(), id.into());
    }
    if let Some(id) = config.pad_id {
        tokenizer.insert("pad_token_id".into(), id.into());
    }
    json!({
        "format": "cmf",
        "version": 2,
        "arch": config.to_arch(),
        "quant_type": recipe.quant_type(),
        "provenance": {
            "tool": origin.tool,
            "source_model": origin.source,
            "weight_quant": recipe.label(),
        },
        "tokenizer_config": tokenizer,
    })
}

fn read_json(path: &Path) -> Result<Option<Value>> {
    read_if_present(path)?.map(|bytes| parse_json(path, &bytes)).transpose()
}

/// The separate template file wins over the one in `tokenizer_config.json`, as in `transformers`.
fn chat_template(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(TEMPLATE);
    if let Some(bytes) = read_if_present(&path)? {
        let template = String::from_utf8(bytes);
        return template.map(Some).map_err(|_| bad_json(&path, "not valid UTF-8"));
    }
    let path = dir.join(TOKENIZER_CONFIG);
    let Some(tokenizer_config) = read_json(&path)? else {
        return Ok(None);
    };
    match tokenizer_config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|entry| entry["name"] == "default");
            match default.and_then(|entry| entry["template"].as_str()) {
                Some(template) => Ok(Some(template.into())),
                None => Err(bad_json(&path, "chat_template is a list without a template named \"default\"")),
            }
        }
        Some(_) => Err(bad_json(&path, "chat_template must be a string or a list of named templates")),
    }
}

/// The first place that names one; a list or null is no id.
fn bos_id(config: &Value, generation: Option<&Value>) -> Option<u32> {
    let places = [generation, Some(config), config.get("text_config")];
    places.into_iter().flatten().find_map(|place| u32::try_from(place.get("bos_token_id")?.as_u64()?).ok())
}

fn folder_name(dir: &Path) -> String {
    let resolved: PathBuf = dir.canonicalize().unwrap_or_else(|_| dir.into());
    resolved.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
