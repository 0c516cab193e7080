//! What callers say of traces and moments. No bytes make the readers panic; what is read is written as it came, and no
//! state holds what could end a header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::{Timestamp, TraceParent};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(parent) = TraceParent::read(text) {
        let written = TraceParent::written(&parent.trace, &parent.span, parent.flags);
        assert_eq!(TraceParent::read(&written), Some(parent));
        assert_eq!(written[2..53], text[2..53]);
    }
    if TraceParent::is_state(text) {
        assert!(text.len() <= 512 && text.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
    }
    if let Some(moment) = Timestamp::from_rfc3339(text) {
        assert_eq!(Timestamp::from_rfc3339(&moment.to_string()), Some(moment));
    }
});
