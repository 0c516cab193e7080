//! A table of nf_tables that sends what is dialled in a network to one port of its loopback, whatever its own port was.
//! As `nft` would make it of this, for both families; where a connection was meant to go, the kernel remembers:
//!
//! ```text
//! table ip airlock { chain out { type nat hook output priority -100
//!     meta l4proto tcp ip daddr & 255.0.0.0 != 127.0.0.0 redirect to :3129
//!     meta l4proto udp ip daddr & 255.0.0.0 != 127.0.0.0 udp dport 53 redirect to :53 } }
//! ```

use crate::netlink::{ACKNOWLEDGE, Attributes, CREATE, Messages};
use std::{ffi::CStr, io};

const TABLE: &CStr = c"airlock";
const CHAIN: &CStr = c"out";
/// The registers of a rule are its variables; one is enough.
const REGISTER: u32 = libc::NFT_REG_1 as u32;
const EQUAL: u32 = libc::NFT_CMP_EQ as u32;
const NOT_EQUAL: u32 = libc::NFT_CMP_NEQ as u32;
/// Where the port of a destination lies, in both protocols.
const DESTINATION_PORT: u32 = 2;
/// Only the port is given: the address is the loopback's.
const PORT_GIVEN: u32 = 2;

/// How a family writes destinations, and which of them are its loopback.
struct Family {
    number: i32,
    /// Where in a packet.
    place: u32,
    mask: &'static [u8],
    loopback: &'static [u8],
}

const IPV4: Family =
    Family { number: libc::NFPROTO_IPV4, place: 16, mask: &[255, 0, 0, 0], loopback: &[127, 0, 0, 0] };
const IPV6: Family = Family {
    number: libc::NFPROTO_IPV6,
    place: 24,
    mask: &[255; 16],
    loopback: &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
};

/// Redirects all TCP to a port, and names that are asked for elsewhere to theirs; all of it or nothing.
pub(crate) fn all(to: u16, names: u16, both: bool) -> io::Result<()> {
    batch(to, names, both).say(Some(rustix::net::netlink::NETFILTER))
}

fn batch(to: u16, names: u16, both: bool) -> Messages {
    let mut messages = Messages::default();
    mark(&mut messages, libc::NFNL_MSG_BATCH_BEGIN);
    for family in [Some(IPV4), both.then_some(IPV6)].into_iter().flatten() {
        let mut add = |kind: i32, attributes: &Attributes| {
            let kind = (libc::NFNL_SUBSYS_NFTABLES << 8 | kind) as u16;
            messages.add(kind, CREATE | ACKNOWLEDGE, &[family.number as u8, 0, 0, 0], attributes);
        };
        add(libc::NFT_MSG_NEWTABLE, &Attributes::default().with_text(1, TABLE));
        add(libc::NFT_MSG_NEWCHAIN, &chain());
        add(libc::NFT_MSG_NEWRULE, &rule(&family, libc::IPPROTO_TCP, None, to));
        add(libc::NFT_MSG_NEWRULE, &rule(&family, libc::IPPROTO_UDP, Some(names), names));
    }
    mark(&mut messages, libc::NFNL_MSG_BATCH_END);
    messages
}

/// Between two such the kernel does everything at once.
fn mark(messages: &mut Messages, kind: i32) {
    let subsystem = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    messages.add(
        kind as u16,
        0,
        &[&[libc::AF_UNSPEC as u8, 0], &subsystem[..]].concat(),
        &Attributes::default(),
    );
}

fn chain() -> Attributes {
    let (hook, priority) = (libc::NF_INET_LOCAL_OUT as u32, libc::NF_IP_PRI_NAT_DST as u32);
    let hook = Attributes::default().with_number(1, hook).with_number(2, priority);
    Attributes::default().with_text(1, TABLE).with_text(3, CHAIN).with_nested(4, &hook).with_text(7, c"nat")
}

fn rule(family: &Family, protocol: i32, port: Option<u16>, to: u16) -> Attributes {
    let mut steps = Attributes::default();
    let mut step = |(name, data): (&CStr, Attributes)| {
        let step = Attributes::default().with_text(1, name).with_nested(2, &data);
        steps = std::mem::take(&mut steps).with_nested(1, &step);
    };
    step(load_protocol());
    step(compare(EQUAL, &[protocol as u8]));
    step(load(libc::NFT_PAYLOAD_NETWORK_HEADER, family.place, family.mask.len()));
    step(mask(family.mask));
    step(compare(NOT_EQUAL, family.loopback));
    if let Some(port) = port {
        step(load(libc::NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT, 2));
        step(compare(EQUAL, &port.to_be_bytes()));
    }
    step(set(&to.to_be_bytes()));
    step((c"redir", Attributes::default().with_number(1, REGISTER).with_number(3, PORT_GIVEN)));
    Attributes::default().with_text(1, TABLE).with_text(2, CHAIN).with_nested(4, &steps)
}

