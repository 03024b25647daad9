use proptest::prelude::*;
use shamrock_text::{Piece, ReasoningSplitter, ReasoningTags, StopOutcome, StopStrings};

/// Cuts `text` before each character whose flag is set.
fn cut<'t>(text: &'t str, flags: &[bool]) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for ((at, _), flag) in text.char_indices().zip(flags.iter().cycle()).skip(1) {
        if *flag {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// All text that comes out, and the stop.
fn stop(stops: &[String], pieces: &[&str]) -> (String, Option<usize>) {
    let mut stream = StopStrings::new(stops);
    let mut out = String::new();
    let mut stopped = None;
    for piece in pieces {
        let outcome = stream.push(piece);
        out += &outcome.text;
        stopped = outcome.stopped;
    }
    out += &stream.finish();
    (out, stopped)
}

/// The definition: the first end of a stop string, and there the longest one.
fn stop_by_definition(stops: &[String], text: &str) -> (String, Option<usize>) {
    for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let ending = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(stop.as_str()))
            .map(|(which, stop)| (end - stop.len(), which))
            .min();
        if let Some((start, which)) = ending {
            return (text[..start].to_owned(), Some(which));
        }
    }
    (text.to_owned(), None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn stop_strings_do_not_depend_on_the_cuts(
        stops in prop::collection::vec("[abé]{0,4}", 0..4),
        text in "[abé]{0,12}",
        cuts in prop::collection::vec(any::<bool>(), 12),
    ) {
        prop_assert_eq!(stop(&stops, &cut(&text, &cuts)), stop_by_definition(&stops, &text));
    }

    /// Tags, parts of tags and line breaks in any order and any cut.
    #[test]
    fn reasoning_does_not_depend_on_the_cuts(
        parts in prop::collection::vec(
            prop::sample::select(vec!["<think>", "</think>", "<th", "</", "ink>", "\n", "é", "a b"]),
            0..12,
        ),
        cuts in prop::collection::vec(any::<bool>(), 30),
        inside: bool,
    ) {
        let text = parts.concat();
        prop_assert_eq!(split(&cut(&text, &cuts), inside), split(&[&text], inside));
    }
}

#[test]
fn stop_strings_are_found_at_every_cut() {
    let stops = ["</s>".to_owned(), "Ünd".to_owned()];
    let text = "one < two </ three Ün</s>four";
    for first in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
        for second in (first..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            let pieces = [&text[..first], &text[first..second], &text[second..]];
            let expected = ("one < two </ three Ün".to_owned(), Some(0));
            assert_eq!(stop(&stops, &pieces), expected, "{pieces:?}");
        }
    }
}

#[test]
fn only_what_may_begin_a_stop_string_is_held_back() {
    let mut stream = StopStrings::new(["\nUser:"]);
    let mut push = |text: &str| {
        let StopOutcome { text, stopped } = stream.push(text);
        assert_eq!(stopped, None);
        text
    };
    assert_eq!(push("Hi"), "Hi");
    assert_eq!(push(" you\n"), " you");
    assert_eq!(push("Us"), "");
    assert_eq!(push("ual\nUser"), "\nUsual");
    assert_eq!(stream.finish(), "\nUser");
}

#[test]
fn nothing_follows_a_stop() {
    let mut stream = StopStrings::new(["."]);
    assert_eq!(stream.push("a.b").text, "a");
    assert_eq!(stream.push("c"), StopOutcome { text: String::new(), stopped: Some(0) });
    assert_eq!(stream.finish(), "");
}

/// Pieces with neighbours of one kind joined.
fn split(pieces: &[&str], inside: bool) -> Vec<Piece> {
    let mut splitter = ReasoningSplitter::new(ReasoningTags::default(), inside);
    let mut out: Vec<Piece> = Vec::new();
    let all = pieces.iter().flat_map(|piece| splitter.push(piece)).collect::<Vec<_>>();
    for piece in all.into_iter().chain(splitter.finish()) {
        match (out.last_mut(), piece) {
            (Some(Piece::Reasoning(text)), Piece::Reasoning(more))
            | (Some(Piece::Content(text)), Piece::Content(more)) => text.push_str(&more),
            (_, piece) => out.push(piece),
        }
    }
    out
}

#[test]
fn reasoning_is_told_from_content() {
    let thought = |text: &str| Piece::Reasoning(text.to_owned());
    let said = |text: &str| Piece::Content(text.to_owned());
    for (text, inside, expected) in [
        ("<think>\na\n\nb\n</think>\n\nc\n", false, vec![thought("a\n\nb"), said("c\n")]),
        ("a\n</think>\n\nb", true, vec![thought("a"), said("b")]),
        ("a <thin> </think> b", false, vec![said("a <thin> </think> b")]),
        ("<think>a<think>b</think>", false, vec![thought("a<think>b")]),
        ("x<think>y</think>z<think>w", false, vec![said("x"), thought("y"), said("z"), thought("w")]),
        ("cut off\n</thi", true, vec![thought("cut off\n</thi")]),
        ("\n\n</think>\n\n", true, vec![]),
        ("\nplain", false, vec![said("\nplain")]),
    ] {
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            let (head, tail) = text.split_at(at);
            assert_eq!(split(&[head, tail], inside), expected, "{head:?} {tail:?}");
        }
    }
}

#[test]
fn prompts_that_open_reasoning() {
    let tags = ReasoningTags::default();
    assert!(tags.opened_by("<|im_start|>assistant\n<think>\n"));
    assert!(!tags.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!tags.opened_by("<|im_start|>user\n<think>\n<|im_end|>\n<|im_start|>assistant\n"));
}
