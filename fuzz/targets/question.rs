//! Questions for names at the egress door. No bytes make the reader panic; what it answers is short, repeats the question
//! as it was asked, and is never taken for a question.

#![no_main]

use doors::egress::dns_message::{ResponseCode, parse};
use libfuzzer_sys::fuzz_target;
use std::net::Ipv4Addr;

fuzz_target!(|bytes: &[u8]| {
    let answer = match parse(bytes) {
        Ok(question) => {
            let answer = question.answer(ResponseCode::NoError, Some(Ipv4Addr::LOCALHOST));
            let repeated = question.answer(ResponseCode::NoSuchName, None);
            let end = repeated.len() - if bytes[11] == 1 { 11 } else { 0 };
            assert_eq!(repeated[12..end], bytes[12..end], "the question");
            if let Ok(host) = question.host {
                assert_eq!(host.to_string().parse(), Ok(host));
            }
            answer
        }
        Err(answer) => answer,
    };
    assert!(answer.len() <= 512);
    if !answer.is_empty() {
        assert_eq!(answer[..2], bytes[..2], "whose answer it is");
        assert_eq!(parse(&answer), Err(Vec::new()), "answers are not answered");
    }
});
