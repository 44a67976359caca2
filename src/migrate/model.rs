//! What a migration reads: Ingresses, Services and the settings of the controller, as plain values.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

pub(super) use crate::api::annotation::INGRESS_NGINX as PREFIX;

/// Namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Name {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Parses `namespace/name`, or a name in `namespace`.
    pub(super) fn parse(text: &str, namespace: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Self::new(namespace, text),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An Ingress.
#[derive(Clone, Debug)]
pub(super) struct Ingress {
    pub(super) name: Name,
    /// Time of creation as text, which orders as the time does; empty means oldest.
    pub(super) created: String,
    /// Annotations of ingress-nginx, without their prefix.
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) tls: Vec<Tls>,
    pub(super) default_backend: Option<Backend>,
    pub(super) rules: Vec<HostRule>,
}

/// A certificate of hosts.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) hosts: Vec<String>,
    pub(super) secret: Option<String>,
}

/// The paths of a host, which is empty for all hosts.
#[derive(Clone, Debug)]
pub(super) struct HostRule {
    pub(super) host: String,
    pub(super) paths: Vec<PathRule>,
}

/// A path, and its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathRule {
    pub(super) path: String,
    pub(super) kind: PathKind,
    pub(super) backend: Backend,
}

/// The type of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathKind {
    Exact,
    Prefix,
    ImplementationSpecific,
}

/// A backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Service {
        name: String,
        port: Port,
    },
    /// Another object, by kind and name.
    Resource(String),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Port {
    Number(u16),
    Name(String),
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A port that a Service declares.
#[derive(Clone, Debug)]
pub(super) struct ServicePort {
    pub(super) name: Option<String>,
    pub(super) number: u16,
    pub(super) app_protocol: Option<String>,
}

/// All that is read.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Ingresses of the class: the oldest first, then by namespace and name.
    pub(super) ingresses: Vec<Ingress>,
    /// Ingresses of other classes, with the class; `None` without one.
    pub(super) left: Vec<(Name, Option<String>)>,
    pub(super) services: BTreeMap<Name, Vec<ServicePort>>,
    pub(super) config_maps: BTreeMap<Name, BTreeMap<String, String>>,
    /// Lines of htpasswd files, by Secret.
    pub(super) passwords: BTreeMap<Name, Option<String>>,
    /// Number of objects of other kinds.
    pub(super) others: usize,
}

impl Source {
    /// Returns the Ingresses in the order in which they count for ingress-nginx: the oldest first, and of the same second the
    /// last by namespace and name.
    pub(super) fn by_precedence(&self) -> Vec<&Ingress> {
        let mut ingresses: Vec<&Ingress> = self.ingresses.iter().collect();
        ingresses.sort_by_cached_key(|it| (it.created.clone(), Reverse(it.name.to_string())));
        ingresses
    }

    /// Resolves a port of a Service.
    pub(super) fn port(&self, namespace: &str, service: &str, port: &Port) -> Option<u16> {
        match port {
            Port::Number(number) => Some(*number),
            Port::Name(name) => {
                let ports = self.services.get(&Name::new(namespace, service))?;
                let named = |it: &&ServicePort| it.name.as_deref() == Some(name);
                Some(ports.iter().find(named)?.number)
            }
        }
    }

    /// Returns the declaration of a port, if the Service is in the input.
    pub(super) fn declared(
        &self,
        namespace: &str,
        service: &str,
        port: u16,
    ) -> Option<&ServicePort> {
        let ports = self.services.get(&Name::new(namespace, service))?;
        ports.iter().find(|it| it.number == port)
    }
}
