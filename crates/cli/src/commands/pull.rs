//! `shamrock pull`: a model from a hub.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::hub::{Fetched, Hub, ModelName, RemoteFile, fetch, models_folder};
use crate::interrupt;
use crate::output::{byte_bar, bytes, println};

/// Endings of the files that make a Hugging Face checkpoint.
const CHECKPOINT: [&str; 4] = [".safetensors", ".json", ".jinja", "merges.txt"];

/// Arguments of `pull`.
#[derive(Args)]
pub struct PullArgs {
    /// Repository, and a file of it: OWNER/REPO:FILE. Without a file, the repository's model file; if it
    /// has none, its checkpoint
    model: ModelName,
    /// Branch, tag or commit
    #[arg(long, value_name = "NAME", default_value = "main")]
    revision: String,
    /// Folder to keep the files in [default: ~/.local/share/shamrock/models/OWNER/REPO]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Address of the hub
    #[arg(long, value_name = "URL", env = "HF_ENDPOINT", default_value = "https://huggingface.co")]
    endpoint: String,
    /// File with an access token [default: the token in the variable HF_TOKEN, if there is one]
    #[arg(long, value_name = "FILE", env = "HF_TOKEN_PATH")]
    token_file: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: PullArgs) -> Result<()> {
    let interrupt = interrupt::on_request_to_end()?;
    let hub = Hub::new(&args.endpoint, token(&args)?);
    let PullArgs { model, revision, dir, .. } = args;
    let listing = hub.list(&model.repo, &revision)?;
    let files = choose(&model, listing.files)?;
    let dir = match dir {
        Some(dir) => dir,
        None => models_folder()?.join(&model.repo),
    };
    let bar = byte_bar(files.iter().map(|file| file.size).sum(), "pulling");
    let (mut before, mut lines) = (0, Vec::new());
    for file in &files {
        let target = dir.join(&file.name);
        bar.set_message(file.name.clone());
        let fetched = fetch(&hub, &model.repo, &listing.commit, file, &target, &mut |here| {
            bar.set_position(before + here);
            if interrupt::is_raised(&interrupt) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        before += file.size;
        let (place, size) = (target.display(), bytes(file.size));
        lines.push(match fetched {
            Fetched::Now => format!("{place}: {size}, the hash matches"),
            Fetched::Already => format!("{place}: is here already, the hash matches"),
            Fetched::Stopped => bail!("stopped; pull {model} again to go on from here"),
        });
    }
    bar.finish_and_clear();
    lines.iter().try_for_each(|line| println(line))?;
    match files.iter().any(|file| file.name.ends_with(".safetensors")) {
        true => println(&format!("make a model file of it: shamrock convert {} OUT.cmf", dir.display())),
        false => Ok(()),
    }
}

fn token(args: &PullArgs) -> Result<Option<String>> {
    let token = match &args.token_file {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .with_context(|| format!("reading the token in {}", path.display()))?,
        ),
        None => std::env::var("HF_TOKEN").ok(),
    };
    let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    let fits = token.as_ref().is_none_or(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    ensure!(fits, "a token is one word of printable ASCII");
    Ok(token)
}

/// The files that a name means.
fn choose(model: &ModelName, files: Vec<RemoteFile>) -> Result<Vec<RemoteFile>> {
    let repo = &model.repo;
    if let Some(name) = &model.file {
        let found: Vec<_> = files.into_iter().filter(|file| file.name == *name).collect();
        ensure!(!found.is_empty(), "{repo} has no {name}");
        return Ok(found);
    }
    let (models, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.name.ends_with(".cmf"));
    match models.len() {
        1 => Ok(models),
        0 => {
            let of_checkpoint = |file: &RemoteFile| {
                !file.name.contains('/') && CHECKPOINT.iter().any(|end| file.name.ends_with(end))
            };
            let checkpoint: Vec<_> = others.into_iter().filter(of_checkpoint).collect();
            let weights = checkpoint.iter().any(|file| file.name.ends_with(".safetensors"));
            ensure!(weights, "{repo} has neither a model file (.cmf) nor safetensors");
            Ok(checkpoint)
        }
        _ => {
            let names: Vec<_> =
                models.iter().map(|file| format!("{} ({})", file.name, bytes(file.size))).collect();
            bail!("{repo} has several models, name one: {repo}:FILE with {}", names.join(", "))
        }
    }
}
