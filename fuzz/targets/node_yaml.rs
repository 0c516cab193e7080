//! Node files: no text makes reading one panic or take long, what is refused says why on one line, and what is read is
//! within its bounds.
//!
//! The command is no library, so that this target takes the module from its file.

#![no_main]

#[path = "../../crates/app/src/config/mod.rs"]
#[allow(dead_code, reason = "what the command alone uses")]
mod config;

use libfuzzer_sys::fuzz_target;
use std::{path::Path, time::Duration};

fuzz_target!(|text: &str| {
    match config::node_file::parse(text, Path::new("/n.yaml")) {
        Ok(node) => {
            let longest = node.max_timeout.unwrap_or(Duration::from_secs(10_800));
            assert!(node.default_timeout.is_none_or(|usual| usual <= longest));
            assert!(
                node.folders
                    .iter()
                    .chain(&node.state)
                    .all(|path| path.is_absolute())
            );
            assert!(node.max_concurrency != Some(0) && node.labels.len() <= 64);
        }
        Err(refused) => {
            assert!(
                !refused.message.contains('\n') && !refused.hint.is_empty(),
                "{}",
                refused.message
            )
        }
    }
});
