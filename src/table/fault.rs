//! Why attempts at backends fail, as counters, metrics and logs name it.

use crate::ir::named::named;

named! {
    /// Why an attempt at a backend failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum UpstreamFault {
        /// The connection was refused or unreachable.
        Connect = "connect",
        /// The connection was not established in time.
        ConnectTimeout = "connect_timeout",
        /// The connection closed before the end of the response.
        Reset = "reset",
        /// The endpoint did not process the request, which may be sent again.
        Refused = "refused",
        /// The endpoint violated the protocol.
        Protocol = "protocol",
        /// The response did not arrive in time.
        Timeout = "timeout",
        /// There was no endpoint to send to.
        NoEndpoint = "no_endpoint",
        /// The process had no file descriptor left for a connection.
        Descriptors = "descriptors",
        /// The process or its host cannot open a connection for another reason.
        Local = "local",
        /// The backend has as much as its policy permits.
        Overloaded = "overloaded",
    }
}
