//! An nf_tables table that redirects every TCP connection of a network namespace to one port on
//! loopback. `nft` would build it from this, for both families; the kernel remembers the original
//! destination:
//!
//! ```text
//! table ip airlock {
//!     chain own { type filter hook output priority -300
//!         ip daddr & 255.0.0.0 == 127.0.0.0 th sport != 3129 th sport != 53 notrack
//!         meta l4proto udp th dport != 53 th sport != 53 notrack }
//!     chain out { type nat hook output priority -100
//!         limit rate over 500/second burst 2000 packets drop
//!         meta l4proto tcp ip daddr & 255.0.0.0 != 127.0.0.0 redirect to :3129
//!         meta l4proto udp ip daddr & 255.0.0.0 != 127.0.0.0 th dport 53 redirect to :53 } }
//! ```
//!
//! Connection tracking uses host memory that no cgroup counts, for up to two minutes a connection.
//! So connections of a sandbox with itself are not tracked, and the rate of others is limited.

use crate::netlink::{ACKNOWLEDGE, APPEND, Attributes, CREATE, Messages};
use std::{ffi::CStr, io};

const TABLE_NAME: &CStr = c"airlock";
/// Exempts packets from connection tracking, before it starts.
const UNTRACKED_CHAIN: &CStr = c"own";
const REDIRECT_CHAIN: &CStr = c"out";
/// New connections and DNS queries per second, and in one burst.
const MAX_NEW_PER_SECOND: u64 = 500;
const MAX_NEW_BURST: u32 = 2000;
/// Registers are the variables of a rule; one is enough.
const REGISTER: u32 = libc::NFT_REG_1 as u32;
const VERDICT: u32 = libc::NFT_REG_VERDICT as u32;
const EQUAL: u32 = libc::NFT_CMP_EQ as u32;
const NOT_EQUAL: u32 = libc::NFT_CMP_NEQ as u32;
/// Offsets in the transport header, in both protocols.
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;
/// Only the port is set: a redirect always goes to loopback.
const PORT_GIVEN: u32 = 2;

/// Where an IP header has its destination, and which destinations are loopback.
struct AddressFamily {
    number: i32,
    /// Offset in the IP header.
    offset: u32,
    mask: &'static [u8],
    loopback: &'static [u8],
}

const IPV4: AddressFamily = AddressFamily {
    number: libc::NFPROTO_IPV4,
    offset: 16,
    mask: &[255, 0, 0, 0],
    loopback: &[127, 0, 0, 0],
};
const IPV6: AddressFamily = AddressFamily {
    number: libc::NFPROTO_IPV6,
    offset: 24,
    mask: &[255; 16],
    loopback: &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
};

/// Redirects all TCP connections to a port, and DNS queries to theirs, in one transaction.
pub(crate) fn redirect_all(to: u16, dns_port: u16, ipv6: bool) -> io::Result<()> {
    batch(to, dns_port, ipv6).send(Some(rustix::net::netlink::NETFILTER))
}

fn batch(to: u16, dns_port: u16, ipv6: bool) -> Messages {
    let mut messages = Messages::default();
    mark(&mut messages, libc::NFNL_MSG_BATCH_BEGIN);
    for family in [Some(IPV4), ipv6.then_some(IPV6)].into_iter().flatten() {
        let mut add = |kind: i32, attributes: &Attributes| {
            let kind = (libc::NFNL_SUBSYS_NFTABLES << 8 | kind) as u16;
            messages.add(
                kind,
                CREATE | APPEND | ACKNOWLEDGE,
                &[family.number as u8, 0, 0, 0],
                attributes,
            );
        };
        add(
            libc::NFT_MSG_NEWTABLE,
            &Attributes::default().with_text(1, TABLE_NAME),
        );
        add(
            libc::NFT_MSG_NEWCHAIN,
            &chain(UNTRACKED_CHAIN, libc::NF_IP_PRI_RAW, c"filter"),
        );
        add(
            libc::NFT_MSG_NEWCHAIN,
            &chain(REDIRECT_CHAIN, libc::NF_IP_PRI_NAT_DST, c"nat"),
        );
        for rule in [
            untracked_loopback(&family, to, dns_port),
            untracked_datagrams(dns_port),
        ] {
            add(libc::NFT_MSG_NEWRULE, &rule.of(UNTRACKED_CHAIN));
        }
        let tcp = Rule::default()
            .protocol(libc::IPPROTO_TCP)
            .loopback(&family, NOT_EQUAL);
        let udp = Rule::default()
            .protocol(libc::IPPROTO_UDP)
            .loopback(&family, NOT_EQUAL);
        let udp = udp.port(DESTINATION_PORT, EQUAL, dns_port);
        for rule in [limit_rate(), tcp.redirect(to), udp.redirect(dns_port)] {
            add(libc::NFT_MSG_NEWRULE, &rule.of(REDIRECT_CHAIN));
        }
    }
    mark(&mut messages, libc::NFNL_MSG_BATCH_END);
    messages
}

