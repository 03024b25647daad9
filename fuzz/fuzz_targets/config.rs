//! A configuration is refused with a message, or survives a trip through the container header and
//! has sizes that can be computed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use shamrock_model::{Config, Controls};

fuzz_target!(|data: &[u8]| {
    let Ok(input) = serde_json::from_slice::<Value>(data) else { return };
    // One input serves both forms: {"config": …, "generation": …} or a header.
    let found = match input.get("config") {
        Some(config) => Config::from_hf(config, input.get("generation")),
        None => Config::from_header(&input),
    };
    let Ok(mut config) = found else { return };
    config.state_bytes();
    // The header keeps no controls for a plain trunk but its stop ids.
    if config.block.is_none() {
        config.controls = Controls { stop_ids: config.controls.stop_ids, ..Controls::default() };
    }
    let text = json!({ "eos_token_ids": config.controls.stop_ids, "pad_token_id": config.pad_id });
    let again = Config::from_header(&json!({ "arch": config.to_arch(), "tokenizer_config": text }));
    let mut again = again.unwrap_or_else(|e| panic!("own header refused: {e}\n{config:?}"));
    again.eos_ids = config.eos_ids.clone();
    assert_eq!(again, config);
});
