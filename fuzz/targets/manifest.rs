//! The documents of an image. No bytes make a reader panic; what is refused is told on one line.
//!
//! The first byte says which document the rest is read as.

#![no_main]

use image::document;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let refused = match kind {
        b'd' => document::document("it", bytes).err(),
        b'c' => match document::configuration("it", bytes) {
            Ok(read) => {
                assert!(!read.platform.to_string().contains(char::is_control));
                None
            }
            Err(error) => Some(error),
        },
        b's' => document::docker_manifest(bytes).err(),
        _ => None,
    };
    if let Some(error) = refused {
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
        assert!(!error.hint().is_empty());
    }
});
