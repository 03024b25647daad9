//! Models of a hub that speaks the Hugging Face protocol: their names, where they are kept, and how
//! they come here.
//!
//! Written over a plain HTTP client: what `hf-hub` (1.0) downloads it neither resumes nor checks against
//! its hash.

mod client;
mod download;
mod name;

pub use client::{Hub, RemoteFile};
pub use download::{Fetched, fetch};
pub use name::{ModelName, models_folder, pulled};
