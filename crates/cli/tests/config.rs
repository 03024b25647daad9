//! The configuration file, the environment, completions and manual pages from outside.

use std::fs;
use std::process::{Command, Output, Stdio};

use shamrock_testkit::fixture;

/// The program in a home of its own, where its configuration file is what is written there.
struct Home(tempfile::TempDir);

impl Home {
    fn new(config: &str) -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        fs::create_dir_all(home.0.path().join("shamrock")).unwrap();
        fs::write(home.0.path().join("shamrock/config.toml"), config).unwrap();
        home
    }

    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_shamrock"))
            .args(args)
            .env("XDG_CONFIG_HOME", self.0.path())
            .env_remove("SHAMROCK_CONFIG")
            .env_remove("SHAMROCK_MODEL")
            .env_remove("SHAMROCK_BACKEND")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Which of three models is opened tells who was heard.
#[test]
fn a_flag_beats_the_environment_and_that_the_file() {
    let home = Home::new("model = '/nowhere/file.cmf'\nbackend = 'reference'\n");
    let opened = |args: &[&str], variables: &[(&str, &str)]| text(&home.run(args, variables).stderr);
    let variable = ("SHAMROCK_MODEL", "/nowhere/variable.cmf");
    assert!(opened(&["run", "-p", "x"], &[]).contains("/nowhere/file.cmf"));
    assert!(opened(&["run", "-p", "x"], &[variable]).contains("/nowhere/variable.cmf"));
    assert!(opened(&["run", "-p", "x", "/nowhere/flag.cmf"], &[variable]).contains("/nowhere/flag.cmf"));

    let model = fixture("small/model.q4tp.cmf").display().to_string();
    let bench = ["bench", &model, "--rows", "1", "--commit", "1", "--repeat", "1"];
    let backend = |args: &[&str], variables: &[(&str, &str)]| {
        let output = home.run(&[&bench[..], args].concat(), variables);
        text(&output.stdout).lines().next().unwrap_or_default().to_owned()
    };
    assert!(backend(&[], &[]).ends_with("on reference"));
    assert!(backend(&[], &[("SHAMROCK_BACKEND", "cpu")]).ends_with("on cpu"));
    assert!(backend(&["--backend", "cpu"], &[("SHAMROCK_BACKEND", "tpu")]).ends_with("on cpu"));
    // A variable that is empty says nothing.
    assert!(backend(&[], &[("SHAMROCK_BACKEND", "")]).ends_with("on reference"));
    assert!(opened(&["run", "-p", "x"], &[("SHAMROCK_MODEL", "")]).contains("/nowhere/file.cmf"));
    assert!(opened(&["run", "-p", "x"], &[("SHAMROCK_CONFIG", "")]).contains("/nowhere/file.cmf"));
}

#[test]
fn a_wrong_file_is_refused_with_its_place_and_another_can_be_named() {
    let home = Home::new("\nthraeds = 2\n");
    let output = home.run(&["info"], &[]);
    let told = text(&output.stderr);
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
    assert!(told.contains("shamrock/config.toml:2: unknown key `thraeds`"), "{told}");

    let model = fixture("small/model.q4tp.cmf").display().to_string();
    assert!(home.run(&["info", &model, "--config", "/dev/null"], &[]).status.success());
    assert!(home.run(&["info", &model], &[("SHAMROCK_CONFIG", "/dev/null")]).status.success());
    let missing = home.run(&["--config", "/nowhere/c.toml", "info", &model], &[]);
    assert!(text(&missing.stderr).contains("/nowhere/c.toml"));
    // Help is to be had whatever the file says.
    assert!(home.run(&["serve", "--help"], &[]).status.success());
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let home = Home::new("");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&home.run(&["completions", shell], &[]).stdout);
        assert!(script.contains("quantize") && script.contains("memory-budget"), "{shell}");
    }
    // What stands behind a flag is one of a few words, not a file.
    let bash = text(&home.run(&["completions", "bash"], &[]).stdout);
    for words in ["denoise draft causal auto", "exact typical", "settle fuse head"] {
        assert!(bash.contains(&format!("compgen -W \"{words}\"")), "{words}");
    }
    let dir = tempfile::tempdir().unwrap();
    let page = text(&home.run(&["man"], &[]).stdout);
    assert!(page.starts_with(".ie") && page.contains("shamrock\\-serve"), "{page}");
    let folder = dir.path().join("man1");
    assert!(home.run(&["man", "--dir", folder.to_str().unwrap()], &[]).status.success());
    let serve = fs::read_to_string(folder.join("shamrock-serve.1")).unwrap();
    assert!(serve.contains("prefix\\-cache") && serve.contains("SHAMROCK_PORT"));
}

/// Files for deployment name flags and variables that exist.
#[test]
fn deployment_files_say_what_the_server_understands() {
    let (home, deploy) = (Home::new(""), shamrock_testkit::root().join("deploy"));
    let help = text(&home.run(&["serve", "--help"], &[]).stdout);
    let mut named = 0;
    for file in ["Containerfile", "shamrock.service", "kubernetes.yaml"] {
        let source = fs::read_to_string(deploy.join(file)).unwrap();
        let ours = |line: &&str| {
            !["cargo ", "podman ", "--mount", "--from"].iter().any(|theirs| line.contains(theirs))
        };
        for word in
            source.lines().filter(ours).flat_map(|line| line.split([' ', '[', ']', ',', '=', ':', '"', ';']))
        {
            if word.starts_with("--") && word.len() > 3 || word.starts_with("SHAMROCK_") {
                assert!(help.contains(word), "{file}: {word}");
                named += 1;
            }
        }
    }
    assert!(named >= 10, "only {named} found");
    let config = deploy.join("config.toml").display().to_string();
    let model = fixture("small/model.q4tp.cmf").display().to_string();
    let output = home.run(&["info", &model, "--config", &config], &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}
