//! What has happened to an answer, pass by pass, and how its blocks stood after any of them.

use std::time::Duration;

use shamrock_generate::{PassEvent, Work};

/// All passes of an answer, and its blocks after the first [`shown`](Film::shown) of them.
#[derive(Default)]
pub struct Film {
    /// The token that stands for none.
    mask: Option<u32>,
    passes: Vec<Pass>,
    shown: usize,
    blocks: Vec<Block>,
    /// Tokens of the whole answer, once it has ended.
    total: Option<usize>,
}

/// One pass, with its tokens as text.
pub struct Pass {
    /// Since the answer began.
    pub at: Duration,
    /// Tokens it decided.
    pub decided: usize,
    /// It was there to decide some.
    pub deciding: bool,
    deed: Deed,
}

enum Deed {
    Commit {
        rows: usize,
    },
    /// Rows that are open afterwards may have been fixed before: a rule can take a token back.
    Denoise {
        block: usize,
        width: usize,
        fixed: Vec<(usize, String, f32)>,
        open: Vec<usize>,
    },
    Propose {
        drafts: Vec<(String, f32)>,
    },
    Verify {
        drafts: Vec<String>,
        accepted: usize,
        bonus: String,
        ahead: Vec<(String, f32)>,
    },
    Decode {
        token: (String, f32),
    },
}

/// A block of a denoised answer, a draft, or what causal decoding wrote in a row.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// In one word.
    pub title: &'static str,
    /// Passes over it so far.
    pub passes: usize,
    /// Its rows.
    pub cells: Vec<Cell>,
}

/// One row of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What is known of it.
    pub kind: Kind,
    /// Its token; empty for a mask.
    pub text: String,
    /// How sure the model was; nothing is known of a token that a verification added.
    pub confidence: Option<f32>,
    /// Number of the pass it comes from.
    pub pass: usize,
}

impl Cell {
    /// Whether its token steers rather than spells.
    pub fn is_control(&self) -> bool {
        self.text.starts_with("<|") && self.text.ends_with("|>")
    }
}

/// What is known of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Mask,
    /// A proposal.
    Draft,
    /// A proposal that did not hold.
    Rejected,
    /// The token stands.
    Known,
}

impl Film {
    /// An empty film of a model with this mask token.
    pub fn new(mask: Option<u32>) -> Film {
        Film { mask, ..Film::default() }
    }

    /// Adds a pass; `text` is what one id reads as.
    pub fn record(&mut self, pass: &PassEvent<'_>, at: Duration, text: impl Fn(u32) -> String) {
        let sure = |ids: &[u32], confidence: &[f32]| -> Vec<(String, f32)> {
            ids.iter().zip(confidence).map(|(&id, &sure)| (text(id), sure)).collect()
        };
        let (deed, decided) = match pass.work {
            Work::Commit => (Deed::Commit { rows: pass.committed }, 0),
            Work::Denoise { block, rows, tokens, confidence, ids, .. } => {
                let fixed = rows.iter().zip(sure(tokens, confidence));
                let fixed: Vec<_> = fixed.map(|(&row, (text, sure))| (row, text, sure)).collect();
                let decided = fixed.len();
                let open = (0..ids.len()).filter(|&row| Some(ids[row]) == self.mask).collect();
                (Deed::Denoise { block, width: ids.len(), fixed, open }, decided)
            }
            Work::Propose { drafts, confidence } => (Deed::Propose { drafts: sure(drafts, confidence) }, 0),
            Work::Verify { drafts, accepted, bonus, ahead, confidence, .. } => {
                // Only where all drafts held and the first guess beyond them did is the rest a draft.
                let goes_on = accepted == drafts.len() && ahead.first() == Some(&bonus);
                let ahead = if goes_on { sure(ahead, confidence).split_off(1) } else { Vec::new() };
                let drafts = drafts.iter().map(|&id| text(id)).collect();
                (Deed::Verify { drafts, accepted, bonus: text(bonus), ahead }, accepted + 1)
            }
            Work::Decode { token, confidence } => (Deed::Decode { token: (text(token), confidence) }, 1),
        };
        let deciding = !matches!(deed, Deed::Commit { .. });
        self.passes.push(Pass { at, decided, deciding, deed });
    }

    /// Passes there are.
    pub fn len(&self) -> usize {
        self.passes.len()
    }

    /// Passes that the blocks have gone through.
    pub fn shown(&self) -> usize {
        self.shown
    }

    /// The passes.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// The blocks, oldest first.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The answer has ended with so many tokens.
    pub fn end(&mut self, tokens: usize) {
        self.total = Some(tokens);
    }

