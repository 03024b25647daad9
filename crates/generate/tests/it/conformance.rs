//! Every greedy run of the conformance fixtures, over the reference executor.

use shamrock_testkit::{Backend, conformance};

#[test]
fn runs_match_the_oracle() {
    conformance::generations(&Backend::reference());
}
