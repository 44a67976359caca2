//! A warning about configuration that is valid. Must not know what is wrong with it.

use std::fmt;

use crate::ir::ObjectRef;

/// What a warning is about. Those with the most effect on requests come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WarningKind {
    /// No request of a rule is forwarded.
    Unforwarded,
    /// Clients refuse the certificates of a listener.
    Hostname,
    /// Browsers cannot sign in or out.
    SignIn,
    /// A policy protects less than its author may expect.
    Policy,
    /// A rule, or a match of it, gets no request.
    Shadowed,
}

impl WarningKind {
    /// Returns what to do; `None` if messages say it.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Unforwarded => "name a backendRef with a weight above 0",
            Self::SignIn => "correct the path, or add a rule for it",
            Self::Shadowed => "remove it, or narrow the match that comes first",
            Self::Hostname | Self::Policy => return None,
        })
    }
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Warning {
    /// What it is about.
    pub kind: WarningKind,
    /// The object that needs a change.
    pub object: ObjectRef,
    /// What is wrong, and the effect.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.message)
    }
}
