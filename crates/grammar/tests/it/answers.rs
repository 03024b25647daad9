//! clover-nano, which knows nothing of schemas, held to them in every mode.

use std::ops::ControlFlow;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use shamrock_cpu::{CpuExecutor, CpuOptions};
use shamrock_generate::{Accept, Constraint, Finish, Mode, Options, Outcome, Sampling, Session};
use shamrock_grammar::{Calls, Error, Otherwise, Source};
use shamrock_model::Executor;
use shamrock_text::{Message, RenderOptions, Tool, ToolFormat, Tools};

use crate::{NANO, nano};

fn executor() -> CpuExecutor {
    CpuExecutor::new(nano(), CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap()
}

/// A schema that says what it allows in Rust, too.
#[derive(Clone, Debug)]
enum Shape {
    Integer { least: i64, most: i64 },
    Boolean,
    Text { longest: usize },
    Choice(Vec<String>),
    List { of: Box<Shape>, least: usize, most: usize },
    Object(Vec<(String, bool, Shape)>),
}

impl Shape {
    fn schema(&self) -> Value {
        match self {
            Shape::Integer { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
            Shape::Boolean => json!({"type": "boolean"}),
            Shape::Text { longest } => json!({"type": "string", "maxLength": longest}),
            Shape::Choice(words) => json!({ "enum": words }),
            Shape::List { of, least, most } => {
                json!({"type": "array", "items": of.schema(), "minItems": least, "maxItems": most})
            }
            Shape::Object(fields) => {
                let properties: Map<String, Value> =
                    fields.iter().map(|(name, _, shape)| (name.clone(), shape.schema())).collect();
                let required: Vec<&String> =
                    fields.iter().filter(|(_, required, _)| *required).map(|(name, ..)| name).collect();
                json!({
                    "type": "object", "properties": properties, "required": required,
                    "additionalProperties": false,
                })
            }
        }
    }

    fn allows(&self, value: &Value) -> bool {
        match (self, value) {
            (Shape::Integer { least, most }, Value::Number(n)) => {
                // `-0` is an integer too, which serde_json takes for a float.
                n.as_f64().is_some_and(|n| n.fract() == 0.0 && (*least as f64..=*most as f64).contains(&n))
            }
            (Shape::Boolean, Value::Bool(_)) => true,
            (Shape::Text { longest }, Value::String(text)) => text.chars().count() <= *longest,
            (Shape::Choice(words), Value::String(text)) => words.contains(text),
            (Shape::List { of, least, most }, Value::Array(items)) => {
                (*least..=*most).contains(&items.len()) && items.iter().all(|item| of.allows(item))
            }
            (Shape::Object(fields), Value::Object(object)) => {
                let known = |name: &String| fields.iter().any(|(field, ..)| field == name);
                object.keys().all(known)
                    && fields.iter().all(|(name, required, shape)| match object.get(name) {
                        Some(value) => shape.allows(value),
                        None => !required,
                    })
            }
            _ => false,
        }
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    let name = || prop::sample::select(vec!["name", "age", "ok", "tags", "a \"b\"", "größe", "x"]);
    let word = prop::sample::select(vec!["red", "green", "blue grey", "", "😀", "\\"]);
    let leaf = prop_oneof![
        (-50i64..50, 0i64..2000).prop_map(|(least, span)| Shape::Integer { least, most: least + span }),
        Just(Shape::Boolean),
        (0usize..12).prop_map(|longest| Shape::Text { longest }),
        prop::collection::btree_set(word, 1..4)
            .prop_map(|words| Shape::Choice(words.into_iter().map(str::to_owned).collect())),
    ];
    leaf.prop_recursive(2, 8, 3, move |inner| {
        let field = (name(), any::<bool>(), inner.clone());
        prop_oneof![
            (inner, 0usize..3, 0usize..3).prop_map(|(of, least, span)| Shape::List {
                of: Box::new(of),
                least,
                most: least + span
            }),
            prop::collection::vec(field, 0..4).prop_map(|fields| {
                let mut known = std::collections::HashSet::new();
                let fields = fields.into_iter().filter(|(name, ..)| known.insert(*name));
                Shape::Object(fields.map(|(name, r, shape)| (name.to_owned(), r, shape)).collect())
            }),
        ]
    })
}

fn question(thinking: bool) -> Vec<u32> {
    let messages = [Message::new("user", "Tell me about Anna, who is 31.")];
    let options = RenderOptions { enable_thinking: Some(thinking), ..RenderOptions::default() };
    NANO.0.chat(&messages, &options).unwrap().ids
}

fn answer(executor: &mut CpuExecutor, source: &Source, options: Options, thinking: bool) -> Outcome {
    let grammar = NANO.1.compile(source).unwrap();
    let after = executor.config().controls.think_end_id.filter(|_| thinking);
    let options = Options { constraint: Some(Constraint { grammar, after }), ..options };
    let mut session = Session::new();
    let outcome =
        session.generate(executor, &question(thinking), &options, &mut |_| ControlFlow::Continue(()));
    session.close(executor);
    outcome.unwrap()
}

/// The text behind the reasoning, if that has ended.
fn text(executor: &CpuExecutor, outcome: &Outcome, thinking: bool) -> Option<String> {
    let mut ids = &outcome.tokens[..];
    if thinking {
        let end = executor.config().controls.think_end_id.unwrap();
        ids = &ids[ids.iter().position(|&id| id == end)? + 1..];
    }
    Some(NANO.0.tokenizer().decode(ids, true).unwrap())
}

/// Outside of its strings: a space behind each comma and colon, and nowhere else.
fn is_spaced_as_documented(json: &str) -> bool {
    let (mut inside, mut escaped, mut outside) = (false, false, String::new());
    for c in json.chars() {
        let quote = c == '"' && !escaped;
        escaped = inside && c == '\\' && !escaped;
        inside ^= quote;
        if !inside {
            outside.push(c);
        }
    }
    outside.replace(", ", "").replace(": ", "").chars().all(|c| !c.is_whitespace() && c != ',' && c != ':')
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn answers_parse_and_validate_or_were_cut(
        shape in shapes(),
        mode in prop::sample::select(Mode::ALL.to_vec()),
        typical in any::<bool>(),
        block in prop::sample::select(vec![1usize, 5, 16, 32]),
        temperature in prop::sample::select(vec![0.0f32, 0.0, 0.8, 1.5]),
        thinking in prop::sample::select(vec![false, false, true]),
        max_tokens in prop::sample::select(vec![7usize, 40, 80]),
        threshold in 0.3f32..0.95,
        seed in any::<u64>(),
    ) {
        let mut executor = executor();
        let options = Options {
            max_tokens,
            block_size: Some(block),
            rule: Some(shamrock_generate::Rule::threshold(threshold)),
            accept: if typical && mode == Mode::Draft { Accept::TYPICAL } else { Accept::Exact },
            sampling: Sampling { temperature, seed, ..Sampling::GREEDY },
            ..Options::new(mode)
        };
        let outcome = answer(&mut executor, &Source::JsonSchema(shape.schema()), options, thinking);
        let text = text(&executor, &outcome, thinking);
        match outcome.finish {
            Finish::Stop { .. } => {
                let text = text.expect("no end in the reasoning");
                let value = serde_json::from_str(&text);
                prop_assert!(value.as_ref().is_ok_and(|value| shape.allows(value)), "{text} {shape:?}");
                prop_assert!(is_spaced_as_documented(&text), "{text}");
            }
            Finish::Length => prop_assert_eq!(outcome.tokens.len(), max_tokens),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn a_model_that_writes_prose_writes_what_the_schema_asks_for() {
    let mut executor = executor();
    let shape = Shape::Object(vec![
        ("name".into(), true, Shape::Text { longest: 12 }),
        ("age".into(), true, Shape::Integer { least: 0, most: 150 }),
        ("colour".into(), true, Shape::Choice(vec!["red".into(), "green".into()])),
    ]);
    for mode in Mode::ALL {
        for thinking in [false, true] {
            let options = Options { max_tokens: 400, ..Options::new(mode) };
            let outcome = answer(&mut executor, &Source::JsonSchema(shape.schema()), options, thinking);
            let text = text(&executor, &outcome, thinking).expect("the reasoning ends");
            assert!(matches!(outcome.finish, Finish::Stop { .. }), "{mode} {thinking}: {text}");
            assert!(shape.allows(&serde_json::from_str(&text).unwrap()), "{mode} {thinking}: {text}");
        }
    }
}

/// A forced text is cut as the tokenizer cuts it, wherever it begins, and costs no pass.
#[test]
fn what_is_forced_has_one_form_and_costs_no_pass() {
    let mut executor = executor();
    let text = r#"{"first name": "Anna-Louise", "größe": [1, 2, 3], "ok": true}"#;
    let source = Source::Lark(format!("start: {}", json!(text)));
    let options = Options { max_tokens: 200, ..Options::new(Mode::Denoise) };
    let outcome = answer(&mut executor, &source, options, false);
    let (end, ids) = outcome.tokens.split_last().unwrap();
    assert_eq!(NANO.0.tokenizer().encode(text).unwrap(), ids);
    assert!(matches!(outcome.finish, Finish::Stop { id } if id == *end));
    assert_eq!(outcome.stats.deciding, outcome.tokens.len().div_ceil(32), "a pass a block");
}

#[test]
fn a_grammar_of_ones_own() {
    let mut executor = executor();
    let source = Source::Lark("start: \"yes\" | \"no\" | /[0-9]{3}/".into());
    for mode in Mode::ALL {
        let outcome = answer(&mut executor, &source, Options { max_tokens: 20, ..Options::new(mode) }, false);
        let text = text(&executor, &outcome, false).unwrap();
        let digits = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
        assert!(digits || text == "yes" || text == "no", "{mode}: {text:?}");
    }
}

#[test]
fn control_tokens_are_no_part_of_a_text() {
    let grammar = NANO.1.compile(&Source::JsonSchema(json!({"type": "string"}))).unwrap();
    let mut matcher = grammar.matcher().unwrap();
    let quote = NANO.0.tokenizer().encode("\"").unwrap();
    assert!(matcher.advance(quote[0]).unwrap());
    for name in ["<think>", "</think>", "<|im_end|>", "<|mask|>"] {
        assert!(!matcher.advance(NANO.0.tokenizer().id(name).unwrap()).unwrap(), "{name}");
    }
    // The same spelled out is text.
    for id in NANO.0.tokenizer().encode("</think>").unwrap() {
        assert!(matcher.advance(id).unwrap());
    }
    assert!(!matcher.may_end().unwrap());
    assert!(matcher.advance(quote[0]).unwrap() && matcher.may_end().unwrap());
    matcher.rewind(1).unwrap();
    assert!(!matcher.may_end().unwrap());
}

/// No token of a vocabulary ends a text, in particular not its first one, which here is `!`.
#[test]
fn the_first_token_is_one_like_any_other() {
    assert_eq!(NANO.0.tokenizer().decode(&[0], false).unwrap(), "!");
    let grammar = NANO.1.compile(&Source::JsonSchema(json!({"type": "integer"}))).unwrap();
    let mut matcher = grammar.matcher().unwrap();
    for id in NANO.0.tokenizer().encode("31").unwrap() {
        assert!(matcher.advance(id).unwrap());
    }
    let mut logits = vec![0.0; nano().config.vocab_size];
    matcher.mask(&mut logits).unwrap();
    assert!(matcher.may_end().unwrap() && logits[0] == f32::NEG_INFINITY && !matcher.advance(0).unwrap());

    let mut executor = executor();
    for mode in Mode::ALL {
        for (schema, want) in [
            (json!({"const": "!"}), Some(json!("!"))),
            (json!({"const": "hi ! there!"}), Some(json!("hi ! there!"))),
            (json!({"type": "integer", "minimum": 0, "maximum": 99}), None),
            (json!({"type": ["integer", "null"]}), None),
        ] {
            let options = Options { max_tokens: 60, ..Options::new(mode) };
            let outcome = answer(&mut executor, &Source::JsonSchema(schema.clone()), options, false);
            let text = text(&executor, &outcome, false).unwrap();
            let value = serde_json::from_str::<Value>(&text);
            if matches!(outcome.finish, Finish::Stop { .. }) {
                let value = value.unwrap_or_else(|_| panic!("{mode} {schema}: {text}"));
                assert!(want.is_none_or(|want| want == value), "{mode} {schema}: {text}");
            }
        }
    }
}

/// Tools are blamed by name, without a word of the grammar that is made of them; what a form of calls
/// cannot be held to is refused to strict tools.
#[test]
fn bad_tools_say_which_and_why() {
    let tool = |name: &str, parameters: Value, strict| Tool {
        name: name.to_owned(),
        description: None,
        parameters,
        strict,
    };
    let compile = |format, tools: Vec<Tool>| {
        let calls = Calls { format, tools: Tools::new(tools), otherwise: Otherwise::Nothing, parallel: true };
        NANO.1.compile(&Source::Calls(calls)).map(drop).map_err(|error| error.to_string())
    };
    let text = |more: Value| {
        let mut property = json!({"type": "string"});
        property.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "object", "properties": {"a": property}, "required": ["a"]})
    };
    for format in [ToolFormat::Json, ToolFormat::Xml] {
        let good = tool("good", text(json!({})), true);
        let bad = json!({"type": "object", "properties": {"a": {"type": "wombat"}}});
        let refused = compile(format, vec![good.clone(), tool("bad", bad.clone(), true)]);
        assert_eq!(refused, Err("bad: Invalid type: wombat".to_owned()));
        assert_eq!(compile(format, vec![good, tool("bad", bad, false)]), Ok(()));
    }
    let short = text(json!({"maxLength": 3}));
    assert_eq!(compile(ToolFormat::Json, vec![tool("f", short.clone(), true)]), Ok(()));
    let refused = compile(ToolFormat::Xml, vec![tool("f", short.clone(), true)]).unwrap_err();
    assert!(refused.starts_with("f: a: `maxLength` cannot be held to"), "{refused}");
    assert_eq!(compile(ToolFormat::Xml, vec![tool("f", short, false)]), Ok(()));
}

/// Sources of unknown origin: an error in a line, soon, whatever they are.
#[test]
fn bad_sources_say_what_is_wrong() {
    let refused = |schema: Value| match NANO.1.compile(&Source::JsonSchema(schema)) {
        Ok(_) => panic!("taken"),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n') && message.len() < 500, "{message}");
            message
        }
    };
    assert!(refused(json!({"type": "wombat"})).contains("wombat"));
    assert!(refused(json!({"type": "string", "pattern": "("})).contains("regex"));
    assert!(refused(json!({"$ref": "#/$defs/none"})).contains("none"));
    assert!(refused(json!(7)).contains("must be an object"));
    // Numbers that the library would round, or panic on.
    let far = json!({"type": "object", "properties": {"a/b": {"type": "integer", "minimum": i64::MIN}}});
    assert!(refused(far).starts_with("#/properties/a~1b/minimum: -9223372036854775808 is beyond"));
    for schema in [
        json!({"type": "integer", "exclusiveMaximum": 1e30}),
        json!({"type": "number", "maximum": -1e300}),
        json!({"type": "number", "minimum": 1e-300}),
        json!({"type": "integer", "multipleOf": u64::MAX}),
        json!({"const": 9_007_199_254_740_993u64}),
        json!({"items": {"enum": [[{"x": i64::MIN}]]}}),
        json!({"properties": {"const": {"minimum": 1e17}}}),
        json!({"components": {"x": {"minimum": 1e17}}, "$ref": "#/components/x"}),
        json!({"type": "string", "maxLength": u64::MAX}),
        // What the library would let through.
        json!({"type": "object", "patternProperties": {"^[ab]$": {}}, "additionalProperties": false, "minProperties": 2}),
        json!({"type": "object", "required": ["a"], "minProperties": 2}),
        json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}),
        json!({"type": ["number", "null"], "minimum": 2, "exclusiveMaximum": 2.5}),
    ] {
        assert!(refused(schema.clone()).starts_with('#'), "{schema}");
    }
    // As data they mean nothing, and as far as they are exact they are held to.
    let exact = json!({"type": "integer", "minimum": -9_007_199_254_740_991i64, "default": 1e300});
    assert!(NANO.1.compile(&Source::JsonSchema(exact)).is_ok());
    let wide = json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1});
    assert!(NANO.1.compile(&Source::JsonSchema(wide)).is_ok());
    assert_eq!(
        refused(json!({"type": "integer", "minimum": 1, "multipleOf": 1e9})),
        "it cannot be compiled; simpler parts may"
    );
    assert!(refused(json!({"type": "integer", "minimum": 3, "maximum": 2})).contains("nsatisfiable"));
    // Boundless as texts, but not as a grammar.
    let _ = NANO.1.compile(&Source::JsonSchema(json!({"pattern": "((a{1000}){1000}){1000}"})));
    refused(json!({"not": {"type": "string"}}));
    // Nothing is recommended that a schema cannot ask for, and nothing is said in marks of the library.
    let either = refused(json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}));
    assert!(either.contains("`anyOf`") && !either.contains("coerce"), "{either}");
    assert!(!refused(json!({"type": "wombat"})).contains('<'));
    // Nothing is fetched.
    refused(json!({"$ref": "http://127.0.0.1:9/schema.json"}));
    let long = Value::String("x".repeat(70_000));
    assert_eq!(
        NANO.1.compile(&Source::JsonSchema(json!({ "const": long }))).unwrap_err(),
        Error::TooLong { bytes: 70_012, limit: 65_536 }
    );
    let chain: Map<String, Value> = (0..1500)
        .map(|i| (format!("d{i}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}]})))
        .collect();
    // Whatever the library makes of it, the process outlives it.
    let _ = NANO.1.compile(&Source::JsonSchema(json!({"$defs": chain, "$ref": "#/$defs/d0"})));
    let nested = (0..100).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}));
    assert!(NANO.1.compile(&Source::JsonSchema(nested)).is_ok());
    let _ =
        NANO.1.compile(&Source::Lark(format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000))));
}
