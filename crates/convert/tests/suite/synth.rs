//! Random models.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use shamrock_cmf::{Container, Encoding, TensorSpec, Writer};
use shamrock_convert::{Geometry, Recipe, SynthOptions, family_tensors, synth};
use shamrock_model::reference::{Event, ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Executor, ModelFile, Part, Score, Step};

fn make(path: &Path, geometry: &Geometry, options: SynthOptions, threads: usize) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| synth(path, geometry, &options, &mut |_| ControlFlow::Continue(()))).unwrap();
}

#[test]
fn the_seed_alone_decides() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("out.cmf");
    let geometry = Geometry { layers: 2, full_interval: 2, ..Geometry::preset("clover-nano").unwrap() };
    let bytes = |seed, threads| {
        make(&path, &geometry, SynthOptions { seed, ..Default::default() }, threads);
        std::fs::read(&path).unwrap()
    };
    let first = bytes(1, 1);
    assert!(first == bytes(1, 3), "depends on the number of threads");
    assert!(first != bytes(2, 3), "does not depend on the seed");

    // No two large tensors share their bytes, nor does a tensor repeat itself.
    let container = Container::from_bytes(first).unwrap();
    let pages = container.tensors().filter(|t| t.encoding == Encoding::Q8TwoField);
    let pages: Vec<&[u8]> = pages.flat_map(|t| t.bytes[..t.rows() * t.cols()].chunks_exact(4096)).collect();
    assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), pages.len());
}

/// The table of tensors and the binder agree: what is there binds, and every kind is needed.
#[test]
fn every_tensor_of_the_table_is_bound_and_no_other_is_needed() {
    let temp = tempfile::tempdir().unwrap();
    let (path, partial) = (temp.path().join("whole.cmf"), temp.path().join("part.cmf"));
    let plain = Geometry::preset("tiny").unwrap();
    let tied_trunk = Geometry { tie_embeddings: true, block_size: None, ..plain.clone() };
    for geometry in [plain, tied_trunk] {
        make(&path, &geometry, SynthOptions::default(), 2);
        let model = ModelFile::open(&path).unwrap();
        assert_eq!(model.config, geometry.config().unwrap());
        let container = model.container();
        let tensors = family_tensors(&model.config).unwrap();
        let mut kinds = BTreeSet::new();
        for left_out in tensors.iter().filter(|t| kinds.insert(format!("{:?}", t.kind))) {
            let kept: Vec<_> = container.tensors().filter(|t| t.name != left_out.name).collect();
            let spec = |t: &shamrock_cmf::Tensor<'_>| TensorSpec {
                name: t.name.into(),
                encoding: t.encoding,
                shape: t.shape.to_vec(),
            };
            let specs = kept.iter().map(spec).collect();
            let mut writer = Writer::create(&partial, container.header().clone(), b"", specs).unwrap();
            for (i, tensor) in kept.iter().enumerate() {
                writer.write(i, tensor.bytes).unwrap();
            }
            writer.finish().unwrap();
            let error = ModelFile::open(&partial).unwrap_err().to_string();
            assert!(error.contains(&left_out.name), "without {}: {error}", left_out.name);
        }
        assert!(kinds.len() >= 27, "{kinds:?}");
    }
}

/// Passes over a random model are of ordinary size, and routing spreads with some preference.
#[test]
fn random_models_run_plausibly() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("out.cmf");
    let geometry = Geometry { vocab_size: 1000, ..Geometry::preset("clover-nano").unwrap() };
    let other = Recipe { experts: Encoding::Q8TwoField, dense: Encoding::Q8Row };
    for recipe in [Recipe::default(), other, Recipe::F16] {
        make(&path, &geometry, SynthOptions { seed: 5, recipe }, 2);
        assert!(Container::open(&path).unwrap().verify(&mut |_| {}).unwrap().is_clean());
        let mut executor =
            ReferenceExecutor::new(ModelFile::open(&path).unwrap(), ReferenceOptions::DEFAULT).unwrap();
        let experts = executor.config().moe.experts;
        let mask = executor.config().block().unwrap().mask_id;
        let prompt: Vec<u32> = (0..48).map(|i| i * 37 % 256).collect();
        let block: Vec<u32> = (0..32).map(|i| if i % 2 == 0 { mask } else { 300 + 11 * i }).collect();
        let rows: Vec<usize> = (0..32).collect();
        let seq = executor.open().unwrap();
        let step = Step::commit(seq, &prompt, Score::Logits { rows: &[47] })
            .then_preview(&block, Score::Logits { rows: &rows });
        let mut distinct = Vec::new();
        let mut observe = |site: shamrock_model::reference::Site, event: Event<'_>| {
            if let (Part::Commit, Event::Routed(_, _, routes)) = (site.part, event) {
                distinct.push(routes.by_expert().len());
            }
        };
        let pass = executor.run_observed(&[step], &mut observe).unwrap();

        // 48 rows of 4 experts each: more than a handful per layer, and not always all 32.
        assert!(distinct.iter().all(|n| *n >= 12), "{distinct:?}");
        assert!(distinct.iter().any(|n| *n < experts), "{distinct:?}");
        let output = &pass.outputs[0];
        let mut favourites = BTreeSet::new();
        let all = std::iter::once(output.commit.logits(0)).chain((0..32).map(|r| output.preview.logits(r)));
        for logits in all {
            let n = logits.len() as f32;
            let mean = logits.iter().sum::<f32>() / n;
            let deviation = (logits.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt();
            // Made to be about 5; a thousand samples leave it within a few percent.
            assert!((4.0..6.5).contains(&deviation), "logits deviate by {deviation}");
            favourites.insert((0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])));
        }
        assert!(favourites.len() > 8, "rows hardly differ: {favourites:?}");
    }
}

#[test]
fn the_released_geometry_has_the_released_size() {
    let geometry = Geometry::preset("clover-35b-a3b").unwrap();
    let tensors = family_tensors(&geometry.config().unwrap()).unwrap();
    let recipe = Recipe::default();
    let bytes: u64 = tensors.iter().map(|t| recipe.encoding(t.kind.role()).byte_len(&t.shape).unwrap()).sum();
    let weights: usize = tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
    assert!((34e9..36e9).contains(&(weights as f64)), "{weights} weights");
    assert!((18.5e9..20e9).contains(&(bytes as f64)), "{bytes} bytes");
}

#[test]
fn impossible_geometries_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.cmf");
    let tiny = Geometry::preset("tiny").unwrap();
    let fails = |says: &str, geometry: Geometry| {
        let error = synth(&out, &geometry, &SynthOptions::default(), &mut |_| ControlFlow::Continue(()))
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    };
    fails("vocab_size 261", Geometry { vocab_size: 261, ..tiny.clone() });
    fails("interval of 0", Geometry { full_interval: 0, ..tiny.clone() });
    fails("num_hidden_layers", Geometry { layers: 0, ..tiny.clone() });
    fails("block_size", Geometry { block_size: Some(257), ..tiny.clone() });
    fails("--experts q8_2f", Geometry { hidden_size: 48, ..tiny.clone() });
    fails("tensors, the limit is", Geometry { layers: 1 << 20, ..tiny });
    assert!(Geometry::preset("huge").unwrap_err().to_string().contains("clover-35b-a3b, clover-nano, tiny"));
    for name in Geometry::PRESETS {
        Geometry::preset(name).unwrap().config().unwrap();
    }
}
