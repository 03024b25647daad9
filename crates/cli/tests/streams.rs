//! The program among others: outputs that are full or closed, names that are not files, numbers
//! that nobody can mean.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use shamrock_testkit::fixture;

fn shamrock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shamrock"));
    command.args(args).env("SHAMROCK_CONFIG", "/dev/null").stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are UTF-8")
}

/// The one line of a refusal.
fn refused(args: &[&str]) -> String {
    let output = shamrock(args).output().expect("the program starts");
    let message = stderr(&output);
    assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{args:?}: {message}");
    message
}

fn small() -> String {
    fixture("small/model.q4tp.cmf").display().to_string()
}

/// `/dev/full` answers every write with "no space left on device".
#[cfg(target_os = "linux")]
#[test]
fn a_full_output_is_an_error_and_a_full_stderr_is_none() {
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    let model = small();
    let args = ["run", &model, "--raw", "-p", "x", "-n", "3"];
    let output = shamrock(&args).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("writing to standard output"), "{}", stderr(&output));

    let output = shamrock(&args).stderr(full()).output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty());
    // An error that cannot be told is still an error, not a panic.
    assert_eq!(shamrock(&["info", "absent"]).stderr(full()).status().unwrap().code(), Some(1));
}

#[test]
fn reasoning_answer_and_figures_have_lines_of_their_own() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/clover-nano.cmf");
    let model = model.display().to_string();
    let args = ["run", &model, "--thinking", "on", "-p", "How much is 12 plus 30?"];
    let output = shamrock(&args).output().unwrap();
    let told = stderr(&output);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.len() >= 2 && !lines[0].contains('['), "{told}");
    assert!(lines.last().unwrap().starts_with('['), "{told}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("42"));
}

#[test]
fn watching_wants_a_terminal() {
    let told = refused(&["run", &small(), "-p", "x", "--watch"]);
    assert!(told.contains("--watch draws on the terminal") && told.contains("--trace"), "{told}");
}

#[test]
fn what_is_no_file_is_neither_read_nor_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().display().to_string();
    let (model, hf) = (small(), fixture("small/hf").display().to_string());
    for args in [
        &["convert", &hf, &folder][..],
        &["quantize", &model, &folder],
        &["synth", &folder, "--geometry", "tiny"],
        &["logits", &model, "--prompt-ids", "1", "--out", &folder],
        &["verify", &folder],
    ] {
        assert!(refused(args).contains(&folder));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);

    let pipe = directory.path().join("pipe");
    if Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
        assert!(refused(&["info", &pipe.display().to_string()]).contains("not a regular file"));
    }
}

#[test]
fn absurd_numbers_are_refused_before_they_cost_anything() {
    let model = small();
    let bench = |flag, value| refused(&["bench", &model, flag, value]);
    assert!(bench("--commit", "4000000000").contains("the context holds"));
    assert!(bench("--context", "4000000000").contains("the context holds"));
    assert!(bench("--rows", "4000000000").contains("the context holds"));
    let negative = ["run", &model, "-p", "x", "-n", "2", "--presence-penalty", "-0.5"];
    assert!(shamrock(&negative).output().unwrap().status.success(), "a penalty may be a bonus");
    let crowd = ["run", &model, "-p", "x", "-n", "2", "--threads", "1024"];
    assert!(shamrock(&crowd).output().unwrap().status.success());
}

#[test]
fn a_checkpoint_whose_text_side_is_broken_converts_with_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = directory.path().join("hf");
    std::fs::create_dir(&checkpoint).unwrap();
    for file in std::fs::read_dir(fixture("small/hf")).unwrap().map(|entry| entry.unwrap().path()) {
        std::fs::copy(&file, checkpoint.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::remove_file(checkpoint.join("tokenizer.json")).unwrap();
    std::fs::write(checkpoint.join("tokenizer.json"), "{}").unwrap();
    let name = |name: &str| directory.path().join(name).display().to_string();
    let output = shamrock(&["convert", &name("hf"), &name("out.cmf")]).output().unwrap();
    let warning = stderr(&output);
    assert!(output.status.success(), "{warning}");
    assert!(warning.starts_with("warning: ") && warning.contains("tokenizer.json"), "{warning}");

    std::fs::remove_file(checkpoint.join("config.json")).unwrap();
    let missing = refused(&["convert", &name("hf"), &name("out.cmf")]);
    assert!(missing.contains("config.json") && missing.contains("Hugging Face"), "{missing}");
}

/// A kill leaves `OUT.partial`, which does not open; whoever asks first gets it cleared away.
#[cfg(unix)]
#[test]
fn an_interrupted_synthesis_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (out, partial) = (directory.path().join("out.cmf"), directory.path().join("out.cmf.partial"));
    let out = out.display().to_string();
    for signal in ["-INT", "-TERM"] {
        // Gigabytes, so that the signal comes first; what is not written takes no room.
        let mut child = shamrock(&["synth", &out, "--vocab", "8192", "--num-experts", "128"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !partial.exists() {
            assert!(child.try_wait().unwrap().is_none(), "ended before it began");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert!(stderr(&output).contains("stopped at"), "{}", stderr(&output));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    }
}
