//! `shamrock info`: what is in a model file, and the memory it needs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use shamrock_model::{LayerKind, ModelFile};

use crate::engine;
use crate::locate::ModelArgs;
use crate::output::{bytes, print};

/// Arguments of `info`.
#[derive(Args)]
pub struct InfoArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Context length to forecast memory for
    #[arg(long, value_name = "N", default_value_t = 4096)]
    ctx: u32,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print the tokenizer.json that the file carries, and nothing else
    #[arg(long)]
    tokenizer: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What `info` tells, gathered once for both forms.
struct Facts {
    file: String,
    model: ModelFile,
    /// Encoding → (tensors, bytes).
    encodings: BTreeMap<&'static str, (usize, u64)>,
    ctx: u64,
}

/// Runs the command.
pub fn run(args: InfoArgs) -> Result<()> {
    let path = args.model.path()?;
    let model = engine::open(&path)?;
    if args.tokenizer {
        return print(model.tokenizer_json());
    }
    let mut encodings = BTreeMap::new();
    for tensor in model.container().tensors() {
        let (count, total) = encodings.entry(tensor.encoding.name()).or_insert((0, 0));
        *count += 1;
        *total += tensor.bytes.len() as u64;
    }
    let facts = Facts { file: path.display().to_string(), model, encodings, ctx: args.ctx.into() };
    let mut text = if args.json { format!("{}\n", facts.json(args.tensors)) } else { facts.text() };
    if args.tensors && !args.json {
        text += &facts.tensor_list();
    }
    print(&text)
}

impl Facts {
    fn weights(&self) -> u64 {
        self.encodings.values().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of committed state at the asked context, in f32.
    fn state(&self) -> u64 {
        let (fixed, per_position) = self.model.config.state_bytes();
        fixed + per_position * self.ctx
    }

    fn layers(&self, kind: LayerKind) -> usize {
        self.model.config.layers.iter().filter(|k| **k == kind).count()
    }

    fn text(&self) -> String {
        let c = &self.model.config;
        let (a, g, m) = (&c.attention, &c.gdn, &c.moe);
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<12}{value}");
        };
        line("file", format!("{} ({})", self.file, bytes(self.model.container().file_len())));
        line(
            "residual",
            format!(
                "hidden {}, vocabulary {}{}",
                c.hidden_size,
                c.vocab_size,
                if c.tie_embeddings { ", tied" } else { "" }
            ),
        );
        line(
            "layers",
            format!(
                "{} ({} Gated DeltaNet, {} full attention)",
                c.layers.len(),
                self.layers(LayerKind::Linear),
                self.layers(LayerKind::Full)
            ),
        );
        line(
            "attention",
            format!(
                "{} heads of {}, {} KV heads, {} rotary dims",
                a.heads, a.head_dim, a.kv_heads, a.rotary_dim
            ),
        );
        line(
            "deltanet",
            format!(
                "{} value heads of {}, {} key heads of {}, convolution over {}",
                g.value_heads, g.value_dim, g.key_heads, g.key_dim, g.conv_kernel
            ),
        );
        line(
            "experts",
            format!(
                "{} of width {}, top {}, shared of width {}",
                m.experts, m.expert_width, m.top_k, m.shared_width
            ),
        );
        match &c.block {
            Some(b) => {
                let coreset = b.coreset_top_p.map_or("off".into(), |p| format!("top_p {p}"));
                line(
                    "diffusion",
                    format!(
                        "blocks of {}, mask id {}, threshold {}, coreset {coreset}",
                        b.block_size, b.mask_id, b.threshold
                    ),
                );
            }
            None => line("diffusion", "none: a causal trunk".into()),
        }
        line("stop ids", format!("{:?}", c.controls.stop_ids));
        line(
            "text",
            format!(
                "tokenizer {}, chat template {}",
                if self.model.tokenizer_json().is_empty() { "none" } else { "yes" },
                if self.model.chat_template.is_some() { "yes" } else { "none" }
            ),
        );
        for (encoding, (count, total)) in &self.encodings {
            line(encoding, format!("{count} tensors, {}", bytes(*total)));
        }
        line(
            "memory",
            format!(
                "{} mapped from the file, {} of state at context {}",
                bytes(self.weights()),
                bytes(self.state()),
                self.ctx
            ),
        );
        out
    }

    fn json(&self, tensors: bool) -> Value {
        let encodings: serde_json::Map<String, Value> = self
            .encodings
            .iter()
            .map(|(name, (count, bytes))| (name.to_string(), json!({ "tensors": count, "bytes": bytes })))
            .collect();
        let mut out = json!({
            "file": self.file,
            "file_bytes": self.model.container().file_len(),
            "arch": self.model.config.to_arch(),
            "stop_ids": self.model.config.controls.stop_ids,
            "encodings": encodings,
            "weight_bytes": self.weights(),
            "context": self.ctx,
            "state_bytes": self.state(),
            "has_tokenizer": !self.model.tokenizer_json().is_empty(),
            "has_chat_template": self.model.chat_template.is_some(),
        });
        if tensors {
            out["tensors"] = self
                .model
                .container()
                .tensors()
                .map(|t| json!({ "name": t.name, "encoding": t.encoding.name(), "shape": t.shape, "offset": t.offset, "bytes": t.bytes.len() }))
                .collect();
        }
        out
    }

    fn tensor_list(&self) -> String {
        let mut out = String::new();
        for t in self.model.container().tensors() {
            let _ = writeln!(
                out,
                "{:>14} {:>12} {:<8} {:<18} {}",
                t.offset,
                t.bytes.len(),
                t.encoding.name(),
                format!("{:?}", t.shape),
                t.name
            );
        }
        out
    }
}
