//! Tool calls: taken out of the stream wherever it is cut, never left in the content.

use proptest::prelude::*;
use serde_json::{Value, json};
use shamrock_text::{
    ChatTemplate, Message, Piece, Prompter, RenderOptions, Tool, ToolCallSplitter, ToolFormat, Tools,
};

use crate::fixture_tokenizer as tokenizer;

fn tools() -> Tools {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
    }});
    Tools::new(vec![Tool { name: "weather".into(), description: None, parameters, strict: false }])
}

/// Content, and calls with their arguments as text.
#[derive(Debug, Default, PartialEq)]
struct Read {
    content: String,
    calls: Vec<(String, String)>,
}

impl Read {
    fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.content.push_str(&text),
                Piece::CallStart { name } => self.calls.push((name, String::new())),
                Piece::CallArguments(text) => self.calls.last_mut().expect("a call").1.push_str(&text),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn read<'a>(format: ToolFormat, parts: impl IntoIterator<Item = &'a str>) -> Read {
    let mut splitter = ToolCallSplitter::new(format, tools());
    let mut read = Read::default();
    parts.into_iter().for_each(|part| read.take(splitter.push(part)));
    read.take(splitter.finish());
    read
}

fn calls(read: &Read) -> Vec<(String, Value)> {
    let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    read.calls.iter().map(|(name, text)| (name.clone(), value(text))).collect()
}

const JSON: &str = "Let me look. \n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \
    \"Köln </tool_call> \\\"{\\\"\", \"days\": 3, \"deep\": [{\"a\": \"}\"}]}}\n</tool_call>\n<tool_call>\n\
    {\"arguments\": {}, \"id\": 7, \"name\": \"we\\u0061ther\"}\n</tool_call>\n";

const XML: &str = "Let me look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln \"{\n<b>\n</parameter>\n\
    <parameter=days>\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=other>\n{\"a\": [1]}\n</parameter>\n\
    </function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";

#[test]
fn calls_of_both_forms_are_read() {
    let json_calls = read(ToolFormat::Json, [JSON]);
    assert_eq!(json_calls.content, "Let me look.");
    let arguments = json!({"city": "Köln </tool_call> \"{\"", "days": 3, "deep": [{"a": "}"}]});
    assert_eq!(calls(&json_calls), [("weather".into(), arguments), ("weather".into(), json!({}))]);
    let xml_calls = read(ToolFormat::Xml, [XML]);
    assert_eq!(xml_calls.content, "Let me look.");
    let arguments = json!({"city": "Köln \"{\n<b>", "days": 3, "unit": "C", "other": {"a": [1]}});
    assert_eq!(calls(&xml_calls), [("weather".into(), arguments), ("now".into(), json!({}))]);
}

/// The fault class "tool arguments cut at every byte": of a cut call nothing becomes content, and
/// what has become arguments is a beginning of the arguments.
#[test]
fn a_call_cut_at_every_byte_leaks_nothing() {
    for (format, text) in [(ToolFormat::Json, JSON), (ToolFormat::Xml, XML)] {
        let whole = read(format, [text]);
        for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            let part = read(format, [&text[..cut]]);
            assert!(whole.content.starts_with(part.content.trim_end()), "{cut}: {:?}", part.content);
            for (i, ((name, arguments), (known, all))) in part.calls.iter().zip(&whole.calls).enumerate() {
                assert_eq!(name, known, "{cut}");
                assert!(all.starts_with(arguments.as_str()), "{cut}, call {i}: {arguments}");
            }
            // And in two pushes it is what it is in one.
            assert_eq!(read(format, [&text[..cut], &text[cut..]]), whole, "{cut}");
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(read(format, single.iter().map(String::as_str)), whole);
    }
}

#[test]
fn what_is_no_call_is_none() {
    for (text, content) in [
        ("no call at all < > <tool", "no call at all < >"),
        ("a <tool_calls> b", "a <tool_calls> b"),
        ("<tool_call>\nnothing\n</tool_call>\nso", "so"),
        ("<tool_call>\n{\"arguments\": {\"x\": 1}}\n</tool_call>", ""),
        ("<tool_call>\n{\"name\": 7}</tool_call>", ""),
    ] {
        let read = read(ToolFormat::Json, [text]);
        assert_eq!((read.content.trim_end(), read.calls.len()), (content, 0), "{text}");
    }
    // An open string ends with its line: the rest of the answer is not swallowed.
    let open = read(
        ToolFormat::Json,
        ["<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"1}}\n</tool_call>\nso"],
    );
    assert_eq!((open.content.as_str(), open.calls.len()), ("so", 1));
    // A model that forgets its closing tags has still called.
    let left = read(ToolFormat::Xml, ["<tool_call><function=f><parameter=x>\n1</tool_call>"]);
    assert_eq!(calls(&left), [("f".into(), json!({"x": 1}))]);
}

proptest! {
    /// Whatever a model writes, nothing panics, and pieces do not depend on the cuts.
    #[test]
    fn any_text_is_read_the_same_however_it_is_cut(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "\n", "{", "}", "\"name\": ", "\"f\"", "\"arguments\"", ":",
                "\"", "\\", "<function=f>", "<function=", ">", "<parameter=city>", "<parameter=days>",
                "</parameter>", "</function>", "ß", " ", "[", ",", "<", "3",
            ]),
            0..40,
        ),
        format in prop::sample::select(vec![ToolFormat::Json, ToolFormat::Xml]),
    ) {
        let whole = parts.concat();
        let single: Vec<String> = whole.chars().map(String::from).collect();
        prop_assert_eq!(read(format, parts), read(format, [whole.as_str()]));
        prop_assert_eq!(read(format, single.iter().map(String::as_str)), read(format, [whole.as_str()]));
    }
}

#[test]
fn a_template_without_tools_is_told_of_them() {
    let source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
    let prompter = Prompter::new(tokenizer(), Some(ChatTemplate::new(source, []).unwrap()));
    assert_eq!(prompter.tool_format(), ToolFormat::Json);
    let call = json!([{"id": "1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\": \"Köln\"}"}}]);
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "How warm is it?"),
        Message { tool_calls: Some(call), ..Message::new("assistant", "") },
        Message { tool_call_id: Some("1".into()), ..Message::new("tool", "20") },
        Message { tool_call_id: Some("2".into()), ..Message::new("tool", "21") },
    ];
    let options = RenderOptions { tools: Some(tools().to_json()), ..RenderOptions::default() };
    let prompt = prompter.chat(&messages, &options).unwrap();
    let text = prompter.tokenizer().decode(&prompt.ids, false).unwrap();
    for part in [
        "[system] Be brief.\n\nYou can call",
        "{\"type\":\"function\",\"function\":{\"name\":\"weather\"",
        "[assistant] <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n",
        "[user] <tool_response>\n20\n</tool_response>\n<tool_response>\n21\n</tool_response>\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // Without any of it the conversation is rendered as it is.
    let plain = prompter.chat(&messages[..2], &RenderOptions::default()).unwrap();
    let plain = prompter.tokenizer().decode(&plain.ids, false).unwrap();
    assert_eq!(plain, "[system] Be brief.\n[user] How warm is it?\n");
}
