//! What rounding activations costs on a trained model: the divergence of the integer path's
//! distributions from the f32 path's, over conversations of the evaluation slice. (The random models
//! of the fixtures would exaggerate it: their logits are near ties throughout.)

use std::path::PathBuf;

use serde_json::Value;
use shamrock_cpu::{CpuExecutor, CpuOptions, Precision};
use shamrock_model::{Executor, ModelFile, Score, Step};
use shamrock_text::{ChatTemplate, Message, RenderOptions, Tokenizer};

/// The bound that the project sets; below 5e-5 when this was written.
const MEAN_KL: f64 = 1e-3;
/// Every so many conversations of the slice.
const STRIDE: usize = 25;

fn models() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// `Σ p ln(p / q)` of two softmaxes.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let log_sum = |x: &[f32]| {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        f64::from(max) + x.iter().map(|v| f64::from(v - max).exp()).sum::<f64>().ln()
    };
    let (p_sum, q_sum) = (log_sum(p), log_sum(q));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (p, q) = (f64::from(*p) - p_sum, f64::from(*q) - q_sum);
        p.exp() * (p - q)
    });
    terms.sum()
}

/// Prompt and answer of some conversations, as ids.
fn conversations(model: &ModelFile) -> Vec<(Vec<u32>, Vec<u32>)> {
    let tokenizer = Tokenizer::from_bytes(model.tokenizer_json()).unwrap();
    let template = ChatTemplate::new(model.chat_template.as_deref().unwrap(), []).unwrap();
    let slice = std::fs::read_to_string(models().join("clover-nano.eval.jsonl")).unwrap();
    let item = |line: &str| {
        let item: Value = serde_json::from_str(line).unwrap();
        let messages: Vec<Message> = serde_json::from_value(item["messages"].clone()).unwrap();
        let options = RenderOptions { enable_thinking: item["thinking"].as_bool(), ..Default::default() };
        let prompt = template.encode(&tokenizer, &messages, &options).unwrap();
        (prompt, tokenizer.encode(item["answer"].as_str().unwrap()).unwrap())
    };
    slice.lines().step_by(STRIDE).map(item).collect()
}

/// Logits that generation would read: a causal pass's over the answer, an all-mask block's after the
/// prompt, and those of the open rows of a block with the answer's first half resolved. (Rows of the
/// prompt and resolved rows were never trained to predict; there the logits mean nothing, and a
/// changed expert moves them far.)
fn logits(e: &mut CpuExecutor, prompt: &[u32], answer: &[u32]) -> [Vec<f32>; 3] {
    let block = e.config().block.clone().unwrap();
    let seq = e.open().unwrap();
    let masked = vec![block.mask_id; block.block_size];
    let mut partial = masked.clone();
    for (slot, id) in partial.iter_mut().zip(&answer[..answer.len().div_ceil(2)]) {
        *slot = *id;
    }
    e.run(&[Step::commit(seq, prompt, Score::None)]).unwrap();
    let previews = [masked, partial].map(|ids| {
        let open: Vec<usize> = (0..ids.len()).filter(|&r| ids[r] == block.mask_id).collect();
        let pass = e.run(&[Step::preview(seq, &ids, Score::Logits { rows: &open })]).unwrap();
        (0..open.len()).flat_map(|i| pass.outputs[0].preview.logits(i)).copied().collect::<Vec<f32>>()
    });
    e.close(seq);
    let whole = [prompt, answer].concat();
    let seq = e.open().unwrap();
    let rows: Vec<usize> = (prompt.len() - 1..whole.len() - 1).collect();
    let pass = e.run(&[Step::commit(seq, &whole, Score::Logits { rows: &rows })]).unwrap();
    let causal = (0..rows.len()).flat_map(|i| pass.outputs[0].commit.logits(i)).copied().collect();
    e.close(seq);
    let [masked, partial] = previews;
    [causal, masked, partial]
}

#[test]
fn integer_products_hardly_move_the_distributions_of_a_trained_model() {
    let model = ModelFile::open(models().join("clover-nano.cmf")).unwrap();
    let vocab = model.config.vocab_size;
    let mut executors = [Precision::F32, Precision::Int8].map(|precision| {
        CpuExecutor::new(model.clone(), CpuOptions { precision, ..CpuOptions::default() }).unwrap()
    });
    let mut totals = [(0.0, 0usize); 3];
    for (prompt, answer) in conversations(&model) {
        let [exact, rounded] = executors.each_mut().map(|e| logits(e, &prompt, &answer));
        for ((total, exact), rounded) in totals.iter_mut().zip(&exact).zip(&rounded) {
            for (p, q) in exact.chunks_exact(vocab).zip(rounded.chunks_exact(vocab)) {
                total.0 += divergence(p, q);
                total.1 += 1;
            }
        }
    }
    for (what, (sum, rows)) in ["causal", "masked block", "half a block"].iter().zip(totals) {
        let mean = sum / rows as f64;
        println!("{what}: mean KL {mean:.2e} over {rows} rows");
        assert!(mean < MEAN_KL, "{what}: mean KL {mean:e} over {rows} rows");
    }
}
