//! DNS messages: parses one query and writes short responses. Pure functions of bytes.

use spec::Host;
use std::net::Ipv4Addr;

/// A parsed query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuery {
    /// The queried name, or why it is not a host name.
    pub host: Result<Host, spec::BadHost>,
    /// The query type: `A`, …
    pub kind: u16,
    id: [u8; 2],
    recursion_desired: bool,
    /// The question section, which the response must repeat unchanged.
    section: Vec<u8>,
    extended: bool,
}

/// DNS response codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseCode {
    /// NOERROR.
    NoError = 0,
    /// FORMERR: the query is malformed.
    FormatError = 1,
    /// SERVFAIL.
    ServerFailure = 2,
    /// NXDOMAIN.
    NoSuchName = 3,
    /// NOTIMP: not a standard query.
    NotImplemented = 4,
    /// REFUSED by policy.
    Refused = 5,
}

/// Query type A: the address of a name.
pub const A: u16 = 1;
/// Query type PTR: the name of an address.
pub const PTR: u16 = 12;
const CLASS_IN: u16 = 1;
const TYPE_OPT: u16 = 41;

const HEADER_BYTES: usize = 12;
const MAX_NAME_BYTES: usize = 255;
/// TTL of answers. The door checks the rules again for every connection.
const TTL_SECONDS: u32 = 60;
/// The UDP payload size that is announced with EDNS.
const EDNS_UDP_SIZE: u16 = 1232;

/// Parses a query. The error is the response to send; empty if there should be none.
pub fn parse(bytes: &[u8]) -> Result<DnsQuery, Vec<u8>> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Vec::new());
    };
    let [id_high, id_low, first, _, counts @ ..] = *head;
    let id = [id_high, id_low];
    // Responses are not answered: two servers that did so would never stop.
    if first & 0x80 != 0 {
        return Err(Vec::new());
    }
    let refuse = |code| Err(response_header(id, first & 1 != 0, code, [0; 3]));
    if first & 0x78 != 0 {
        return refuse(ResponseCode::NotImplemented);
    }
    let [0, 1, 0, 0, 0, 0, 0, others @ (0 | 1)] = counts else {
        return refuse(ResponseCode::FormatError);
    };
    let Some((host, kind, class, after)) = section(rest) else {
        return refuse(ResponseCode::FormatError);
    };
    let extended = others == 1;
    if !(if extended {
        is_opt_record(after)
    } else {
        after.is_empty()
    }) {
        return refuse(ResponseCode::FormatError);
    }
    if class != CLASS_IN {
        return refuse(ResponseCode::Refused);
    }
    let section = rest[..rest.len() - after.len()].to_vec();
    Ok(DnsQuery {
        host,
        kind,
        id,
        recursion_desired: first & 1 != 0,
        section,
        extended,
    })
}

/// Name, type, class, and the bytes after them.
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
        // Lengths above 63 are compression pointers, and nothing precedes the question to point at.
        let (label, after) = after.split_at_checked(length).filter(|_| length < 64)?;
        if !name.is_empty() {
            name.push(b'.');
        }
        // A dot inside a label is not a separator; escaped, the name is no host name at all.
        name.extend(label.iter().flat_map(|byte| {
            if *byte == b'.' {
                &b"\\."[..]
            } else {
                std::slice::from_ref(byte)
            }
        }));
        rest = after;
        if bytes.len() - rest.len() >= MAX_NAME_BYTES {
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

/// Whether this is the one OPT record (EDNS 0) that a query may have, and nothing else.
fn is_opt_record(record: &[u8]) -> bool {
    let Some(([root, kind_high, kind_low, _, _, _, version, _, _, high, low], value)) =
        record.split_first_chunk()
    else {
        return false;
    };
    *root == 0
        && u16::from_be_bytes([*kind_high, *kind_low]) == TYPE_OPT
        && *version == 0
        && usize::from(u16::from_be_bytes([*high, *low])) == value.len()
}

fn response_header(
    id: [u8; 2],
    recursion_desired: bool,
    code: ResponseCode,
    counts: [u8; 3],
) -> Vec<u8> {
    let [questions, answers, others] = counts;
    let first = 0x80 | u8::from(recursion_desired);
    // The recursion-available flag: the door resolves allowed names.
    let second = 0x80 | code as u8;
    vec![
        id[0], id[1], first, second, 0, questions, 0, answers, 0, 0, 0, others,
    ]
}

impl DnsQuery {
    /// The response: at most one address, and never larger than the smallest packet that every
    /// client accepts.
    pub fn answer(&self, code: ResponseCode, address: Option<Ipv4Addr>) -> Vec<u8> {
        let counts = [1, u8::from(address.is_some()), u8::from(self.extended)];
        let mut bytes = response_header(self.id, self.recursion_desired, code, counts);
        bytes.extend_from_slice(&self.section);
        if let Some(address) = address {
            // A compression pointer to the name in the question.
            bytes.extend_from_slice(&[0xc0, HEADER_BYTES as u8]);
            bytes.extend_from_slice(&[A.to_be_bytes(), CLASS_IN.to_be_bytes()].concat());
            bytes.extend_from_slice(&TTL_SECONDS.to_be_bytes());
            bytes.extend_from_slice(&[0, 4]);
            bytes.extend_from_slice(&address.octets());
        }
        if self.extended {
            bytes.push(0);
            bytes.extend_from_slice(
                &[
                    TYPE_OPT.to_be_bytes(),
                    EDNS_UDP_SIZE.to_be_bytes(),
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
    fn query(labels: &[&[u8]], kind: u16, more: &[u8]) -> Vec<u8> {
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
        let bytes = query(&[b"Www", b"EXAMPLE", b"com"], A, &OPTION);
        let asked = parse(&bytes).unwrap();
        assert_eq!(asked.host, Ok("www.example.com".parse().unwrap()));
        assert_eq!(asked.kind, A);
        let answer = asked.answer(ResponseCode::NoError, Some(Ipv4Addr::new(198, 18, 0, 1)));
        assert_eq!(
            answer[..12],
            [0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 1]
        );
        let section = bytes[12..bytes.len() - OPTION.len()].to_vec();
        let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 1];
        let options = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
        assert_eq!(answer[12..], [&section[..], &record, &options].concat());
        let plain = parse(&query(&[b"a", b"b"], 28, &[]))
            .unwrap()
            .answer(ResponseCode::NoSuchName, None);
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
        let good = parse(&query(&[b"_x-y", b"example"], A, &[])).unwrap();
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
                parse(&query(labels, A, &[])).unwrap().host.is_err(),
                "{labels:?}"
            );
        }
        // An address is a host, and no name of one.
        assert_eq!(
            parse(&query(&[b"127", b"1"], A, &[]))
                .unwrap()
                .host
                .unwrap()
                .name(),
            None
        );
    }

    #[test]
    fn what_is_no_question_is_refused_or_not_answered() {
        let good = query(&[b"a", b"com"], A, &[]);
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
            query(&long, A, &[]),
            query(&[b"a"], A, &OPTION[..16]),
            query(&[b"a"], A, &[&OPTION[..], b"x"].concat()),
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
            for bytes in [bytes.clone(), query(&labels, 1, &[]), query(&[b"a"], 1, &bytes)] {
                match parse(&bytes) {
                    Ok(asked) => {
                        let answer = asked.answer(ResponseCode::NoError, Some(Ipv4Addr::LOCALHOST));
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
