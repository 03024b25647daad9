//! A model file opened: container, configuration, bound weights and the text metadata that travels
//! with them.

use std::path::Path;
use std::sync::Arc;

use shamrock_cmf::Container;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::weights::Weights;

/// A CMF model file, mapped and checked. No pass over the weights is made.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// Geometry and defaults.
    pub config: Config,
    /// Bound weights.
    pub weights: Arc<Weights>,
    /// Jinja chat template, if the file carries one.
    pub chat_template: Option<String>,
}

impl ModelFile {
    /// Opens and checks a model file.
    ///
    /// # Errors
    /// Damage of the container, an impossible configuration, or a tensor that does not fit it.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile> {
        ModelFile::from_container(Arc::new(Container::open(path)?))
    }

    /// The same over an already opened container.
    pub fn from_container(container: Arc<Container>) -> Result<ModelFile> {
        let config = Config::from_header(container.header()).map_err(|error| match error {
            Error::Config { source_name, field, problem } => {
                let source_name = format!("{}: {source_name}", container.path().display());
                Error::Config { source_name, field, problem }
            }
            other => other,
        })?;
        let chat_template = container
            .header()
            .pointer("/tokenizer_config/chat_template")
            .and_then(|t| t.as_str())
            .map(str::to_owned);
        let weights = Arc::new(Weights::bind(container, &config)?);
        Ok(ModelFile { config, weights, chat_template })
    }

    /// The container.
    pub fn container(&self) -> &Arc<Container> {
        self.weights.container()
    }

    /// A number that names the file's contents, see [`Container::fingerprint`].
    pub fn fingerprint(&self) -> u64 {
        self.container().fingerprint()
    }

    /// Bytes of the file's `tokenizer.json`; empty when it has none.
    pub fn tokenizer_json(&self) -> &[u8] {
        self.container().vocab()
    }
}
