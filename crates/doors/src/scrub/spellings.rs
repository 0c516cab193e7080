//! Other ways of writing a credential, as servers do that put it into their answers: JSON, addresses, pages, base64, hex.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use zeroize::Zeroizing;

type Text = Zeroizing<Vec<u8>>;

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";
/// What encoders of JSON write as `\u00XX`: none of it, what could end a script, what could end anything in a page.
const IN_JSON: [&[u8]; 3] = [b"", b"<>&", b"\"&'+<>`"];
/// What encoders of addresses leave as it is.
const IN_ADDRESSES: [&[u8]; 3] = [b"-._~", b"-._~/", b"-._~!'()*"];

/// All of them; many are the same for most credentials.
pub(super) fn of(text: &[u8]) -> Vec<Text> {
    let mut all = base64_anywhere(text);
    for digits in [UPPER, LOWER] {
        all.push(Zeroizing::new(
            text.iter().flat_map(|byte| hex(*byte, digits)).collect(),
        ));
        all.extend(IN_ADDRESSES.map(|plain| percent(text, plain, digits)));
        for escaped in IN_JSON {
            let solidus = [b"/".to_vec(), b"\\/".to_vec(), unicode(b'/', digits)];
            all.extend(solidus.map(|solidus| json(text, escaped, &solidus, digits)));
        }
    }
    for (quote, others) in [("&#39;", false), ("&#x27;", false), ("&#39;", true)] {
        all.push(html(text, quote, others));
    }
    all
}

/// Within a longer text, base64 depends on where it begins there.
fn base64_anywhere(text: &[u8]) -> Vec<Text> {
    let mut all = vec![base64(text)];
    for before in 0..3 {
        let encoded = base64(&Zeroizing::new([&b"..."[..before], text].concat()));
        // The first characters also carry what stood before, the last what comes behind.
        let first = [0, 2, 3][before];
        let last = encoded.len() - usize::from(!(before + text.len()).is_multiple_of(3));
        all.push(Zeroizing::new(
            encoded.get(first..last).unwrap_or_default().to_vec(),
        ));
    }
    let swap = |byte: &u8| match byte {
        b'+' => b'-',
        b'/' => b'_',
        other => *other,
    };
    let for_addresses: Vec<Text> = all
        .iter()
        .map(|form| Zeroizing::new(form.iter().map(swap).collect()))
        .collect();
    all.extend(for_addresses);
    all
}

fn base64(text: &[u8]) -> Text {
    Zeroizing::new(STANDARD_NO_PAD.encode(text).into_bytes())
}

fn hex(byte: u8, digits: &[u8; 16]) -> [u8; 2] {
    [
        digits[usize::from(byte >> 4)],
        digits[usize::from(byte & 15)],
    ]
}

fn unicode(byte: u8, digits: &[u8; 16]) -> Vec<u8> {
    [&b"\\u00"[..], &hex(byte, digits)].concat()
}

fn json(text: &[u8], escaped: &[u8], solidus: &[u8], digits: &[u8; 16]) -> Text {
    let mut written = Zeroizing::new(Vec::with_capacity(text.len() * 6));
    for byte in text {
        match byte {
            byte if escaped.contains(byte) => written.extend(unicode(*byte, digits)),
            b'/' => written.extend(solidus),
            b'"' | b'\\' => written.extend([b'\\', *byte]),
            other => written.push(*other),
        }
    }
    written
}

fn percent(text: &[u8], plain: &[u8], digits: &[u8; 16]) -> Text {
    let mut written = Zeroizing::new(Vec::with_capacity(text.len() * 3));
    for byte in text {
        match byte.is_ascii_alphanumeric() || plain.contains(byte) {
            true => written.push(*byte),
            false => written.extend([&b"%"[..], &hex(*byte, digits)].concat()),
        }
    }
    written
}

fn html(text: &[u8], quote: &str, others: bool) -> Text {
    let mut written = Zeroizing::new(Vec::with_capacity(text.len() * 6));
    for byte in text {
        match byte {
            b'&' => written.extend(b"&amp;"),
            b'<' => written.extend(b"&lt;"),
            b'>' => written.extend(b"&gt;"),
            b'"' => written.extend(b"&quot;"),
            b'\'' => written.extend(quote.as_bytes()),
            b'/' | b'=' | b'`' if others => {
                written.extend([&b"&#x"[..], &hex(*byte, UPPER), b";"].concat());
            }
            other => written.push(*other),
        }
    }
    written
}
