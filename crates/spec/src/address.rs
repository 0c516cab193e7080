//! Which IP addresses are public, and which belong to a metadata service. The decision is on the
//! address that is dialled, never on the name, which may resolve to anything. An IPv6 address that
//! embeds an IPv4 address (mapped, translated, tunnelled) is judged as that address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is on the public internet: no loopback, private, shared, link-local,
/// multicast, reserved or documentation address, and no metadata service.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match embedded_v4(v6) {
            Some((Embedding::Translated, v4)) => is_public_v4(v4),
            Some((Embedding::Tunnel, _)) => false,
            None => is_public_v6(v6),
        },
    }
}

/// Whether the metadata service of a cloud may answer at an address: all of link-local, and the
/// addresses that providers use elsewhere. Such an address is never dialled, whatever the operator
/// allows.
pub fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_metadata_v4(v4),
        IpAddr::V6(v6) => match embedded_v4(v6) {
            Some((_, v4)) => is_metadata_v4(v4),
            None => is_metadata_v6(v6),
        },
    }
}

/// Whether a name is known to lead to a metadata service. It only makes an early error message
/// clearer: [`is_metadata`] decides.
pub fn is_metadata_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    [
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "instance-data",
        "instance-data.ec2.internal",
    ]
    .contains(&host.as_str())
}

/// Parses a host that is an address, in every spelling that resolvers take: decimal, octal,
/// hexadecimal, fewer than four parts, brackets, a zone, dots at the end.
pub fn literal(host: &str) -> Option<IpAddr> {
    let host = host.trim_end_matches('.');
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if bare.contains(':') {
        let address = bare.split('%').next().unwrap_or_default();
        return address.parse().ok().map(IpAddr::V6);
    }
    inet_aton(bare).map(IpAddr::V4)
}

/// Reads an address as `inet_aton` does: the last part fills all bytes that the others leave.
fn inet_aton(host: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 255) {
        return None;
    }
    let bits = 8 * (4 - first.len() as u32);
    if *last >= 1 << bits {
        return None;
    }
    let high = first.iter().fold(0, |high, part| high << 8 | part);
    u32::try_from(high << bits | last)
        .ok()
        .map(Ipv4Addr::from_bits)
}

fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // `0x` alone is zero to some resolvers.
    if digits.is_empty() && radix == 16 {
        return Some(0);
    }
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain
        .then(|| u64::from_str_radix(digits, radix).ok())
        .flatten()
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let special = match address.octets() {
        [0 | 10 | 127, ..] | [169, 254, ..] | [192, 168, ..] => true,
        // Shared address space of carriers; private; benchmarks.
        [100, second, ..] => second & 0xc0 == 64,
        [172, second, ..] => second & 0xf0 == 16,
        [198, 18 | 19, ..] => true,
        // Protocol assignments, documentation, 6to4 relays.
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        // Multicast and reserved.
        [224..=255, ..] => true,
        _ => false,
    };
    !special && !is_metadata_v4(address)
}

fn is_metadata_v4(address: Ipv4Addr) -> bool {
    // Link-local (most clouds, and the credentials of containers), Alibaba, Azure, Oracle.
    matches!(
        address.octets(),
        [169, 254, ..] | [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192]
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // Protocols (Teredo among them), documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

fn is_metadata_v6(address: Ipv6Addr) -> bool {
    // Amazon (the credentials of pods, too), Oracle, Scaleway, Google; and all of link-local.
    let known = matches!(
        address.segments(),
        [0xfd00, 0xec2, ..]
            | [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]
            | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]
            | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]
    );
    known || address.is_unicast_link_local()
}

/// How an IPv6 address embeds an IPv4 address.
enum Embedding {
    /// Packets reach that address and no other.
    Translated,
    /// Packets go to a relay.
    Tunnel,
}

