//! What findings are about, and how bad each kind is.

use serde::{Serialize, Serializer};

use super::severity::Severity;
use crate::ir::named::named;

named! {
    /// What a finding is about, with its name in documents and metrics. Those with the most effect on requests come first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Kind {
        /// No controller sends changes, or the API server does not respond.
        Controller = "controller",
        /// A port is not bound.
        Port = "port",
        /// There is too little of something.
        Overload = "overload",
        /// A certificate has expired.
        Expired = "expired",
        /// A certificate is not valid yet.
        NotYetValid = "notYetValid",
        /// No certificate of a listener is for its hostname.
        Hostname = "hostname",
        /// TLS handshakes of clients fail.
        Clients = "clients",
        /// Browsers cannot sign in or out.
        SignIn = "signIn",
        /// A backend has no endpoint.
        Backend = "backend",
        /// Requests of a route fail.
        Route = "route",
        /// Requests of an endpoint fail.
        Failing = "failing",
        /// An endpoint gets no requests.
        Endpoint = "endpoint",
        /// A backend is slower than it was.
        Slow = "slow",
        /// A pod that shares limits does not respond.
        Peer = "peer",
        /// Many requests are over a limit of a policy.
        Limit = "limit",
        /// A file or an object cannot be read.
        File = "file",
        /// An object is not accepted, or only in part.
        Object = "object",
        /// A policy protects less than its author may expect.
        Policy = "policy",
        /// A rule or a match gets no request.
        Shadowed = "shadowed",
        /// Spans or records for a collector are lost.
        Telemetry = "telemetry",
        /// A certificate expires soon.
        Expires = "expires",
        /// Another remark on an object.
        Note = "note",
    }
}

impl Kind {
    /// How bad a finding of this kind is, unless it says something else.
    pub fn severity(self) -> Severity {
        match self {
            Self::Port
            | Self::Overload
            | Self::Expired
            | Self::NotYetValid
            | Self::Hostname
            | Self::Clients
            | Self::SignIn
            | Self::Backend
            | Self::Route
            | Self::Failing
            | Self::File
            | Self::Object
            | Self::Note => Severity::Error,
            Self::Controller
            | Self::Endpoint
            | Self::Slow
            | Self::Peer
            | Self::Limit
            | Self::Policy
            | Self::Shadowed
            | Self::Telemetry
            | Self::Expires => Severity::Warning,
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kinds that a table or an object of a file has, in their order.
    fn listed<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let known = |name: &&str| Kind::ALL.iter().any(|kind| kind.name() == *name);
        lines.filter(known).collect()
    }

    #[test]
    fn page_and_documentation_have_every_kind() {
        let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let document = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
        let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
        let rows = rows.filter_map(|row| row.split('`').next());
        assert_eq!(listed(rows), names);
        for kind in Kind::ALL {
            let row = format!("| `{}` | {}", kind.name(), kind.severity());
            assert!(document.contains(&row), "{row}");
        }
        let views = include_str!("../admin/page/views.js");
        let (_, kinds) = views.split_once("const KINDS = {").unwrap();
        let (kinds, _) = kinds.split_once("};").unwrap();
        let keys = kinds
            .split([' ', '\n'])
            .filter_map(|it| it.strip_suffix(':'));
        assert_eq!(keys.collect::<Vec<_>>(), names);
    }
}