fn load_protocol() -> (&'static CStr, Attributes) {
    let data = Attributes::default().with_number(1, REGISTER).with_number(2, libc::NFT_META_L4PROTO as u32);
    (c"meta", data)
}

fn load(header: i32, place: u32, length: usize) -> (&'static CStr, Attributes) {
    let data = Attributes::default().with_number(1, REGISTER).with_number(2, header as u32);
    (c"payload", data.with_number(3, place).with_number(4, length as u32))
}

fn mask(mask: &[u8]) -> (&'static CStr, Attributes) {
    let data = Attributes::default().with_number(1, REGISTER).with_number(2, REGISTER);
    let data = data.with_number(3, mask.len() as u32).with_nested(4, &value(mask));
    (c"bitwise", data.with_nested(5, &value(&[0; 16][..mask.len()])))
}

fn compare(how: u32, with: &[u8]) -> (&'static CStr, Attributes) {
    let data = Attributes::default().with_number(1, REGISTER).with_number(2, how);
    (c"cmp", data.with_nested(3, &value(with)))
}

fn set(bytes: &[u8]) -> (&'static CStr, Attributes) {
    (c"immediate", Attributes::default().with_number(1, REGISTER).with_nested(2, &value(bytes)))
}

fn value(bytes: &[u8]) -> Attributes {
    Attributes::default().with(1, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds of messages, families, and what follows; every length must lead to the next.
    fn walk(mut bytes: &[u8]) -> Vec<(u16, u8, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
            let kind = u16::from_ne_bytes(bytes[4..6].try_into().unwrap());
            found.push((kind, bytes[16], bytes[20..length].to_vec()));
            bytes = &bytes[length..];
        }
        found
    }

    #[test]
    fn a_batch_has_a_table_a_chain_and_two_rules_for_each_family() {
        let told = |both| {
            let messages = walk(batch(3129, 53, both).bytes());
            messages.into_iter().map(|(kind, family, _)| (kind, family)).collect::<Vec<_>>()
        };
        let of = |family| [(0xa00, family), (0xa03, family), (0xa06, family), (0xa06, family)];
        assert_eq!(told(false), [&[(16, 0)][..], &of(2), &[(17, 0)]].concat());
        assert_eq!(told(true), [&[(16, 0)][..], &of(2), &of(10), &[(17, 0)]].concat());
    }

    #[test]
    fn a_chain_is_one_of_nat_for_what_goes_out() {
        let table = b"\x0c\0\x01\0airlock\0";
        let name = b"\x08\0\x03\0out\0";
        let hook = b"\x14\0\x04\x80\x08\0\x01\0\0\0\0\x03\x08\0\x02\0\xff\xff\xff\x9c";
        let kind = b"\x08\0\x07\0nat\0";
        assert_eq!(walk(batch(1, 2, false).bytes())[2].2, [&table[..], name, hook, kind].concat());
    }

    #[test]
    fn a_rule_leaves_loopback_alone_and_ends_with_the_redirect() {
        let rules = walk(batch(3129, 53, true).bytes());
        let has = |rule: usize, bytes: &[u8]| rules[rule].2.windows(bytes.len()).any(|at| at == bytes);
        let (tcp, udp, new_tcp) = (3, 4, 7);
        let loopback = b"\x08\0\x02\0\0\0\0\x01\x0c\0\x03\x80\x08\0\x01\0\x7f\0\0\0";
        assert!(has(tcp, loopback) && has(udp, loopback) && !has(new_tcp, loopback));
        let redirect = b"redir\0\0\0\x14\0\x02\x80\x08\0\x01\0\0\0\0\x01\x08\0\x03\0\0\0\0\x02";
        for rule in [tcp, udp, new_tcp] {
            assert!(rules[rule].2.ends_with(redirect), "{rule}");
        }
        let ends = |rule: usize, port: u16| has(rule, &[b"\x06\0\x01\0", &port.to_be_bytes()[..]].concat());
        assert!(ends(tcp, 3129) && ends(udp, 53) && !ends(tcp, 53));
    }
}
