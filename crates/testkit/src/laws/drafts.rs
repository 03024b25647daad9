//! Drafting, which leans on all the other laws.

use std::ops::ControlFlow;

use proptest::prelude::*;
use shamrock_generate::{Mode, Options, Outcome, Session};

use super::Bench;
use super::trial::{Checked, Trial, tokens};

pub(super) fn exact_drafts(bench: &Bench<'_>) -> Result<(), String> {
    let inputs = (tokens(1..20), 2..9usize);
    bench.law("exact drafting is causal decoding", inputs, |t, (prompt, width)| {
        let causal = Options { max_tokens: 16, ..Options::new(Mode::Causal) };
        let draft = Options { draft_width: Some(width), mode: Mode::Draft, ..causal.clone() };
        let (causal, draft) = (answer(t, &prompt, &causal)?, answer(t, &prompt, &draft)?);
        let off = t.tolerance.probability();
        for (i, (got, want)) in draft.tokens.iter().zip(&causal.tokens).enumerate() {
            let (p, q) = (draft.confidence[i], causal.confidence[i]);
            if got != want && off > 0.0 && (p - q).abs() <= 2.0 * off {
                return Ok(()); // a tie that fell the other way; from here on they may differ
            }
            prop_assert_eq!(got, want, "token {}", i);
            prop_assert!((p - q).abs() <= off, "confidence of token {i}: {p}, expected {q}");
        }
        prop_assert_eq!(draft.tokens.len(), causal.tokens.len(), "number of tokens");
        prop_assert_eq!(draft.finish, causal.finish, "ending");
        Ok(())
    })
}

fn answer(t: &mut Trial<'_>, prompt: &[u32], options: &Options) -> Checked<Outcome> {
    let mut session = Session::new();
    let outcome = session.generate(t.executor, prompt, options, &mut |_| ControlFlow::Continue(()));
    session.close(t.executor);
    outcome.map_err(|e| TestCaseError::fail(format!("{:?}: {e}", options.mode)))
}
