//! What a program printed, read by its contract. No bytes make the reader panic; what is taken is one
//! object, and says that all went well exactly if the program exited so; what is refused is told shortly.
//!
//! The first byte says which contract, the second is the exit status. The reader is no library of its own, so that this
//! includes it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::{Contract, Json};

#[allow(dead_code, reason = "only the reader is tried")]
#[path = "../../crates/engine/src/contract.rs"]
mod contract;

fuzz_target!(|input: &[u8]| {
    let [kind, code, stdout @ ..] = input else {
        return;
    };
    let contract = if *kind == b't' {
        Contract::Task
    } else {
        Contract::Envelope
    };
    match contract::read(contract, stdout, false, i32::from(*code)) {
        Ok(taken) => {
            let taken = taken.expect("a contract that is not raw");
            assert!(matches!(taken, Json::Object(_)));
            assert_eq!(says_success(&taken), *code == 0);
        }
        Err(violation) => {
            let told = violation.to_string();
            assert!(
                told.len() < 1000 && !told.contains(char::is_control),
                "{told:?}"
            );
        }
    }
});

/// By the document alone, found on another way than the reader's.
fn says_success(taken: &Json) -> bool {
    let text = serde_json::to_string(taken).expect("JSON");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    match value.get("status") {
        Some(status) => status == "completed",
        None => value["meta"]["error"].is_null() && value["meta"]["aborted"] != true,
    }
}
