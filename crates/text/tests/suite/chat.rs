use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use shamrock_text::{ChatTemplate, Error, Message, Prompter, RenderOptions};

use crate::{fixture_template, fixture_tokenizer, json as read_json, thinking_template};

fn options(fields: &Value) -> RenderOptions {
    RenderOptions {
        add_generation_prompt: fields["add_generation_prompt"].as_bool().unwrap(),
        enable_thinking: fields["enable_thinking"].as_bool(),
        tools: fields.get("tools").cloned(),
        ..RenderOptions::default()
    }
}

fn render(source: &str, extra: Map<String, Value>) -> Result<String, Error> {
    let options = RenderOptions { extra, ..RenderOptions::default() };
    ChatTemplate::new(source, [])?.render(&[Message::new("user", "hi")], &options)
}

/// Text and ids of every conversation are those of transformers, byte for byte. None of them
/// contains a control token outside an assistant's turn, so `encode` agrees as well.
#[test]
fn conversations_render_as_in_transformers() {
    let vectors = read_json("crates/text/tests/vectors/chat.json");
    let special = vectors["special_tokens"].as_object().unwrap();
    let templates: HashMap<&str, ChatTemplate> = vectors["templates"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, source)| {
            let special = special.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap()));
            (name.as_str(), ChatTemplate::new(source.as_str().unwrap(), special).unwrap())
        })
        .collect();
    let tokenizer = fixture_tokenizer();
    let cases = vectors["cases"].as_array().unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        let template = &templates[case["template"].as_str().unwrap()];
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        let options = options(&case["options"]);
        let name = format!("{} / {} / {}", case["template"], case["name"], case["options"]);
        let rendered = template.render(&messages, &options);
        if case.get("error").is_some() {
            assert!(rendered.is_err(), "{name}: {rendered:?}");
            continue;
        }
        assert_eq!(rendered.unwrap(), case["text"], "{name}");
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(template.encode(&tokenizer, &messages, &options).unwrap(), ids, "{name}");
    }
}

#[test]
fn expressions_render_as_in_transformers() {
    let vectors = read_json("crates/text/tests/vectors/expressions.json");
    let mut differ = Vec::new();
    for case in vectors["cases"].as_array().unwrap() {
        let source = case["source"].as_str().unwrap();
        let x = Map::from_iter([("x".to_owned(), vectors["x"].clone())]);
        let rendered = render(source, x).unwrap_or_else(|error| error.to_string());
        if rendered != case["text"] {
            differ.push(format!("{source}\n  ours      {rendered:?}\n  reference {}", case["text"]));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn chat_text_of_the_fixtures() {
    for folder in ["small", "kernel", "awkward"] {
        let expected = read_json(format!("fixtures/{folder}/expected.json"));
        let messages = [Message::new("user", expected["prompt_text"].as_str().unwrap())];
        let options = RenderOptions { enable_thinking: Some(true), ..RenderOptions::default() };
        let text = fixture_template().render(&messages, &options).unwrap();
        assert_eq!(text, expected["chat_text"], "{folder}");
        let ids = fixture_template().encode(&fixture_tokenizer(), &messages, &options).unwrap();
        let expected: Vec<u32> = serde_json::from_value(expected["chat_ids"].clone()).unwrap();
        assert_eq!(ids, expected, "{folder}");
    }
}

/// The prompt of a next turn begins as was foreseen, whatever is said in it.
#[test]
fn the_next_turn_is_foreseen() {
    let nothing = ChatTemplate::new("{{ messages | length }}", []).unwrap();
    for (template, least) in [(fixture_template(), 20), (thinking_template(), 20), (nothing, 0)] {
        let prompter = Prompter::new(fixture_tokenizer(), Some(template));
        for thinking in [None, Some(false), Some(true)] {
            let options = RenderOptions { enable_thinking: thinking, ..RenderOptions::default() };
            for answer in ["Four.", "\n\nFour, of course", "<think>a</think>"] {
                let said = [Message::new("user", "How much is two and two?")];
                let foreseen = prompter.next_turn(&said, &options, answer).unwrap();
                for next in ["Why?", "\n", " x", "😀", ""] {
                    let turn = [Message::new("assistant", answer), Message::new("user", next)];
                    let prompt = prompter.chat(&[&said[..], &turn].concat(), &options).unwrap().ids;
                    assert!(prompt.starts_with(&foreseen), "{answer:?} {next:?}");
                }
                assert!(foreseen.len() >= least, "{answer:?}: {}", foreseen.len());
            }
        }
    }
}

#[test]
fn a_template_can_refuse() {
    let error = render("{{ raise_exception('roles must\n alternate') }}", Map::new()).unwrap_err();
    assert_eq!(error, Error::Refused("roles must alternate".to_owned()));
}

#[test]
fn errors_name_the_line() {
    for (source, line) in [("a\n{{ 1 + }}", 2), ("a\nb\n{{ messages.nope.x }}", 3), ("{% nope %}", 1)] {
        match render(source, Map::new()) {
            Err(Error::Template { line: at, reason }) => {
                assert_eq!(at, line, "{source}: {reason}");
                assert!(!reason.contains('\n'));
            }
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn the_time_can_be_set() {
    // 15 June 2024, noon UTC: the same year and month in every time zone.
    let options = RenderOptions {
        now: Some(UNIX_EPOCH + Duration::from_secs(1_718_452_800)),
        ..RenderOptions::default()
    };
    let template = ChatTemplate::new("{{ strftime_now('%B %Y, %d') }}", []).unwrap();
    let text = template.render(&[], &options).unwrap();
    assert!(text.starts_with("June 2024, 1"), "{text}");
}

#[test]
fn variables_have_a_fixed_precedence() {
    let extra = json!({"eos_token": "mine", "tools": "no", "enable_thinking": true, "k": 1});
    let options = RenderOptions {
        enable_thinking: Some(false),
        extra: extra.as_object().unwrap().clone(),
        ..RenderOptions::default()
    };
    let source = "{{ eos_token }} {{ bos_token }} {{ tools }} {{ enable_thinking }} {{ k }}";
    let template = ChatTemplate::new(source, [("eos_token", "<e>"), ("bos_token", "<b>")]).unwrap();
    assert_eq!(template.render(&[], &options).unwrap(), "mine <b> None False 1");
}
