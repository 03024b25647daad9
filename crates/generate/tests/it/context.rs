//! Where the context ends.

use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Error, Finish, Mode, Options, Session};

use crate::support::quiet;

const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];

/// Tokens of an answer that nothing but the context ends.
fn answer(mode: Mode, context: usize) -> Result<Vec<u32>, Error> {
    let mut executor = ScriptedExecutor::new(11).with_context(context);
    let options = Options { ignore_eos: true, ..Options::new(mode) };
    let outcome = Session::new().generate(&mut executor, &PROMPT, &options, &mut quiet)?;
    assert_eq!(outcome.finish, Finish::Context);
    Ok(outcome.tokens)
}

#[test]
fn an_answer_fills_the_context_and_no_more() {
    for room in 1..=20 {
        let context = PROMPT.len() + room;
        let blocks = answer(Mode::Denoise, context).unwrap();
        assert_eq!(blocks.len(), room, "the last block is as short as the room");
        // A causal row predicts one token behind the context, which needs no room of its own.
        let decoded = answer(Mode::Causal, context).unwrap();
        assert_eq!(decoded.len(), room + 1);
        assert_eq!(answer(Mode::Draft, context).unwrap(), decoded);
        assert_eq!(answer(Mode::Auto, context).unwrap(), decoded);
    }
}

#[test]
fn a_context_of_whole_blocks_gives_the_unlimited_answer() {
    let long = answer(Mode::Denoise, 100).unwrap();
    assert_eq!(answer(Mode::Denoise, PROMPT.len() + 16).unwrap(), long[..16]);
}

#[test]
fn a_prompt_that_fills_the_context_is_refused() {
    for mode in Mode::ALL {
        for context in [1, PROMPT.len() - 1, PROMPT.len()] {
            let error = answer(mode, context).unwrap_err();
            assert!(matches!(error, Error::PromptTooLong { tokens: 5, limit } if limit == context));
        }
    }
}

#[test]
fn the_token_limit_comes_before_the_context() {
    let mut executor = ScriptedExecutor::new(11).with_context(PROMPT.len() + 8);
    let options = Options { max_tokens: 8, ignore_eos: true, ..Options::new(Mode::Denoise) };
    let outcome = Session::new().generate(&mut executor, &PROMPT, &options, &mut quiet).unwrap();
    assert_eq!((outcome.tokens.len(), outcome.finish), (8, Finish::Length));
}
