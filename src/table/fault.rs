//! Why attempts at backends fail, as counters, metrics and logs name it.

/// Why an attempt at a backend failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamFault {
    /// The connection was refused or unreachable.
    Connect,
    /// The connection was not established in time.
    ConnectTimeout,
    /// The connection closed before the end of the response.
    Reset,
    /// The endpoint did not process the request, which may be sent again.
    Refused,
    /// The endpoint violated the protocol.
    Protocol,
    /// The response did not arrive in time.
    Timeout,
    /// There was no endpoint to send to.
    NoEndpoint,
    /// The process had no file descriptor left for a connection.
    Descriptors,
    /// The process or its host cannot open a connection for another reason.
    Local,
    /// The backend has as much as its policy permits.
    Overloaded,
}

impl UpstreamFault {
    /// Every fault, in the order of their counters.
    pub const ALL: [Self; 10] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::Reset,
        Self::Refused,
        Self::Protocol,
        Self::Timeout,
        Self::NoEndpoint,
        Self::Descriptors,
        Self::Local,
        Self::Overloaded,
    ];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Reset => "reset",
            Self::Refused => "refused",
            Self::Protocol => "protocol",
            Self::Timeout => "timeout",
            Self::NoEndpoint => "no_endpoint",
            Self::Descriptors => "descriptors",
            Self::Local => "local",
            Self::Overloaded => "overloaded",
        }
    }
}
