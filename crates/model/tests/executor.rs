//! Laws of the seam, on the reference executor. Everything here is exact: it computes each row by
//! itself.

use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Executor, ModelFile, Score, Step};
use shamrock_testkit::{Backend, fixture, laws};

#[test]
fn the_laws_of_the_seam_hold() {
    laws::all(&Backend::reference());
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let model = ModelFile::open(fixture("small/model.q4tp.cmf")).unwrap();
    let ids: Vec<u32> = (0..50).map(|i| i * 7 % 300).collect();
    let passes = [1, 2, 3].map(|threads| {
        let options = ReferenceOptions { threads: Some(threads), ..ReferenceOptions::DEFAULT };
        let mut e = ReferenceExecutor::new(model.clone(), options).unwrap();
        let seq = e.open().unwrap();
        let score = Score::Logits { rows: &[0, 7] };
        let step = Step::commit(seq, &ids, score).then_preview(&[310; 8], score);
        e.run(&[step]).unwrap().outputs
    });
    assert!(passes.iter().all(|p| *p == passes[0]));
}
