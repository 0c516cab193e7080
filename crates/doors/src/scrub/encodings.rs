//! Encodings of a credential that servers use in responses: JSON, URLs, HTML, base64, hex.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use zeroize::Zeroizing;

type SecretBytes = Zeroizing<Vec<u8>>;

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";
/// What JSON encoders write as `\u00XX`: nothing; what could end a script; what could end anything
/// in HTML.
const JSON_ESCAPED_SETS: [&[u8]; 3] = [b"", b"<>&", b"\"&'+<>`"];
/// What URL encoders leave as it is.
const URL_SAFE_SETS: [&[u8]; 3] = [b"-._~", b"-._~/", b"-._~!'()*"];

/// All encodings; many are equal for most credentials.
pub(super) fn of(text: &[u8]) -> Vec<SecretBytes> {
    let mut all = base64_anywhere(text);
    for digits in [UPPER, LOWER] {
        all.push(Zeroizing::new(
            text.iter().flat_map(|byte| hex(*byte, digits)).collect(),
        ));
        all.extend(URL_SAFE_SETS.map(|plain| percent(text, plain, digits)));
        for escaped in JSON_ESCAPED_SETS {
            let solidus = [b"/".to_vec(), b"\\/".to_vec(), unicode(b'/', digits)];
            all.extend(solidus.map(|solidus| json(text, escaped, &solidus, digits)));
        }
    }
    for (quote, others) in [("&#39;", false), ("&#x27;", false), ("&#39;", true)] {
        all.push(html(text, quote, others));
    }
    all
}

/// Within a longer text, the base64 form depends on the offset.
fn base64_anywhere(text: &[u8]) -> Vec<SecretBytes> {
    let mut all = vec![base64(text)];
    for before in 0..3 {
        let encoded = base64(&Zeroizing::new([&b"..."[..before], text].concat()));
        // The first characters also encode what precedes, the last what follows.
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
    let for_addresses: Vec<SecretBytes> = all
        .iter()
        .map(|form| Zeroizing::new(form.iter().map(swap).collect()))
        .collect();
    all.extend(for_addresses);
    all
}

fn base64(text: &[u8]) -> SecretBytes {
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

fn json(text: &[u8], escaped: &[u8], solidus: &[u8], digits: &[u8; 16]) -> SecretBytes {
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

fn percent(text: &[u8], plain: &[u8], digits: &[u8; 16]) -> SecretBytes {
    let mut written = Zeroizing::new(Vec::with_capacity(text.len() * 3));
    for byte in text {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            written.push(*byte)
        } else {
            written.extend([&b"%"[..], &hex(*byte, digits)].concat())
        }
    }
    written
}

fn html(text: &[u8], quote: &str, others: bool) -> SecretBytes {
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
