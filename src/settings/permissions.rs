//! What the operator permits objects to do. Parsed from flags once, and equal in all processes that
//! validate or serve the objects.

mod infrastructure;
mod names;

use std::fmt;
use std::str::FromStr;

pub use infrastructure::{AllowList, HostNetwork, InfrastructurePermissions};

use names::{name, parse};

/// What the operator permits objects to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Which kinds of objects may be backends. Default: all built-in kinds.
    pub backend_kinds: BackendKinds,
    /// Whether verification of backend certificates may be weakened. Default: no.
    pub insecure_backend: InsecureBackend,
    /// The most specific level at which a policy may weaken TLS. Default: every level.
    pub backend_tls_floor: PolicyLevel,
}

/// Kinds of backends, each as `group/version.Kind`, without `group/` for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BackendKinds {
    /// Every kind that is built in.
    #[default]
    All,
    /// These kinds only, each once. If several kinds match, the first one applies.
    Only(Vec<&'static str>),
}

/// Permitted TLS to backends without CAs. Each value includes the previous ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum InsecureBackend {
    /// CAs verify every backend.
    #[default]
    None,
    /// A pin of the key alone may verify a backend.
    PinsOnly,
    /// Verification of a backend may be skipped.
    SkipVerify,
}

/// Levels of policies by the requests that they apply to, from most to least specific.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyLevel {
    /// Requests of a route.
    #[default]
    Route,
    /// Requests of a ListenerSet.
    ListenerSet,
    /// Requests of a Gateway.
    Gateway,
    /// Requests of all Gateways in the policy's namespace to Services of other namespaces.
    Consumer,
    /// All requests to Services in the policy's namespace.
    Producer,
}

impl Permissions {
    /// Returns the equivalent flags. Omits defaults, so that images of older versions accept the
    /// flags.
    pub fn flags(&self) -> Vec<String> {
        let Self {
            backend_kinds,
            insecure_backend,
            backend_tls_floor,
        } = self;
        let default = Self::default();
        let kinds = match backend_kinds {
            BackendKinds::All => None,
            BackendKinds::Only(kinds) => Some(format!("--backend-kinds={}", kinds.join(","))),
        };
        let insecure = (*insecure_backend != default.insecure_backend)
            .then(|| format!("--allow-insecure-backend={insecure_backend}"));
        let floor = (*backend_tls_floor != default.backend_tls_floor)
            .then(|| format!("--backend-tls-floor={backend_tls_floor}"));
        kinds.into_iter().chain(insecure).chain(floor).collect()
    }
}

impl BackendKinds {
    /// Reports whether objects of a kind may be backends.
    pub fn has(&self, gvk: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(kinds) => kinds.contains(&gvk),
        }
    }
}

impl InsecureBackend {
    const NAMES: [(Self, &str); 3] = [
        (Self::None, "none"),
        (Self::PinsOnly, "pins-only"),
        (Self::SkipVerify, "skip-verify"),
    ];
}

impl PolicyLevel {
    const NAMES: [(Self, &str); 5] = [
        (Self::Route, "route"),
        (Self::ListenerSet, "listener-set"),
        (Self::Gateway, "gateway"),
        (Self::Consumer, "consumer"),
        (Self::Producer, "producer"),
    ];

    /// Names the levels that this one permits as a floor.
    pub fn permitted(self) -> String {
        let permitted = Self::NAMES.iter().filter(|(level, _)| *level >= self);
        let names: Vec<_> = permitted.map(|(_, name)| *name).collect();
        names.join(", ")
    }
}

impl FromStr for InsecureBackend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(&Self::NAMES, text)
    }
}

impl FromStr for PolicyLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(&Self::NAMES, text)
    }
}

impl fmt::Display for InsecureBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&Self::NAMES, self))
    }
}

impl fmt::Display for PolicyLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&Self::NAMES, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_displayed_values() {
        for (value, name) in InsecureBackend::NAMES {
            assert_eq!((name.parse(), value.to_string()), (Ok(value), name.into()));
        }
        for (value, name) in PolicyLevel::NAMES {
            assert_eq!((name.parse(), value.to_string()), (Ok(value), name.into()));
        }
        let error = "all".parse::<InsecureBackend>().unwrap_err();
        assert_eq!(error, "must be one of none, pins-only, skip-verify");
    }

    #[test]
    fn flags_omit_defaults() {
        assert!(Permissions::default().flags().is_empty());
        let permissions = Permissions {
            backend_kinds: BackendKinds::Only(["v1.Service", "example.com/v1.Other"].into()),
            insecure_backend: InsecureBackend::PinsOnly,
            backend_tls_floor: PolicyLevel::ListenerSet,
        };
        let expected = [
            "--backend-kinds=v1.Service,example.com/v1.Other",
            "--allow-insecure-backend=pins-only",
            "--backend-tls-floor=listener-set",
        ];
        assert_eq!(permissions.flags(), expected);
    }
}