/// The kernel applies everything between two marks in one transaction.
fn mark(messages: &mut Messages, kind: i32) {
    let subsystem = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    messages.add(
        kind as u16,
        0,
        &[&[libc::AF_UNSPEC as u8, 0], &subsystem[..]].concat(),
        &Attributes::default(),
    );
}

fn chain(name: &CStr, priority: i32, kind: &CStr) -> Attributes {
    let hook = Attributes::default().with_number(1, libc::NF_INET_LOCAL_OUT as u32);
    let hook = hook.with_number(2, priority as u32);
    Attributes::default()
        .with_text(1, TABLE_NAME)
        .with_text(3, name)
        .with_nested(4, &hook)
        .with_text(7, kind)
}

/// Replies of the listeners must be tracked: they have to come from the address that was dialled.
fn untracked_loopback(family: &AddressFamily, to: u16, dns_port: u16) -> Rule {
    let rule = Rule::default().loopback(family, EQUAL);
    rule.port(SOURCE_PORT, NOT_EQUAL, to)
        .port(SOURCE_PORT, NOT_EQUAL, dns_port)
        .notrack()
}

fn untracked_datagrams(dns_port: u16) -> Rule {
    let rule = Rule::default().protocol(libc::IPPROTO_UDP);
    rule.port(DESTINATION_PORT, NOT_EQUAL, dns_port)
        .port(SOURCE_PORT, NOT_EQUAL, dns_port)
        .notrack()
}

/// A NAT chain sees only the first packet of each connection.
fn limit_rate() -> Rule {
    let second = 1u64;
    let over = 1;
    let drop = 0;
    let limit = Attributes::default()
        .with(1, &MAX_NEW_PER_SECOND.to_be_bytes())
        .with(2, &second.to_be_bytes());
    let limit = limit.with_number(3, MAX_NEW_BURST).with_number(5, over);
    let verdict = Attributes::default().with_nested(2, &Attributes::default().with_number(1, drop));
    let drop = Attributes::default()
        .with_number(1, VERDICT)
        .with_nested(2, &verdict);
    Rule::default()
        .step(c"limit", &limit)
        .step(c"immediate", &drop)
}

/// The expressions of a rule: matches, then an action.
#[derive(Default)]
struct Rule(Attributes);

impl Rule {
    fn of(self, chain: &CStr) -> Attributes {
        Attributes::default()
            .with_text(1, TABLE_NAME)
            .with_text(2, chain)
            .with_nested(4, &self.0)
    }

    fn step(self, name: &CStr, data: &Attributes) -> Rule {
        let step = Attributes::default()
            .with_text(1, name)
            .with_nested(2, data);
        Rule(self.0.with_nested(1, &step))
    }

    fn protocol(self, protocol: i32) -> Rule {
        let key = libc::NFT_META_L4PROTO as u32;
        let data = Attributes::default()
            .with_number(1, REGISTER)
            .with_number(2, key);
        self.step(c"meta", &data).compare(EQUAL, &[protocol as u8])
    }

    /// Matches destinations on loopback, or all others.
    fn loopback(self, family: &AddressFamily, how: u32) -> Rule {
        let length = family.mask.len();
        let data = Attributes::default()
            .with_number(1, REGISTER)
            .with_number(2, REGISTER);
        let data = data
            .with_number(3, length as u32)
            .with_nested(4, &value(family.mask));
        let data = data.with_nested(5, &value(&[0; 16][..length]));
        let loaded = self.load(libc::NFT_PAYLOAD_NETWORK_HEADER, family.offset, length);
        loaded.step(c"bitwise", &data).compare(how, family.loopback)
    }

