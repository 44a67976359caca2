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

/// A Service.
#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    /// Whether it is of type ExternalName: a name in DNS, without endpoints.
    pub(super) is_external: bool,
    pub(super) ports: Vec<ServicePort>,
}

impl Service {
    /// Resolves a port as ingress-nginx does: by number, target port or name.
    fn port(&self, port: &Port) -> Option<u16> {
        if self.is_external {
            return None;
        }
        let text = port.to_string();
        let fits = |it: &&ServicePort| {
            it.number.to_string() == text
                || it.target.as_deref() == Some(text.as_str())
                || it.name.as_deref() == Some(text.as_str())
        };
        Some(self.ports.iter().find(fits)?.number)
    }
}

/// A port that a Service declares.
#[derive(Clone, Debug)]
pub(super) struct ServicePort {
    pub(super) name: Option<String>,
    pub(super) number: u16,
    /// Number or name of the port of the pods; `None` if that has the same number.
    pub(super) target: Option<String>,
    pub(super) app_protocol: Option<String>,
}

/// All that is read.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Ingresses of the class: the oldest first, then by namespace and name.
    pub(super) ingresses: Vec<Ingress>,
    /// Ingresses of other classes, with the class; `None` without one.
    pub(super) left: Vec<(Name, Option<String>)>,
    pub(super) services: BTreeMap<Name, Service>,
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

    /// Returns a Service, if it is in the input.
    pub(super) fn service(&self, namespace: &str, service: &str) -> Option<&Service> {
        self.services.get(&Name::new(namespace, service))
    }

    /// Resolves a port of a Service. A number is taken to be right if the Service is not in the input.
    pub(super) fn port(&self, namespace: &str, service: &str, port: &Port) -> Option<u16> {
        match (self.service(namespace, service), port) {
            (Some(service), port) => service.port(port),
            (None, Port::Number(number)) => Some(*number),
            (None, Port::Name(_)) => None,
        }
    }

    /// Returns the declaration of a port, if the Service is in the input.
    pub(super) fn declared(
        &self,
        namespace: &str,
        service: &str,
        port: u16,
    ) -> Option<&ServicePort> {
        let service = self.service(namespace, service)?;
        service.ports.iter().find(|it| it.number == port)
    }
}