    /// Tokens of the answer that stand, the one that ends it included but not what fills the block behind
    /// it. After the last pass they are those of the answer, which a limit or a stop string may have cut.
    pub fn tokens(&self) -> usize {
        if let Some(total) = self.total.filter(|_| self.shown == self.passes.len()) {
            return total;
        }
        let mut ended = false;
        let cells = self.blocks.iter().flat_map(|block| &block.cells);
        let mut known = 0;
        for cell in cells.filter(|cell| cell.kind == Kind::Known) {
            if ended {
                break;
            }
            ended = cell.is_control();
            known += 1;
        }
        known
    }

    /// Rows of the prompt that have been committed by themselves.
    pub fn prompt_rows(&self) -> usize {
        let rows = |pass: &Pass| if let Deed::Commit { rows } = pass.deed { rows } else { 0 };
        self.passes[..self.shown].iter().map(rows).sum()
    }

    /// Has the blocks stand as they did after `count` passes, or after all.
    pub fn show(&mut self, count: usize) {
        let count = count.min(self.passes.len());
        if count < self.shown {
            self.blocks.clear();
            self.shown = 0;
        }
        for number in self.shown..count {
            apply(&mut self.blocks, &self.passes[number].deed, number);
        }
        self.shown = count;
    }
}

fn apply(blocks: &mut Vec<Block>, deed: &Deed, number: usize) {
    let cell = |kind, text: &str, confidence| Cell { kind, text: text.to_owned(), confidence, pass: number };
    match deed {
        Deed::Commit { .. } => {}
        Deed::Denoise { block, width, fixed, open } => {
            if *block >= blocks.len() {
                blocks.push(Block {
                    title: "block",
                    passes: 0,
                    cells: vec![cell(Kind::Mask, "", None); *width],
                });
            }
            let Some(block) = blocks.last_mut() else { return };
            block.passes += 1;
            for (row, text, sure) in fixed {
                if let Some(place) = block.cells.get_mut(*row) {
                    *place = cell(Kind::Known, text, Some(*sure));
                }
            }
            for &row in open {
                if let Some(place) = block.cells.get_mut(row) {
                    *place = cell(Kind::Mask, "", None);
                }
            }
        }
        Deed::Propose { drafts } => blocks.push(draft(drafts, number)),
        Deed::Verify { drafts, accepted, bonus, ahead } => {
            let pending = blocks.last().is_some_and(|block| {
                !block.cells.is_empty() && block.cells.iter().all(|cell| cell.kind == Kind::Draft)
            });
            if !pending {
                let cells = drafts.iter().map(|text| cell(Kind::Draft, text, None)).collect();
                blocks.push(Block { title: "draft", passes: 0, cells });
            }
            if let Some(block) = blocks.last_mut() {
                block.passes += 1;
                // Verifications may take fewer drafts than were proposed.
                block.cells.truncate(drafts.len());
                for (row, cell) in block.cells.iter_mut().enumerate() {
                    cell.kind = if row < *accepted { Kind::Known } else { Kind::Rejected };
                    cell.pass = number;
                }
                let at = (*accepted).min(block.cells.len());
                block.cells.insert(at, cell(Kind::Known, bonus, None));
            }
            if !ahead.is_empty() {
                blocks.push(draft(ahead, number));
            }
        }
        Deed::Decode { token: (text, sure) } => {
            if blocks.last().is_none_or(|block| block.title != "decoded") {
                blocks.push(Block { title: "decoded", passes: 0, cells: Vec::new() });
            }
            let Some(block) = blocks.last_mut() else { return };
            block.passes += 1;
            block.cells.push(cell(Kind::Known, text, Some(*sure)));
        }
    }
}

fn draft(tokens: &[(String, f32)], pass: usize) -> Block {
    let cell = |(text, sure): &(String, f32)| Cell {
        kind: Kind::Draft,
        text: text.clone(),
        confidence: Some(*sure),
        pass,
    };
    Block { title: "draft", passes: 1, cells: tokens.iter().map(cell).collect() }
}

#[cfg(test)]
pub(super) mod tests {
    use shamrock_model::PassStats;

    use super::*;

