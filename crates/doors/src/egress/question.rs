//! Questions for names, as DNS writes them. Pure functions of bytes: one question is read, and short answers are written.

use spec::Host;
use std::net::Ipv4Addr;

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name, or why it is none that a host could have.
    pub host: Result<Host, spec::BadHost>,
    /// What is asked about it: `A`, …
    pub kind: u16,
    id: [u8; 2],
    recursion_desired: bool,
    /// As it was asked, which is how it must be repeated.
    section: Vec<u8>,
    extended: bool,
}

/// How a question ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of DNS")]
pub enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// The address of a name.
pub const A: u16 = 1;
/// The name of an address.
pub const PTR: u16 = 12;
const INTERNET: u16 = 1;
const OPTIONS: u16 = 41;

const HEAD: usize = 12;
const LONGEST_NAME: usize = 255;
/// How long an answer may be thought to be right. The door decides again at every connection.
const SECONDS: u32 = 60;
/// What we could take at once; nobody needs as much.
const LARGEST: u16 = 1232;

/// Reads a question. What is none is answered with the bytes in the error, or not at all if there are none.
pub fn parse(bytes: &[u8]) -> Result<Question, Vec<u8>> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Err(Vec::new());
    };
    let [id_high, id_low, first, _, counts @ ..] = *head;
    let id = [id_high, id_low];
    // Answers are not answered: two who did that would never stop.
    if first & 0x80 != 0 {
        return Err(Vec::new());
    }
    let refuse = |code| Err(answer_head(id, first & 1 != 0, code, [0; 3]));
    if first & 0x78 != 0 {
        return refuse(Code::NotImplemented);
    }
    let [0, 1, 0, 0, 0, 0, 0, others @ (0 | 1)] = counts else {
        return refuse(Code::FormatError);
    };
    let Some((host, kind, class, after)) = section(rest) else {
        return refuse(Code::FormatError);
    };
    let extended = others == 1;
    if !(if extended {
        is_options(after)
    } else {
        after.is_empty()
    }) {
        return refuse(Code::FormatError);
    }
    if class != INTERNET {
        return refuse(Code::Refused);
    }
    let section = rest[..rest.len() - after.len()].to_vec();
    Ok(Question {
        host,
        kind,
        id,
        recursion_desired: first & 1 != 0,
        section,
        extended,
    })
}

/// Name, kind and class, and what comes after them.
type Section<'a> = (Result<Host, spec::BadHost>, u16, u16, &'a [u8]);

fn section(bytes: &[u8]) -> Option<Section<'_>> {
    let mut name = Vec::new();
    let mut rest = bytes;
    loop {
        let (length, after) = rest.split_first()?;
        let length = usize::from(*length);
        if length == 0 {
            rest = after;
            break;
        }
        // What is larger than 63 points elsewhere, and there is nothing before the question to point at.
        let (label, after) = after.split_at_checked(length).filter(|_| length < 64)?;
        if !name.is_empty() {
            name.push(b'.');
        }
        // A dot inside a label is not one between labels; with this it is no name of a host at all.
        name.extend(label.iter().flat_map(|byte| {
            if *byte == b'.' {
                &b"\\."[..]
            } else {
                std::slice::from_ref(byte)
            }
        }));
        rest = after;
        if bytes.len() - rest.len() >= LONGEST_NAME {
            return None;
        }
    }
    let ([kind_high, kind_low, class_high, class_low], after) = rest.split_first_chunk()?;
    let host = String::from_utf8_lossy(&name).parse();
    Some((
        host,
        u16::from_be_bytes([*kind_high, *kind_low]),
        u16::from_be_bytes([*class_high, *class_low]),
        after,
    ))
}

/// Whether that is the one record that a question may bring (EDNS 0), and nothing else.
fn is_options(record: &[u8]) -> bool {
    let Some(([root, kind_high, kind_low, _, _, _, version, _, _, high, low], value)) =
        record.split_first_chunk()
    else {
        return false;
    };
    *root == 0
        && u16::from_be_bytes([*kind_high, *kind_low]) == OPTIONS
        && *version == 0
        && usize::from(u16::from_be_bytes([*high, *low])) == value.len()
}

fn answer_head(id: [u8; 2], recursion_desired: bool, code: Code, counts: [u8; 3]) -> Vec<u8> {
    let [questions, answers, others] = counts;
    let first = 0x80 | u8::from(recursion_desired);
    // We do ask others, where we may.
    let second = 0x80 | code as u8;
    vec![
        id[0], id[1], first, second, 0, questions, 0, answers, 0, 0, 0, others,
    ]
}

