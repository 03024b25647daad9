//! Grammars for clover-nano's vocabulary, and answers of that model.

mod answers;
mod dates;

use std::sync::LazyLock;

use shamrock_grammar::Compiler;
use shamrock_model::ModelFile;
use shamrock_text::{ChatTemplate, Prompter, Tokenizer};

fn nano() -> ModelFile {
    ModelFile::open(shamrock_testkit::root().join("models/clover-nano.cmf")).unwrap()
}

/// The text side of clover-nano, and a compiler for its vocabulary.
static NANO: LazyLock<(Prompter, Compiler)> = LazyLock::new(|| {
    let model = nano();
    let tokenizer = Tokenizer::from_bytes(model.tokenizer_json()).unwrap();
    let compiler = Compiler::new(&tokenizer, model.config.vocab_size).unwrap();
    let template = model.chat_template.as_deref().map(|source| ChatTemplate::new(source, []).unwrap());
    (Prompter::new(tokenizer, template), compiler)
});
