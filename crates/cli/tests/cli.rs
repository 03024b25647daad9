//! The program from outside: every command on the tiny checkpoints, and the errors a person meets.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use shamrock_testkit::{Expected, assert_close, fixture, ids, json};

fn shamrock(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shamrock"))
        .args(args)
        .env("SHAMROCK_CONFIG", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// Standard output of a run that must succeed.
fn ok(args: &[&str]) -> String {
    let output = shamrock(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// The one line of standard error of a run that must fail.
fn err(args: &[&str]) -> String {
    let output = shamrock(args);
    let stderr = String::from_utf8(output.stderr).expect("messages are UTF-8");
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: one line expected: {stderr}");
    stderr
}

fn path(name: &str) -> String {
    fixture(name).display().to_string()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_checkpoint_becomes_a_model_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (f16, q4) = (file("f16.cmf"), file("q4.cmf"));
    ok(&["convert", &path("awkward/hf"), &f16, "--experts", "f16", "--dense", "f16"]);
    ok(&["quantize", &f16, &q4]);
    assert!(ok(&["verify", &q4]).contains("all hashes match"));
    let info = parsed(&ok(&["info", &q4, "--json", "--tensors", "--ctx", "100"]));
    assert_eq!(info["arch"]["block_diffusion"]["block_size"], 32);
    assert!(info["encodings"]["q4tp"]["bytes"].as_u64().unwrap() > 0);
    assert!(ok(&["info", &q4]).contains("blocks of 32"));

    // `awkward` is exact in f16, so the f16 file must give the checkpoint's own numbers.
    let expected = Expected::load("awkward", "");
    let list = |ids: Vec<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let out = file("logits.safetensors");
    let (prompt, block) = (list(expected.ids("/prompt_ids")), list(expected.ids("/masked/block_ids")));
    ok(&[
        "logits",
        &f16,
        "--precision",
        "f32",
        "--prompt-ids",
        &prompt,
        "--block-ids",
        &block,
        "--out",
        &out,
    ]);
    let bytes = fs::read(&out).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, want) in [("causal", "causal_logits"), ("preview", "masked/logits")] {
        let tensor = tensors.tensor(name).unwrap();
        let want = expected.array(want);
        assert_eq!(tensor.shape(), want.shape);
        let got: Vec<f32> =
            tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_close(name, &got, &want.values, 1e-3); // the limit of fixtures/README.md
    }
}

#[test]
fn an_answer_has_the_tokens_of_the_oracle() {
    let expected = json("kernel/expected.q4tp.json");
    let model = path("kernel/model.q4tp.cmf");
    let base = Expected::load("kernel", ".q4tp");
    let prompt = base.json["prompt_text"].as_str().unwrap();
    let prompt_ids = base.ids("/prompt_ids");
    let cases = expected["generations"].as_array().unwrap();
    let neutral = |c: &&Value| {
        let off = |key: &str| c["controls"][key].as_f64() == Some(0.0);
        c["mode"] == "causal"
            && ids(&c["prompt_ids"]) == prompt_ids
            && ["presence_penalty", "length_penalty", "think_end_bias"].into_iter().all(off)
            && c["controls"]["ignore_eos"] == false
            && c["arguments"].as_object().is_some_and(|a| a.is_empty())
    };
    let plain = cases.iter().find(neutral).expect("a run without penalties and ramps");
    let trace = tempfile::NamedTempFile::new().unwrap();
    let mut args: Vec<String> =
        ["run", &model, "--raw", "--json", "-p", prompt, "--mode", "causal", "--precision", "f32"]
            .map(str::to_owned)
            .to_vec();
    args.extend(["-n".into(), plain["max_tokens"].to_string()]);
    args.extend(["--trace".into(), trace.path().display().to_string()]);
    let answer = parsed(&ok(&args.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(ids(&answer["tokens"]), ids(&plain["tokens"]));
    assert_eq!(answer["finish"], plain["finish"]);
    let lines = fs::read_to_string(trace.path()).unwrap();
    let tokens = lines.lines().map(parsed).filter(|event| event["event"] == "token").count();
    assert_eq!(tokens, ids(&plain["tokens"]).len());
}

#[test]
fn modes_seeds_and_stops_are_heard() {
    let model = path("small/model.q4tp.cmf");
    let run = |extra: &[&str]| {
        parsed(&ok(&[&["run", &model, "--json", "-p", "hello", "-n", "24", "--ignore-eos"], extra].concat()))
    };
    let causal = run(&["--mode", "causal"]);
    assert_eq!(causal["tokens"], run(&["--mode", "draft", "--accept", "exact"])["tokens"]);
    let sampled = |seed: &str| run(&["--temp", "2.0", "--seed", seed])["tokens"].clone();
    assert_eq!(sampled("1"), sampled("1"));
    assert_ne!(sampled("1"), sampled("2"));
    assert_eq!(run(&["--temp", "2.0", "--greedy"])["tokens"], run(&[])["tokens"]);
    assert_eq!(causal["finish"], "length");

    let text = causal["text"].as_str().unwrap();
    let third = text.char_indices().nth(2).map(|(at, c)| (at, c.to_string()));
    if let Some((at, stop)) = third.filter(|(at, c)| text.find(c.as_str()) == Some(*at)) {
        let stopped = run(&["--mode", "causal", "--stop", &stop]);
        assert_eq!(stopped["text"], text[..at]);
        assert_eq!(stopped["finish"], "stop");
    }
}

#[test]
fn a_synthetic_model_measures_and_scores() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("tiny.cmf").display().to_string();
    ok(&["synth", &model, "--geometry", "tiny", "--seed", "7"]);
    let bench = ok(&[
        "bench",
        &model,
        "--backend",
        "cpu",
        "--json",
        "--rows",
        "1,8",
        "--commit",
        "5",
        "--context",
        "0,3",
        "--repeat",
        "1",
    ]);
    let works: Vec<Value> = bench.lines().map(parsed).collect();
    assert_eq!(works.len(), 8);
    for work in &works {
        assert!(work["median_ms"].as_f64().unwrap() > 0.0 && work["bytes"].as_u64().unwrap() > 0);
        assert!(work["floor_ms"].as_f64().unwrap() > 0.0);
    }
    let text = dir.path().join("text.txt");
    fs::write(&text, "It was a bright cold day in April.").unwrap();
    let score = parsed(&ok(&["ppl", &model, &text.display().to_string(), "--json"]));
    let perplexity = score["perplexity"].as_f64().unwrap();
    assert!(perplexity.is_finite() && perplexity > 20.0, "a random model cannot predict: {perplexity}");

    let tasks = dir.path().join("tasks.jsonl");
    let task = r#"{"id":"a","skill":"s","messages":[{"role":"user","content":"q"}],"answer":"never this"}"#;
    fs::write(&tasks, format!("{task}\n{task}\n")).unwrap();
    let tasks = tasks.display().to_string();
    let result = parsed(&ok(&["eval", &model, "--tasks", &tasks, "--limit", "1", "-n", "9", "--json"]));
    assert_eq!((result["accuracy"].as_f64(), result["tasks"].as_u64()), (Some(0.0), Some(1)));
    assert!(result["tokens_per_pass"].as_f64().unwrap() > 0.0);

    let advice = ["bench", &model, "--advise", "--repeat", "1"];
    assert!(ok(&advice).contains("tokens a preview: "), "what is known without prompts");
    fs::copy(&tasks, dir.path().join("tiny.eval.jsonl")).unwrap();
    assert!(ok(&advice).contains("\nadvice: --mode "), "with prompts");

    let trunk = dir.path().join("trunk.cmf").display().to_string();
    ok(&["synth", &trunk, "--geometry", "tiny", "--trunk"]);
    assert_eq!(
        parsed(&ok(&["run", &trunk, "-p", "x", "-n", "3", "--ignore-eos", "--json"]))["mode"],
        "causal"
    );
    assert!(err(&["run", &trunk, "-p", "x", "--mode", "denoise"]).contains("block-diffusion"));
}

#[test]
fn errors_say_what_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let small = path("small/model.q4tp.cmf");
    let whole = fs::read(fixture("small/model.q4tp.cmf")).unwrap();
    let (cut, flipped, other) = (file("cut.cmf"), file("flipped.cmf"), file("other.cmf"));
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    fs::write(&other, "not a model").unwrap();
    let mut bytes = whole.clone();
    let tensor = shamrock_cmf::Container::open(fixture("small/model.q4tp.cmf")).unwrap();
    let place = tensor.get("lm_head.weight").unwrap().offset as usize;
    bytes[place] ^= 1;
    fs::write(&flipped, &bytes).unwrap();

    assert!(err(&["info", &file("absent.cmf")]).contains("absent.cmf"));
    assert!(err(&["run", &path("small/hf"), "-p", "x"]).contains("shamrock convert"));
    assert!(err(&["info", &cut]).contains("cut.cmf"));
    assert!(err(&["info", &other]).contains("other.cmf"));
    assert!(err(&["verify", &flipped]).contains("1 hashes do not match"));
    let found = String::from_utf8(shamrock(&["verify", &flipped]).stdout).unwrap();
    assert!(found.contains("lm_head.weight"), "{found}");

    assert!(err(&["run", &small, "-p", "x", "--threshold", "1.5"]).contains("threshold"));
    assert!(err(&["run", &small, "-p", "x", "--ctx", "999999"]).contains("--ctx"));
    assert!(err(&["run", &small, "-p", &"x ".repeat(200), "--ctx", "64"]).contains("context"));
    assert!(err(&["logits", &small, "--prompt-ids", "999", "--out", &file("x")]).contains("vocabulary"));
    assert!(err(&["convert", &file("nowhere"), &file("out.cmf")]).contains("nowhere"));
    assert!(err(&["ppl", &small, &file("none.txt")]).contains("none.txt"));
    assert!(!Path::new(&file("out.cmf")).exists());
    assert!(err(&["run", &flipped, "-p", "x", "--trace", &flipped]).contains("that is the model file"));
    assert_eq!(fs::read(&flipped).unwrap(), bytes, "the model is untouched");
    // What clap refuses ends with its own code and names the flag.
    let unknown = shamrock(&["run", "--no-such-flag"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("--no-such-flag"));
}

/// As the server refuses them, too; `options` of `Mode::check_given` are the same.
#[test]
fn options_that_a_mode_has_no_use_for_are_refused() {
    let model = path("small/model.q4tp.cmf");
    let run = |args: &[&str]| err(&[&["run", &model, "-p", "x", "-n", "1"], args].concat());
    for (mode, flag, value) in [
        ("causal", "--threshold", "0.9"),
        ("causal", "--block-size", "4"),
        ("causal", "--accept", "exact"),
        ("draft", "--rule", "entropy:0.3"),
        ("auto", "--threshold", "0.9"),
        ("denoise", "--draft-width", "4"),
    ] {
        let told = run(&["--mode", mode, flag, value]);
        let option = flag.trim_start_matches('-').replace('-', "_");
        assert!(told.contains(&format!("option {option}: has no meaning in mode {mode}")), "{told}");
    }
    assert!(run(&["--ahead"]).contains("ahead: has no meaning in mode denoise"));
    assert!(run(&["--mode", "draft", "--ahead", "--accept", "typical"]).contains("--ahead"));

    // Settings in a file wait for the mode that they are for.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml").display().to_string();
    fs::write(&file, "threshold = 0.5\ndraft-width = 4\nahead = true\naccept = 'typical'\nblock-size = 4\n")
        .unwrap();
    for mode in ["denoise", "causal", "auto"] {
        ok(&["--config", &file, "run", &model, "-p", "x", "-n", "1", "--mode", mode]);
    }
}