impl Question {
    /// The whole answer: at most one address, and never longer than the smallest packet that all can take.
    pub fn answer(&self, code: Code, address: Option<Ipv4Addr>) -> Vec<u8> {
        let counts = [1, u8::from(address.is_some()), u8::from(self.extended)];
        let mut bytes = answer_head(self.id, self.recursion_desired, code, counts);
        bytes.extend_from_slice(&self.section);
        if let Some(address) = address {
            // The name is the one in the question, which is behind the head.
            bytes.extend_from_slice(&[0xc0, HEAD as u8]);
            bytes.extend_from_slice(&[A.to_be_bytes(), INTERNET.to_be_bytes()].concat());
            bytes.extend_from_slice(&SECONDS.to_be_bytes());
            bytes.extend_from_slice(&[0, 4]);
            bytes.extend_from_slice(&address.octets());
        }
        if self.extended {
            bytes.push(0);
            bytes.extend_from_slice(
                &[
                    OPTIONS.to_be_bytes(),
                    LARGEST.to_be_bytes(),
                    [0; 2],
                    [0; 2],
                    [0; 2],
                ]
                .concat(),
            );
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A question as a resolver writes it.
    fn question(labels: &[&[u8]], kind: u16, more: &[u8]) -> Vec<u8> {
        let mut bytes = vec![
            0xab,
            0xcd,
            1,
            0x20,
            0,
            1,
            0,
            0,
            0,
            0,
            0,
            u8::from(!more.is_empty()),
        ];
        for label in labels {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label);
        }
        bytes.push(0);
        bytes.extend_from_slice(&[kind.to_be_bytes(), [0, 1]].concat());
        bytes.extend_from_slice(more);
        bytes
    }

    /// With a cookie in it.
    const OPTION: [u8; 17] = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 6, 0, 10, 0, 2, 1, 2];

    #[test]
    fn a_question_is_read_and_answered_in_its_own_words() {
        let bytes = question(&[b"Www", b"EXAMPLE", b"com"], A, &OPTION);
        let asked = parse(&bytes).unwrap();
        assert_eq!(asked.host, Ok("www.example.com".parse().unwrap()));
        assert_eq!(asked.kind, A);
        let answer = asked.answer(Code::NoError, Some(Ipv4Addr::new(198, 18, 0, 1)));
        assert_eq!(
            answer[..12],
            [0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 1]
        );
        let section = bytes[12..bytes.len() - OPTION.len()].to_vec();
        let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 1];
        let options = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
        assert_eq!(answer[12..], [&section[..], &record, &options].concat());
        let plain = parse(&question(&[b"a", b"b"], 28, &[]))
            .unwrap()
            .answer(Code::NoSuchName, None);
        assert_eq!(
            plain,
            [
                &[0xab, 0xcd, 0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0, 1][..],
                b"a\x01b\0\0\x1c\0\x01"
            ]
            .concat()
        );
    }

    #[test]
    fn what_is_no_name_of_a_host_is_known_not_to_be() {
        let good = parse(&question(&[b"_x-y", b"example"], A, &[])).unwrap();
        assert_eq!(good.host.unwrap().name(), Some("_x-y.example"));
        let bad: [&[&[u8]]; 7] = [
            &[b"a.b", b"c"],
            &[b"a\0", b"c"],
            &[b"\xc3\xa9"],
            &[b"*"],
            &[b"-a"],
            &[b"a\\"],
            &[],
        ];
        for labels in bad {
            assert!(
                parse(&question(labels, A, &[])).unwrap().host.is_err(),
                "{labels:?}"
            );
        }
        // An address is a host, and no name of one.
        assert_eq!(
            parse(&question(&[b"127", b"1"], A, &[]))
                .unwrap()
                .host
                .unwrap()
                .name(),
            None
        );
    }

    #[test]
    fn what_is_no_question_is_refused_or_not_answered() {
        let good = question(&[b"a", b"com"], A, &[]);
        assert!(parse(&good).is_ok(), "the control");
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            parse(&bytes).unwrap_err()
        };
        assert_eq!(changed(2, 0x80), Vec::<u8>::new(), "an answer");
        assert_eq!(parse(&good[..11]).unwrap_err(), Vec::<u8>::new());
        let refused = |code: u8| vec![0xab, 0xcd, 0x81, 0x80 | code, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(changed(2, 0x29), refused(4), "another operation");
        assert_eq!(changed(good.len() - 1, 3), refused(5), "another class");
        for (at, byte) in [
            (5, 0),
            (5, 2),
            (7, 1),
            (9, 1),
            (11, 1),
            (11, 2),
            (4, 1),
            (12, 0xc0),
            (12, 64),
        ] {
            assert_eq!(changed(at, byte), refused(1), "{byte} at {at}");
        }
        let long = [&[b'a'; 63][..]; 4];
        for bytes in [
            [&good[..], b"x"].concat(),
            good[..good.len() - 1].to_vec(),
            question(&long, A, &[]),
            question(&[b"a"], A, &OPTION[..16]),
            question(&[b"a"], A, &[&OPTION[..], b"x"].concat()),
        ] {
            assert_eq!(parse(&bytes).unwrap_err(), refused(1), "{bytes:02x?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_no_answer_is_long(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            labels in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..64), 0..6),
        ) {
            let labels: Vec<&[u8]> = labels.iter().map(Vec::as_slice).collect();
            for bytes in [bytes.clone(), question(&labels, 1, &[]), question(&[b"a"], 1, &bytes)] {
                match parse(&bytes) {
                    Ok(asked) => {
                        let answer = asked.answer(Code::NoError, Some(Ipv4Addr::LOCALHOST));
                        prop_assert!(answer.len() <= 512);
                        if let Ok(host) = asked.host {
                            prop_assert_eq!(host.to_string().parse::<Host>().unwrap(), host);
                        }
                    }
                    Err(answer) => prop_assert!(answer.is_empty() || answer.len() == 12),
                }
            }
        }
    }
}
