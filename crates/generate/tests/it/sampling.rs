//! Sampled answers: reproducible, seeded, and greedy in the limit.

use proptest::prelude::*;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Mode, Options, Sampling};

use crate::support::{assert_same, cold, options, prompts};

proptest! {
    #[test]
    fn a_vanishing_temperature_is_greedy(seed in any::<u64>(), prompt in prompts(20), options in options()) {
        let mut executor = ScriptedExecutor::new(seed);
        let greedy = cold(&mut executor, &prompt, &options);
        // Logits of a script differ by 1e-7 at least, which is 1e3 nats here.
        let sampling = Sampling { temperature: 1e-10, seed, ..Sampling::GREEDY };
        assert_same(&cold(&mut executor, &prompt, &Options { sampling, ..options.clone() }), &greedy);
        let sampling = Sampling { temperature: 1.0, top_k: 1, seed, ..Sampling::GREEDY };
        assert_same(&cold(&mut executor, &prompt, &Options { sampling, ..options }), &greedy);
    }

    #[test]
    fn a_seed_gives_one_answer(seed in any::<u64>(), prompt in prompts(20), options in options()) {
        let mut executor = ScriptedExecutor::new(seed);
        let sampling = Sampling { temperature: 1.2, seed, ..Sampling::GREEDY };
        let options = Options { sampling, ..options };
        assert_same(&cold(&mut executor, &prompt, &options), &cold(&mut executor, &prompt, &options));
    }
}

#[test]
fn seeds_give_different_answers() {
    let mut executor = ScriptedExecutor::new(9);
    for mode in Mode::ALL {
        let mut answers: Vec<Vec<u32>> = (0..10)
            .map(|seed| {
                let sampling = Sampling { temperature: 1.0, seed, ..Sampling::GREEDY };
                let options = Options { max_tokens: 20, sampling, ignore_eos: true, ..Options::new(mode) };
                cold(&mut executor, &[1, 2, 3], &options).tokens
            })
            .collect();
        answers.sort();
        answers.dedup();
        assert_eq!(answers.len(), 10, "{mode}");
    }
}
