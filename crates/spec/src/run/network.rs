//! The network mode of a sandbox.

use std::str::FromStr;

/// The network mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Only the loopback interface.
    None,
    /// Only the loopback interface, with the granted doors on it.
    Doors,
    /// Only the loopback interface; any program reaches every public host through the egress door.
    Open,
    /// The network of the host.
    Host,
}

impl Network {
    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Doors => "doors",
            Network::Open => "open",
            Network::Host => "host",
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Network::None, Network::Doors, Network::Open, Network::Host];
        let found = all.into_iter().find(|network| network.name() == text);
        found.ok_or_else(|| {
            format!(
                "no network mode is called `{}`; there are none, doors, open, host",
                text.escape_debug()
            )
        })
    }
}