    fn port(self, offset: u32, how: u32, port: u16) -> Rule {
        self.load(libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2)
            .compare(how, &port.to_be_bytes())
    }

    fn load(self, header: i32, offset: u32, length: usize) -> Rule {
        let data = Attributes::default()
            .with_number(1, REGISTER)
            .with_number(2, header as u32);
        self.step(
            c"payload",
            &data.with_number(3, offset).with_number(4, length as u32),
        )
    }

    fn compare(self, how: u32, with: &[u8]) -> Rule {
        let data = Attributes::default()
            .with_number(1, REGISTER)
            .with_number(2, how);
        self.step(c"cmp", &data.with_nested(3, &value(with)))
    }

    fn notrack(self) -> Rule {
        self.step(c"notrack", &Attributes::default())
    }

    fn redirect(self, to: u16) -> Rule {
        let port = Attributes::default()
            .with_number(1, REGISTER)
            .with_nested(2, &value(&to.to_be_bytes()));
        let data = Attributes::default()
            .with_number(1, REGISTER)
            .with_number(3, PORT_GIVEN);
        self.step(c"immediate", &port).step(c"redir", &data)
    }
}

fn value(bytes: &[u8]) -> Attributes {
    Attributes::default().with(1, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types, families and bodies of the messages; each length must lead to the next message.
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
    fn a_batch_has_a_table_two_chains_and_five_rules_for_each_family() {
        let kinds_of = |ipv6| {
            let messages = walk(batch(3129, 53, ipv6).bytes());
            messages
                .into_iter()
                .map(|(kind, family, _)| (kind, family))
                .collect::<Vec<_>>()
        };
        let kinds = [0xa00, 0xa03, 0xa03, 0xa06, 0xa06, 0xa06, 0xa06, 0xa06];
        let of = |family| kinds.map(|kind| (kind, family));
        assert_eq!(
            kinds_of(false),
            [&[(16, 0)][..], &of(2), &[(17, 0)]].concat()
        );
        assert_eq!(
            kinds_of(true),
            [&[(16, 0)][..], &of(2), &of(10), &[(17, 0)]].concat()
        );
    }

    /// Without the flag the kernel would insert each rule before the previous one.
    #[test]
    fn rules_stay_in_their_order() {
        let bytes = batch(3129, 53, false).bytes().to_vec();
        let table = walk(&bytes)[0].2.len() + 20;
        assert_eq!(
            u16::from_ne_bytes([bytes[table + 6], bytes[table + 7]]),
            0x0c05
        );
    }

    #[test]
    fn a_chain_is_one_of_nat_for_what_goes_out() {
        let table = b"\x0c\0\x01\0airlock\0";
        let name = b"\x08\0\x03\0out\0";
        let hook = b"\x14\0\x04\x80\x08\0\x01\0\0\0\0\x03\x08\0\x02\0\xff\xff\xff\x9c";
        let kind = b"\x08\0\x07\0nat\0";
        assert_eq!(
            walk(batch(1, 2, false).bytes())[3].2,
            [&table[..], name, hook, kind].concat()
        );
    }

    #[test]
    fn a_rule_leaves_loopback_alone_and_ends_with_the_redirect() {
        let rules = walk(batch(3129, 53, true).bytes());
        let has =
            |rule: usize, bytes: &[u8]| rules[rule].2.windows(bytes.len()).any(|at| at == bytes);
        let (tcp, udp, new_tcp) = (7, 8, 15);
        let loopback = b"\x08\0\x02\0\0\0\0\x01\x0c\0\x03\x80\x08\0\x01\0\x7f\0\0\0";
        assert!(has(tcp, loopback) && has(udp, loopback) && !has(new_tcp, loopback));
        let redirect = b"redir\0\0\0\x14\0\x02\x80\x08\0\x01\0\0\0\0\x01\x08\0\x03\0\0\0\0\x02";
        for rule in [tcp, udp, new_tcp] {
            assert!(rules[rule].2.ends_with(redirect), "{rule}");
        }
        let ends = |rule: usize, port: u16| {
            has(rule, &[b"\x06\0\x01\0", &port.to_be_bytes()[..]].concat())
        };
        assert!(ends(tcp, 3129) && ends(udp, 53) && !ends(tcp, 53));
    }
}
