//! The protocols of listeners.

use crate::ir::Transport;

/// A listener's `protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum Protocol {
    Http,
    Https,
    Tls,
    Tcp,
    Udp,
    /// A domain-prefixed protocol, or a misspelt one.
    Other,
}

impl Protocol {
    pub(in crate::translate) fn new(name: &str) -> Self {
        match name {
            "HTTP" => Self::Http,
            "HTTPS" => Self::Https,
            "TLS" => Self::Tls,
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            _ => Self::Other,
        }
    }

    /// Returns the transport of its port.
    pub(in crate::translate) fn transport(self) -> Transport {
        match self {
            Self::Http | Self::Https | Self::Tls | Self::Tcp | Self::Other => Transport::Tcp,
            Self::Udp => Transport::Udp,
        }
    }
}
