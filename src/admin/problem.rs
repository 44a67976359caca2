//! A problem as the admin server shows it: what is wrong, with which object, and of which kind that is.

use serde::Serialize;

use crate::ir::ObjectRef;
use crate::provider::FileLocation;
use crate::provider::file::FoundObjects;

/// Something that has to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where it is.
    #[serde(rename = "in")]
    pub(super) place: Place,
    /// What it is about.
    pub(super) kind: Kind,
    /// The object, as far as its name is known, or else the file.
    pub(super) object: String,
    /// What is wrong, and the effect.
    pub(super) message: String,
    /// The object that needs a change, if it may be in a file.
    #[serde(skip)]
    pub(super) subject: Option<ObjectRef>,
    /// Where it is in a file, or else its object.
    #[serde(flatten)]
    pub(super) location: Option<FileLocation>,
}

/// Where a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Place {
    /// In what happens now.
    Service,
    /// In the objects.
    Configuration,
}

/// What a problem is about. Those with the most effect on requests come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Kind {
    /// No controller sends changes.
    Controller,
    /// A port is not bound.
    Port,
    /// There is too little of something.
    Overload,
    /// A certificate has expired.
    Expired,
    /// A certificate is not valid yet.
    NotYetValid,
    /// No certificate of a listener is for its hostname.
    Hostname,
    /// Browsers cannot sign in or out.
    SignIn,
    /// A backend has no endpoint.
    Backend,
    /// Requests of a route fail.
    Route,
    /// Requests of an endpoint fail.
    Failing,
    /// An endpoint gets no requests.
    Endpoint,
    /// A file or an object cannot be read.
    File,
    /// An object is not accepted, or only in part.
    Object,
    /// A policy protects less than its author may expect.
    Policy,
    /// A rule or a match gets no request.
    Shadowed,
    /// A certificate expires soon.
    Expires,
    /// Another remark on an object.
    Note,
}

impl Problem {
    /// Creates a problem of what happens now.
    pub(super) fn of_service(kind: Kind, object: String, message: String) -> Self {
        Self {
            place: Place::Service,
            kind,
            object,
            message,
            subject: None,
            location: None,
        }
    }

    /// Creates a problem of a file, or of an object that cannot be read.
    pub fn of_file(object: String, message: String, location: Option<FileLocation>) -> Self {
        Self {
            place: Place::Configuration,
            location,
            ..Self::of_service(Kind::File, object, message)
        }
    }

    /// Creates a problem of an object.
    pub(super) fn of_configuration(kind: Kind, object: &ObjectRef, message: String) -> Self {
        Self {
            place: Place::Configuration,
            subject: Some(object.clone()),
            ..Self::of_service(kind, object.to_string(), message)
        }
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
