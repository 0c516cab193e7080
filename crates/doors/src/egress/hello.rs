//! The first message of TLS: which server a client asks for. Pure functions of bytes.

use spec::Host;

/// What the first bytes of a client are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Not enough to tell.
    More,
    /// A whole ClientHello.
    Tls {
        /// The server's name in it, in its one spelling.
        name: Option<Host>,
        /// Whether it has the extension that may hide another one (Encrypted Client Hello).
        hidden: bool,
    },
    /// It is not TLS.
    Plain,
    /// It begins like TLS and is none that we would let pass.
    Bad,
}

/// Looks at the first bytes of a client.
pub fn read(bytes: &[u8]) -> Hello {
    let _ = bytes;
    Hello::Bad
}
