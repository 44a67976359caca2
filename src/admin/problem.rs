//! A problem as the admin server shows it: how bad it is, what is wrong, with which object, and of which kind that is.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::api::Severity;
use crate::ir::ObjectRef;
use crate::ir::named::named;
use crate::provider::FileLocation;
use crate::provider::file::FoundObjects;

/// Something that has to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where it is.
    #[serde(rename = "in")]
    pub(super) place: ProblemSource,
    /// How bad it is: an error or a warning.
    pub(super) severity: Severity,
    /// What it is about.
    pub(super) kind: Kind,
    /// The object, as far as its name is known, or else the file.
    pub(super) object: String,
    /// What is wrong, and the effect.
    pub(super) message: String,
    /// Since when it is known, in whole seconds; `None` before that is looked up.
    pub(super) since: Option<Timestamp>,
    /// The object that needs a change, if it may be in a file.
    #[serde(skip)]
    pub(super) subject: Option<ObjectRef>,
    /// Whether another problem may be its cause.
    #[serde(skip)]
    pub(super) symptom: Option<Symptom>,
    /// Where it is in a file, or else its object.
    #[serde(flatten)]
    pub(super) location: Option<FileLocation>,
}

/// Where a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ProblemSource {
    /// In what happens now.
    Service,
    /// In the objects.
    Configuration,
}

named! {
    /// What a problem is about, with its name in documents and metrics. Those with the most effect on requests come first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Kind {
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
    /// How bad a problem of this kind is, unless it says something else.
    pub(super) fn severity(self) -> Severity {
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

/// What is known about failures that may have their cause in another problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symptom {
    /// The objects in which the cause may be.
    pub(super) objects: Vec<ObjectRef>,
    /// Texts that name the object in which the cause may be.
    pub(super) faults: Vec<String>,
    /// Whether most of the failed responses are those of the backends themselves.
    pub(super) is_of_backend: bool,
    /// What to do if no other problem is the cause.
    pub(super) remedy: &'static str,
}

impl Problem {
    /// Creates a problem of what happens now.
    pub(super) fn of_service(kind: Kind, object: String, message: String) -> Self {
        Self {
            place: ProblemSource::Service,
            severity: kind.severity(),
            kind,
            object,
            message,
            since: None,
            subject: None,
            symptom: None,
            location: None,
        }
    }

    /// Creates a problem of a file, or of an object that cannot be read.
    pub fn of_file(
        severity: Severity,
        object: String,
        message: String,
        location: Option<FileLocation>,
    ) -> Self {
        Self {
            place: ProblemSource::Configuration,
            severity,
            location,
            ..Self::of_service(Kind::File, object, message)
        }
    }

    /// Creates a problem of an object.
    pub(super) fn of_configuration(kind: Kind, object: &ObjectRef, message: String) -> Self {
        Self {
            place: ProblemSource::Configuration,
            subject: Some(object.clone()),
            ..Self::of_service(kind, object.to_string(), message)
        }
    }

    /// Says how bad it is.
    pub(super) fn of_severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    /// Says which object may need a change.
    pub(super) fn about(self, subject: &ObjectRef) -> Self {
        let subject = Some(subject.clone());
        Self { subject, ..self }
    }

    /// Adds the location of the object.
    pub(super) fn locate(&mut self, found: &FoundObjects) {
        let subject = self.subject.as_ref();
        if let Some(location) = subject.and_then(|it| found.of(it)) {
            self.location = Some(location.clone());
        }
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
        let views = include_str!("page/views.js");
        let (_, kinds) = views.split_once("const KINDS = {").unwrap();
        let (kinds, _) = kinds.split_once("};").unwrap();
        let keys = kinds
            .split([' ', '\n'])
            .filter_map(|it| it.strip_suffix(':'));
        assert_eq!(keys.collect::<Vec<_>>(), names);
    }
}
