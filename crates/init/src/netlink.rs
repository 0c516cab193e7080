//! Netlink requests: messages with attributes, encoded by hand. The kernel handles a message before
//! the send returns, so replies are there without waiting.

use rustix::{
    io::Errno,
    net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType},
};
use std::io;

pub(crate) const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
/// Appends a rule behind the existing ones instead of before them.
pub(crate) const APPEND: u16 = libc::NLM_F_APPEND as u16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const NESTED: u16 = libc::NLA_F_NESTED as u16;
/// Length, type, flags, sequence number, port id.
const HEADER: usize = 16;
/// More than the replies to all of our messages together.
const MAX_REPLY_BYTES: usize = 8 << 10;

/// The attributes of a message, or of another attribute.
#[derive(Clone, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Attributes {
        self.0.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A number in network byte order, as nf_tables wants it.
    pub(crate) fn with_number(self, kind: u16, number: u32) -> Attributes {
        self.with(kind, &number.to_be_bytes())
    }

    /// A text with its NUL.
    pub(crate) fn with_text(self, kind: u16, text: &std::ffi::CStr) -> Attributes {
        self.with(kind, text.to_bytes_with_nul())
    }

    pub(crate) fn with_nested(self, kind: u16, inner: &Attributes) -> Attributes {
        self.with(kind | NESTED, &inner.0)
    }
}

/// Messages that are sent together.
#[derive(Default)]
pub(crate) struct Messages {
    bytes: Vec<u8>,
    /// How many of them request an acknowledgement.
    expected_acks: usize,
}

impl Messages {
    /// Adds a message: its kind, flags, fixed part and attributes.
    pub(crate) fn add(&mut self, kind: u16, flags: u16, fixed: &[u8], attributes: &Attributes) {
        let length = HEADER + fixed.len() + attributes.0.len();
        self.bytes.extend((length as u32).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes
            .extend((flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        // No sequence number and no port id: no other reply comes to this socket.
        self.bytes.extend([0; 8]);
        self.bytes.extend(fixed);
        self.bytes.extend(&attributes.0);
        self.expected_acks += usize::from(flags & ACKNOWLEDGE != 0);
    }

    /// Sends the messages to the kernel. The first error is returned; a missing acknowledgement is
    /// an error, too.
    pub(crate) fn send(&self, to: Option<Protocol>) -> io::Result<()> {
        let kind = SocketType::RAW;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, to)?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty())?;
        let (mut answer, mut acknowledged) = ([0; MAX_REPLY_BYTES], 0);
        loop {
            let (_, length) = match rustix::net::recv(&socket, &mut answer, RecvFlags::DONTWAIT) {
                Err(Errno::WOULDBLOCK) => break,
                other => other?,
            };
            acknowledged += acknowledgements(&answer[..length.min(MAX_REPLY_BYTES)])?;
        }
        if acknowledged >= self.expected_acks {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// The number of acknowledged messages, or the first error.
fn acknowledgements(mut answer: &[u8]) -> io::Result<usize> {
    let mut count = 0;
    while let Some((header, rest)) = answer.split_at_checked(HEADER) {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        if let (ERROR, [a, b, c, d, ..]) = (kind, rest) {
            match i32::from_ne_bytes([*a, *b, *c, *d]) {
                0 => count += 1,
                error => return Err(io::Error::from_raw_os_error(error.saturating_neg())),
            }
        }
        answer = answer
            .get(length.max(HEADER).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    Ok(count)
}

#[cfg(test)]
impl Messages {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// For a little-endian machine; no other is built for.
    #[test]
    fn a_message_is_laid_out_as_the_kernel_reads_it() {
        let inner = Attributes::default().with_number(2, 53);
        let attributes = Attributes::default()
            .with_text(1, c"ab")
            .with_nested(4, &inner);
        let mut messages = Messages::default();
        messages.add(24, ACKNOWLEDGE | CREATE, &[7, 8, 9, 10], &attributes);
        let header = [40, 0, 0, 0, 24, 0, 0x05, 0x04, 0, 0, 0, 0, 0, 0, 0, 0];
        let text = [7, 0, 1, 0, b'a', b'b', 0, 0];
        let nested = [12, 0, 4, 0x80, 8, 0, 2, 0, 0, 0, 0, 53];
        assert_eq!(
            messages.bytes,
            [&header[..], &[7, 8, 9, 10], &text, &nested].concat()
        );
        assert_eq!(messages.expected_acks, 1);
    }

    fn answer(error: i32) -> Vec<u8> {
        let header = [36u32.to_ne_bytes(), [2, 0, 0, 0], [0; 4], [0; 4]].concat();
        [&header[..], &error.to_ne_bytes(), &[0; 16]].concat()
    }

    #[test]
    fn the_first_error_counts() {
        assert_eq!(
            acknowledgements(&[answer(0), answer(0)].concat()).unwrap(),
            2
        );
        let refused = acknowledgements(&[answer(0), answer(-95), answer(-1)].concat());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(95));
        assert_eq!(acknowledgements(&answer(0)[..18]).unwrap(), 0);
    }

    proptest! {
        #[test]
        fn no_answer_makes_us_panic_or_wait(bytes: Vec<u8>) {
            _ = acknowledgements(&bytes);
        }
    }
}
