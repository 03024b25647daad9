//! The laws notice what they are for: executors with a fault each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{
    Config, Executor, Limits, Pass, Result, Scored, SeqId, SequenceState, SnapshotId, Step,
};
use shamrock_testkit::{Backend, Tolerance, laws};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A row's logits depend on how many steps share the pass.
    Company,
    /// Previews advance the state.
    PreviewCommits,
    /// Fused previews do not see the step's commit.
    PreviewTooEarly,
    /// Rewinding leaves a row too many.
    RewindsShort,
    /// Restoring does nothing.
    ForgetsSnapshots,
}

/// The reference executor with a fault.
struct Faulty {
    inner: ReferenceExecutor,
    fault: Fault,
}

impl Executor for Faulty {
    fn backend(&self) -> &'static str {
        "faulty"
    }

    fn config(&self) -> &Config {
        self.inner.config()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn open(&mut self) -> Result<SeqId> {
        self.inner.open()
    }

    fn close(&mut self, seq: SeqId) {
        self.inner.close(seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        self.inner.len(seq)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        if let [step] = steps
            && self.fault == Fault::PreviewTooEarly
            && !(step.commit.is_empty() || step.preview.is_empty())
        {
            let early = self.inner.run(&[Step::preview(step.seq, step.preview, step.preview_score)])?;
            let mut pass = self.inner.run(steps)?;
            pass.outputs[0].preview = early.outputs[0].preview.clone();
            return Ok(pass);
        }
        let mut pass = self.inner.run(steps)?;
        if self.fault == Fault::PreviewCommits {
            for step in steps.iter().filter(|s| !s.preview.is_empty()) {
                self.inner.run(&[Step::commit(step.seq, &step.preview[..1], Default::default())])?;
            }
        }
        if self.fault == Fault::Company {
            for output in &mut pass.outputs {
                for scored in [&mut output.commit, &mut output.preview] {
                    if let Scored::Logits { values, .. } = scored {
                        values.iter_mut().for_each(|v| *v += 1e-4 * (steps.len() - 1) as f32);
                    }
                }
            }
        }
        Ok(pass)
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let short = self.fault == Fault::RewindsShort && len < self.len(seq)?;
        self.inner.rewind(seq, if short { len + 1 } else { len })
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId> {
        self.inner.snapshot(seq)
    }

    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()> {
        if self.fault == Fault::ForgetsSnapshots { Ok(()) } else { self.inner.restore(snapshot, into) }
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.inner.release(snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        self.inner.export(seq)
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        self.inner.import(seq, state)
    }
}

fn faulty(fault: Fault) -> Backend {
    Backend::new("faulty", move |model, max_context| {
        let options = ReferenceOptions { max_context, ..ReferenceOptions::DEFAULT };
        Ok(Faulty { inner: ReferenceExecutor::new(model, options)?, fault })
    })
}

#[test]
fn every_fault_breaks_its_law() {
    for (fault, law) in [
        (Fault::Company, "faulty: a batch equals its members one by one: "),
        (Fault::PreviewCommits, "faulty: a preview changes no state: state after a preview: "),
        (Fault::PreviewTooEarly, "faulty: a commit and a preview in one step equal the two: preview: "),
        (Fault::RewindsShort, "faulty: a rewound commit never happened: state with "),
        (Fault::ForgetsSnapshots, "faulty: a snapshot brings a state back: state after restoring: "),
    ] {
        let panic =
            catch_unwind(AssertUnwindSafe(|| laws::all(&faulty(fault)))).expect_err("laws are broken");
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains(law), "{fault:?}: {message}");
    }
}

#[test]
fn a_tolerance_covers_what_is_within_it() {
    // Batches of up to four, so 3e-4 on logits.
    laws::all(&faulty(Fault::Company).laws(Tolerance { logits: 4e-4, ..Tolerance::EXACT }));
}