    /// A film of passes over ids that read as letters: 0 is `a`.
    pub(in crate::watch) fn film(works: &[Work<'_>]) -> Film {
        let (mut film, cost) = (Film::default(), PassStats::default());
        for (pass, &work) in works.iter().enumerate() {
            let committed = if matches!(work, Work::Commit) { 5 } else { 0 };
            let event = PassEvent { pass, committed, length: 0, work, cost: &cost };
            let at = Duration::from_millis(100 * (pass as u64 + 1));
            film.record(&event, at, |id| char::from(b'a' + id as u8).to_string());
        }
        film.show(usize::MAX);
        film
    }

    pub(in crate::watch) fn denoise<'a>(
        block: usize,
        rows: &'a [usize],
        tokens: &'a [u32],
        confidence: &'a [f32],
    ) -> Work<'a> {
        Work::Denoise { block, step: 0, rows, tokens, confidence, forced: false, ids: &[9; 4] }
    }

    /// The last block's rows: `_` for a mask, a rejected draft in capitals, a draft in brackets.
    fn last(film: &Film) -> String {
        let text = |cell: &Cell| match cell.kind {
            Kind::Mask => "_".to_owned(),
            Kind::Known => cell.text.clone(),
            Kind::Rejected => cell.text.to_uppercase(),
            Kind::Draft => format!("({})", cell.text),
        };
        film.blocks().last().map(|block| block.cells.iter().map(text).collect()).unwrap_or_default()
    }

    #[test]
    fn blocks_stand_as_they_did_after_any_pass() {
        let mut film = film(&[
            Work::Commit,
            denoise(0, &[0, 2], &[0, 2], &[0.9, 0.5]),
            denoise(0, &[1, 3], &[1, 3], &[0.9, 0.9]),
            denoise(1, &[3], &[7], &[0.2]),
        ]);
        assert_eq!((last(&film).as_str(), film.blocks().len(), film.prompt_rows()), ("___h", 2, 5));
        for (count, blocks, rows) in [(2, 1, "a_c_"), (0, 0, ""), (3, 1, "abcd"), (1, 0, ""), (9, 2, "___h")]
        {
            film.show(count);
            assert_eq!((last(&film).as_str(), film.blocks().len()), (rows, blocks), "after {count}");
        }
        assert_eq!(film.passes().iter().map(|pass| pass.decided).collect::<Vec<_>>(), [0, 2, 2, 1]);
    }

    #[test]
    fn a_token_that_was_taken_back_is_a_mask_again() {
        let work = |rows, tokens, ids| Work::Denoise {
            block: 0,
            step: 0,
            rows,
            tokens,
            confidence: &[0.9, 0.9],
            forced: false,
            ids,
        };
        let (cost, mut film) = (PassStats::default(), Film::new(Some(9)));
        for work in [work(&[0, 1], &[0, 1], &[0, 1, 9]), work(&[2], &[2], &[9, 1, 2])] {
            let event = PassEvent { pass: 0, committed: 0, length: 0, work, cost: &cost };
            film.record(&event, Duration::ZERO, |id| char::from(b'a' + id as u8).to_string());
        }
        film.show(2);
        assert_eq!((last(&film).as_str(), film.tokens()), ("_bc", 2));
    }

    #[test]
    fn the_end_counts_and_what_fills_the_block_behind_it_does_not() {
        let work = Work::Denoise {
            block: 0,
            step: 0,
            rows: &[0, 2, 3],
            tokens: &[0, 1, 1],
            confidence: &[0.9; 3],
            forced: false,
            ids: &[0, 9, 1, 1],
        };
        let (cost, mut film) = (PassStats::default(), Film::new(Some(9)));
        let event = PassEvent { pass: 0, committed: 0, length: 0, work, cost: &cost };
        film.record(&event, Duration::ZERO, |id| ["a", "<|end|>"][id as usize].to_owned());
        film.show(1);
        assert_eq!(film.tokens(), 2);
        // A limit cut it before its end.
        film.end(1);
        assert_eq!(film.tokens(), 1);
        film.show(0);
        assert_eq!(film.tokens(), 0);
    }

    #[test]
    fn drafts_hold_or_do_not() {
        let verify = |drafts, accepted, bonus, ahead| Work::Verify {
            width: 4,
            drafts,
            accepted,
            bonus,
            ahead,
            confidence: &[0.5, 0.5],
        };
        let propose = Work::Propose { drafts: &[0, 1, 2], confidence: &[0.9, 0.8, 0.7] };
        let mut film = film(&[
            propose,
            verify(&[0, 1, 2], 1, 5, &[]),
            verify(&[0, 1], 2, 5, &[5, 6]),
            verify(&[6], 1, 7, &[1, 2]),
        ]);
        for (count, rows) in [(1, "(a)(b)(c)"), (2, "afBC"), (3, "(g)"), (4, "gh")] {
            film.show(count);
            assert_eq!(last(&film), rows, "after {count}");
        }
        film.show(3);
        assert_eq!(film.blocks().len(), 3, "the second verification had drafts of its own");
    }

    #[test]
    fn decoded_tokens_stand_in_a_row() {
        let film =
            film(&[Work::Decode { token: 0, confidence: 1.0 }, Work::Decode { token: 1, confidence: 0.5 }]);
        assert_eq!((last(&film).as_str(), film.blocks().len()), ("ab", 1));
    }
}
