//! `run --session`: a conversation that goes on after a restart, with the very tokens of one that reads its
//! messages again.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use shamrock_testkit::{fixture, root};

fn run(model: &Path, session: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shamrock"))
        .args(["run", "--json", "--session"])
        .arg(session)
        .arg(model)
        .args(args)
        .env("SHAMROCK_CONFIG", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The answer, and what was told beside it.
fn answer(output: &Output) -> (Value, String) {
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success(), "{told}");
    (serde_json::from_slice(&output.stdout).unwrap(), told)
}

fn refused(output: &Output) -> String {
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
    told
}

#[test]
fn a_place_that_is_not_there_is_told_before_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("none/bee.session");
    let output = run(&root().join("models/clover-nano.cmf"), &place, &["-p", "Hello"]);
    assert!(refused(&output).contains("there is no folder"));
    assert_eq!(output.stdout, b"");
}

#[test]
fn a_resumed_conversation_has_the_tokens_of_a_cold_one() {
    let dir = tempfile::tempdir().unwrap();
    let nano = root().join("models/clover-nano.cmf");
    for mode in ["denoise", "draft"] {
        let (warm, cold) = (dir.path().join(format!("{mode}.warm")), dir.path().join(format!("{mode}.cold")));
        let args = ["--mode", mode, "--backend", "cpu"];
        let first = [&args[..], &["-p", "Sort these words: pear, apple, plum"]].concat();
        let (_, told) = answer(&run(&nano, &warm, &first));
        assert_eq!(told, "", "a file that is not there is a new conversation");
        // The same conversation, its states damaged: they are not used, the messages are.
        let mut bytes = fs::read(&warm).unwrap();
        let last = bytes.len() - 100;
        bytes[last] ^= 1;
        fs::write(&cold, bytes).unwrap();

        let second = [&args[..], &["-p", "Now in reverse order."]].concat();
        let (with_states, told) = answer(&run(&nano, &warm, &second));
        assert_eq!(told, "");
        let (without, told) = answer(&run(&nano, &cold, &second));
        assert!(told.starts_with("note: ") && told.contains("damaged"), "{told}");
        let cached = |answer: &Value| answer["stats"]["cached_tokens"].as_u64().unwrap();
        assert!(cached(&with_states) > 10 && cached(&without) == 0, "{with_states} {without}");
        assert_eq!(with_states["tokens"], without["tokens"]);
        // Another arithmetic would give other states.
        let (other, told) = answer(&run(&nano, &warm, &[&second[..], &["--precision", "f32"]].concat()));
        assert!(told.contains("cpu int8 f16, this is") && cached(&other) == 0, "{told}");
    }
}

#[test]
fn what_is_no_conversation_with_this_model_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("s");
    let (small, kernel) = (fixture("small/model.q4tp.cmf"), fixture("kernel/model.q4tp.cmf"));
    let ask = ["-p", "hello", "-n", "4", "--ignore-eos"];
    answer(&run(&small, &session, &[&ask[..], &["--system", "Be brief."]].concat()));
    let kept = fs::read(&session).unwrap();
    assert!(refused(&run(&kernel, &session, &ask)).contains("another model"));
    let other = [&ask[..], &["--system", "Be long."]].concat();
    assert!(refused(&run(&small, &session, &other)).contains("--system"));
    assert_eq!(fs::read(&session).unwrap(), kept);

    let text = dir.path().join("notes.txt");
    fs::write(&text, "remember the milk").unwrap();
    assert!(refused(&run(&small, &text, &ask)).contains("no file of saved states"));
    assert_eq!(fs::read(&text).unwrap(), b"remember the milk");
    fs::write(&text, &kept[..40]).unwrap();
    assert!(refused(&run(&small, &text, &ask)).contains("damaged"));
    assert!(refused(&run(&small, dir.path(), &ask)).contains("not a regular file"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&session).unwrap().permissions().mode() & 0o77, 0, "nobody else reads it");
    }
}