fn embedded_v4(address: Ipv6Addr) -> Option<(Embedding, Ipv4Addr)> {
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // The unspecified and the loopback address embed none.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            Some((Embedding::Translated, join(high, low)))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some((Embedding::Translated, join(high, low))),
        // The prefix for translators of a local network.
        [0x64, 0xff9b, 1, .., high, low] => Some((Embedding::Tunnel, join(high, low))),
        [0x2002, high, low, ..] => Some((Embedding::Tunnel, join(high, low))),
        [0x2001, 0, .., high, low] => Some((Embedding::Tunnel, join(!high, !low))),
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some((Embedding::Tunnel, join(high, low))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const METADATA: [&str; 29] = [
        "169.254.169.254",
        "169.254.169.254.",
        "169.254.169.254..",
        "0xa9fea9fe",
        "0XA9FEA9FE",
        "2852039166",
        "0251.0376.0251.0376",
        "0251.0376.43518",
        "169.0xfea9fe",
        "169.254.0xa9fe",
        "0xa9.254.169.0376",
        "025177524776",
        "169.254.170.2",
        "[::ffff:a9fe:a9fe]",
        "::ffff:169.254.169.254",
        "[::169.254.169.254]",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:1::5601:5601",
        "fd00:ec2::254",
        "[fd00:ec2::254].",
        "fd20:ce::254",
        "fd00:ec2::23",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "fe80::a9fe:a9fe%eth0",
        "100.100.100.200",
        "168.63.129.16",
    ];
    const PRIVATE: [&str; 42] = [
        "127.0.0.1",
        "127.1",
        "0",
        "0x",
        "0.0.0.0",
        "0x7f.1",
        "017700000001",
        "2130706433",
        "10.0.0.1",
        "10.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "192.168.257",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "[::1]",
        "::ffff:127.0.0.1",
        "::ffff:0:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2002:808:808::",
        "2001:0:808:808::1",
        "fc00::1",
        "fdff::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
    ];
    const PUBLIC: [&str; 14] = [
        "1.1.1.1",
        "8.8.8.8",
        "134744072",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "169.253.0.1",
        "192.0.1.1",
        "198.17.0.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:4860:4860::8888",
        "64:ff9b::808:808",
    ];

    #[test]
    fn each_spelling_of_an_address_is_what_it_is() {
        for host in METADATA {
            let address = literal(host).unwrap_or_else(|| panic!("{host} is an address"));
            assert!(is_metadata(address) && !is_public(address), "{host}");
        }
        for host in PRIVATE {
            let address = literal(host).unwrap_or_else(|| panic!("{host} is an address"));
            assert!(!is_metadata(address) && !is_public(address), "{host}");
        }
        for host in PUBLIC {
            let address = literal(host).unwrap_or_else(|| panic!("{host} is an address"));
            assert!(!is_metadata(address) && is_public(address), "{host}");
        }
    }

    #[test]
    fn a_name_is_no_address() {
        for host in [
            "",
            ".",
            "example.com",
            "0xg",
            "08",
            "1.2.3.4.5",
            "256.1.1.1",
            "4294967296",
            "1.2.3.256",
            "a",
            "+1",
        ] {
            assert_eq!(literal(host), None, "{host}");
        }
        assert!(
            is_metadata_name("Metadata.Google.Internal.")
                && !is_metadata_name("metadata.example.com")
        );
    }

    proptest! {
        #[test]
        fn an_address_is_found_however_it_is_written(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let [a, b, c, d] = address.octets();
            for host in [
                address.to_string(),
                format!("{bits}"),
                format!("{bits:#x}"),
                format!("0{bits:o}"),
                format!("{a}.{:#x}", bits & 0xff_ffff),
                format!("{a:#x}.0{b:o}.{}", bits & 0xffff),
                format!("0{a:o}.{b}.{c:#X}.{d}."),
            ] {
                prop_assert_eq!(literal(&host), Some(IpAddr::V4(address)), "{}", host);
            }
            let mapped = address.to_ipv6_mapped();
            prop_assert_eq!(is_public(mapped.into()), is_public(address.into()));
            prop_assert_eq!(is_metadata(mapped.into()), is_metadata(address.into()));
        }

        #[test]
        fn no_metadata_address_is_public(address: IpAddr) {
            prop_assert!(!(is_public(address) && is_metadata(address)));
            prop_assert_eq!(literal(&address.to_string()), Some(address));
        }

        #[test]
        fn no_text_makes_the_reader_panic(host in "\\PC{0,40}|[0-9a-fx.:%\\[\\]]{0,40}") {
            let _ = literal(&host);
        }
    }
}
