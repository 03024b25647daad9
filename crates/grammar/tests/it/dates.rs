//! Dates as RFC 3339 has them, against a calendar by arithmetic.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use shamrock_generate::Grammar;
use shamrock_grammar::Source;

use crate::{NANO, nano};

fn grammar(schema: Value) -> Arc<dyn Grammar> {
    NANO.1.compile(&Source::JsonSchema(schema)).unwrap()
}

/// Whether a grammar takes a JSON text.
fn takes(grammar: &Arc<dyn Grammar>, text: &str) -> bool {
    let mut matcher = grammar.matcher().unwrap();
    let ids = NANO.0.tokenizer().encode(text).unwrap();
    ids.into_iter().all(|id| matcher.advance(id).unwrap()) && matcher.may_end().unwrap()
}

fn is_date(year: u32, month: u32, day: u32) -> bool {
    let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// Whether a text of ten bytes is a date.
fn names_a_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let digits = parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()));
    let numbers: Vec<u32> = parts.iter().filter_map(|part| part.parse().ok()).collect();
    let form = digits && parts.iter().map(|part| part.len()).eq([4, 2, 2]);
    form && is_date(numbers[0], numbers[1], numbers[2])
}

/// A text of tokens that a grammar allows, chosen by `draws`; cut if there are too few of them.
fn drawn(grammar: &Arc<dyn Grammar>, draws: &[Index]) -> String {
    let vocab = nano().config.vocab_size;
    let mut matcher = grammar.matcher().unwrap();
    let mut ids = Vec::new();
    for draw in draws {
        if matcher.may_end().unwrap() {
            break;
        }
        let mut logits = vec![0.0; vocab];
        matcher.mask(&mut logits).unwrap();
        let allowed: Vec<u32> = (0..vocab as u32).filter(|&id| logits[id as usize] == 0.0).collect();
        ids.push(*draw.get(&allowed));
        assert!(matcher.advance(ids[ids.len() - 1]).unwrap());
    }
    NANO.0.tokenizer().decode(&ids, false).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn days_are_those_of_the_calendar(
        year in prop_oneof![0u32..10_000, (0u32..100).prop_map(|century| century * 100)],
        month in prop_oneof![0u32..14, Just(2)],
        day in prop_oneof![0u32..33, 28u32..32],
    ) {
        static DATE: LazyLock<Arc<dyn Grammar>> =
            LazyLock::new(|| grammar(json!({"type": "string", "format": "date"})));
        let text = format!("{year:04}-{month:02}-{day:02}");
        prop_assert_eq!(takes(&DATE, &format!("{text:?}")), is_date(year, month, day), "{}", text);
    }

    #[test]
    fn what_is_generated_is_a_date(
        timed in any::<bool>(),
        // A late day of a February is seldom drawn.
        february in any::<bool>(),
        draws in prop::collection::vec(any::<Index>(), 60),
    ) {
        static GRAMMARS: LazyLock<[[Arc<dyn Grammar>; 2]; 2]> = LazyLock::new(|| {
            ["date", "date-time"].map(|format| {
                ["", "^....-02-2"].map(|pattern| {
                    grammar(json!({"type": "string", "format": format, "pattern": pattern}))
                })
            })
        });
        let text = drawn(&GRAMMARS[usize::from(timed)][usize::from(february)], &draws);
        prop_assert!(text.get(1..11).is_some_and(names_a_date), "{}", text);
        prop_assert!(text.len() == 12 || timed && &text[11..12] != "\"", "{}", text);
    }
}

#[test]
fn leap_days_are_known_wherever_a_format_stands() {
    let date = json!({"type": "string", "format": "date"});
    for (schema, around) in [
        (date.clone(), ["", ""]),
        (json!({"type": "array", "items": date}), ["[", "]"]),
        (json!({"anyOf": [{"type": "null"}, date]}), ["", ""]),
        (json!({"allOf": [{"minLength": 10}], "type": "string", "format": "date"}), ["", ""]),
        (json!({"type": "string", "format": "date", "pattern": "^2", "maxLength": 10}), ["", ""]),
        (json!({"$defs": {"d": date}, "$ref": "#/$defs/d"}), ["", ""]),
        (json!({"examples": {"d": date}, "$ref": "#/examples/d"}), ["", ""]),
        // Names that are keywords elsewhere.
        (json!({"properties": {"format": date}, "required": ["format"]}), [r#"{"format": "#, "}"]),
        (json!({"properties": {"const": date}, "required": ["const"]}), [r#"{"const": "#, "}"]),
        (json!({"type": "object", "additionalProperties": date}), [r#"{"x": "#, "}"]),
    ] {
        let compiled = grammar(schema.clone());
        let taken = |day: &str| takes(&compiled, &format!("{}\"{day}\"{}", around[0], around[1]));
        assert!(taken("2024-02-29") && taken("2000-02-29"), "{schema}");
        assert!(!taken("2023-02-29") && !taken("2100-02-29"), "{schema}");
    }
    // Data are not spelled out, and other formats stay.
    assert!(takes(&grammar(json!({"const": {"format": "date"}})), r#"{"format": "date"}"#));
    assert!(!takes(&grammar(json!({"type": "string", "format": "uuid"})), r#""2024-02-29""#));
    // Where not all that is said of a text can hold, it is refused.
    let short = json!({"type": "string", "format": "date", "maxLength": 9});
    assert!(NANO.1.compile(&Source::JsonSchema(short)).is_err());
}

#[test]
fn times_have_an_offset_and_leap_seconds_are_at_the_end_of_a_day() {
    let format = |format: &str| grammar(json!({"type": "string", "format": format}));
    let (time, date_time) = (format("time"), format("date-time"));
    for (text, right) in [
        ("00:00:00Z", true),
        ("23:59:59.999+23:59", true),
        ("12:30:00z", true),
        ("12:30:00", false),
        ("24:00:00Z", false),
        ("12:60:00Z", false),
        ("12:30:00+24:00", false),
        ("12:30:00.Z", false),
        ("23:59:60Z", true),
        ("23:59:60.5-00:00", true),
        ("23:58:60Z", false),
        ("23:59:60+01:00", false),
    ] {
        assert_eq!(takes(&time, &format!("{text:?}")), right, "{text}");
        for (date, real) in [("2000-02-29T", true), ("2024-02-29t", true), ("1900-02-29T", false)] {
            assert_eq!(takes(&date_time, &format!("\"{date}{text}\"")), right && real, "{date}{text}");
        }
    }
}
