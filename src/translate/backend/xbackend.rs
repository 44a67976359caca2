//! XBackends as backends: a DNS name, its protocol, and TLS settings (GEP-4894). Keeps parsed objects from one
//! translation to the next. Does not resolve names.

use std::sync::Arc;

use crate::api::backend_tls_policy::BackendTlsValidation;
use crate::api::core::{ConfigMap, Secret};
use crate::api::xbackend::{XBackend, XBackendTls};
use crate::api::{Object, Resource};
use crate::ir::sharing::Text;
use crate::ir::{
    Backend, BackendId, Certificate, ClientTls, Endpoints, ObjectRef, UpstreamProtocol,
};
use crate::status::Condition;

use super::super::gateway::certificate;
use super::super::input::Input;
use super::super::policy::backend_tls;
use super::super::policy::backend_tls::TlsSettings;
use super::super::reason::{ConditionType, Fault, Reason, judge, merge};
use super::kind::{
    BackendKind, Carried, Found, KindName, Kinds, PortRef, Resolver, Sources, name_of,
};
use super::port::{Port, PortTls, own_use};
use crate::translate::changes::Changes;
use crate::translate::links::Collector;
use crate::translate::memo::{Memo, Replaced};
use crate::translate::served::LastGood;
use crate::translate::source::Source;
use crate::translate::unknown_field;

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "gateway.networking.x-k8s.io/v1alpha1.XBackend",
    name: name_of::<XBackend>(),
    reads: &[name_of::<ConfigMap>(), name_of::<Secret>()],
    endpoint_label: None,
    is_local: true,
    carries: Carried::Connections,
    target_ports: None,
    load_balancer: None,
    has_status: true,
    links,
    resolver: || Box::new(XBackends::default()),
};

/// The domain of the Services of a cluster, which are not external hosts.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// The `tls.mode` that presents a client certificate.
const WITH_CLIENT: &str = "ClientAndServer";

/// The parsed XBackends of a snapshot.
#[derive(Default)]
struct XBackends {
    parsed: Memo<External>,
    last_good: LastGood,
}

/// A parsed XBackend.
#[derive(PartialEq, Eq)]
struct External {
    generation: i64,
    hostname: Arc<str>,
    port: u16,
    protocol: UpstreamProtocol,
    /// The declared protocol, for messages, if gRPC cannot be sent there.
    refuses_grpc: Option<Text>,
    /// Why nothing can be sent there: the protocol is not known.
    unsupported: Option<Fault>,
    /// TLS, plain text, or why no request may be sent, which makes `Accepted` false.
    tls: Result<Option<Arc<ClientTls>>, Fault>,
    /// Makes `ResolvedRefs` false.
    unresolved: Option<Fault>,
}

/// Collects the links, including the client certificate: the author of an XBackend decides which certificate is
/// presented.
fn links(object: &Object, _: Kinds, collector: &mut Collector<'_>) {
    let Object::XBackend(backend) = object else {
        return;
    };
    let Some(tls) = &backend.spec.tls else {
        return;
    };
    let client = tls.client_certificate_ref.as_ref();
    if let Some(client) = client.filter(|_| tls.mode == WITH_CLIENT) {
        collector.certificate(client);
    }
    if let Some(validation) = &tls.validation {
        collector.config_maps(validation);
    }
}

impl Resolver for XBackends {
    fn step(&mut self, _: KindName, sources: &Sources<'_, '_>, changes: &mut Changes) {
        let input = sources.input;
        self.last_good
            .step(|name| input.served.of_client(name), changes);
        let mut names = self.parsed.outdated(changes);
        names.extend(changes.of::<XBackend>());
        for name in names {
            let last_good = &mut self.last_good;
            let computed = input.reading(|| {
                let object = input.find::<XBackend>(&name)?;
                Some(External::read(input, object, last_good))
            });
            let Replaced { previous, unread } = self.parsed.replace(&name, computed);
            for source in unread {
                if let Source::ServedCertificate(secret) = source {
                    self.last_good.remove(&secret);
                }
            }
            if previous.as_ref() != self.parsed.get(&name) {
                changes.announce(Source::Backend(name));
            }
        }
    }

    fn resolve(
        &self,
        sources: &Sources<'_, '_>,
        name: &ObjectRef,
        port: PortRef,
    ) -> Result<Found, Fault> {
        let found = self.parsed.get(name);
        let external = found.ok_or_else(|| sources.absent(name))?;
        if let Some(wanted) = port.number.filter(|port| *port != external.port) {
            let message = format!(
                "has spec.port.port {}, not {wanted}; name that port in the reference, or none",
                external.port
            );
            return Err(Fault::new(Reason::BackendNotFound, message));
        }
        if let Some(fault) = &external.unsupported {
            return Err(fault.clone());
        }
        let tls = external.tls.as_ref().ok().cloned().flatten();
        let id = BackendId {
            tls: tls.is_some().then(|| own_use(name)),
            ..BackendId::new(name.clone(), external.port)
        };
        let endpoints = Endpoints::Hostname {
            hostname: external.hostname.clone(),
            port: external.port,
        };
        Ok(Found {
            backend: Backend {
                tls,
                ..Backend::new(id, external.protocol, endpoints)
            },
            port: Port {
                zoned: None,
                name: None,
                protocol: external.protocol,
                refuses_grpc: external.refuses_grpc.clone(),
                tls: PortTls::Own(external.own_tls()),
            },
        })
    }

    fn conditions(&self, name: &ObjectRef) -> Option<Vec<Condition>> {
        self.parsed.get(name).map(External::conditions)
    }
}

impl External {
    fn read(input: &Input<'_>, object: &XBackend, last_good: &mut LastGood) -> Self {
        let spec = &object.spec;
        let hostname = spec.external_hostname.as_ref();
        let hostname = hostname.map_or("", |it| it.hostname.as_str());
        let stated = spec.protocol.as_deref();
        let stated = stated.filter(|name| ["HTTP11", "MCP"].contains(name));
        let (protocol, unsupported) = match protocol(spec.protocol.as_deref()) {
            Ok(protocol) => (protocol, None),
            Err(fault) => (UpstreamProtocol::Http1, Some(fault)),
        };
        let mut reader = Reader {
            input,
            object,
            hostname,
            unresolved: Vec::new(),
            last_good,
        };
        let tls = match (&spec.tls, check(object)) {
            (_, Err(fault)) => Err(fault),
            (None, Ok(())) => Ok(None),
            (Some(tls), Ok(())) => reader.tls(tls, protocol),
        };
        Self {
            generation: object.metadata.generation,
            hostname: hostname.into(),
            port: spec.port.port,
            protocol,
            refuses_grpc: stated.map(|name| format!("spec.protocol {name}").into()),
            unsupported,
            tls: tls.map(|tls| tls.map(Arc::new)),
            unresolved: merge(&reader.unresolved),
        }
    }

    fn own_tls(&self) -> Result<Option<Arc<ClientTls>>, Text> {
        let refused = |fault: &Fault| {
            let message = format!("{}; requests are refused rather than sent", fault.message);
            message.into()
        };
        self.tls.as_ref().map_err(refused).cloned()
    }

    fn conditions(&self) -> Vec<Condition> {
        let condition = |kind, good, fault| judge(kind, good, fault, self.generation);
        let fault = self.tls.as_ref().err();
        let unresolved = self.unresolved.as_ref();
        let mut conditions = vec![
            condition(ConditionType::Accepted, Reason::Accepted, fault),
            condition(
                ConditionType::ResolvedRefs,
                Reason::ResolvedRefs,
                unresolved,
            ),
        ];
        if self.tls == Ok(None) && self.unsupported.is_none() {
            let kind = ConditionType::PlaintextToBackend;
            let condition = Condition::holds(kind, Reason::ModeNone, self.generation);
            conditions.push(condition.with_message(
                "spec.tls.mode is None, or there is no spec.tls: requests go out in plain text",
            ));
        }
        conditions
    }
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Reason::Invalid, message)
}

/// Returns the protocol of an XBackend. `MCP` is HTTP, and its requests are not inspected.
fn protocol(name: Option<&str>) -> Result<UpstreamProtocol, Fault> {
    match name.unwrap_or_default() {
        "" | "HTTP" | "HTTP11" | "MCP" => Ok(UpstreamProtocol::Http1),
        "HTTP2" | "H2C" => Ok(UpstreamProtocol::H2c),
        "TCP" => Ok(UpstreamProtocol::Tcp),
        other => {
            let message = format!(
                "has spec.protocol {other:?}; it has to be HTTP, HTTP11, HTTP2, H2C, MCP or TCP"
            );
            Err(Fault::new(Reason::UnsupportedProtocol, message))
        }
    }
}

/// Checks that an XBackend has a hostname outside the cluster.
fn check(object: &XBackend) -> Result<(), Fault> {
    let spec = &object.spec;
    if let Some(fault) = unknown_field::of_part(object, "spec") {
        return Err(invalid(fault.message));
    }
    if spec.kind != "ExternalHostname" {
        return Err(invalid(format!(
            "spec.type is {:?}; it has to be ExternalHostname",
            spec.kind
        )));
    }
    let field = "spec.externalHostname.hostname";
    let Some(host) = &spec.external_hostname else {
        return Err(invalid(format!("{field} is missing")));
    };
    let hostname = host.hostname.as_str();
    let last = hostname.rsplit('.').next().unwrap_or_default();
    // Some resolvers parse a name that ends with a number as an IP address.
    let is_address = last.bytes().all(|byte| byte.is_ascii_digit());
    if is_address || !backend_tls::is_dns_name(hostname) || !hostname.contains('.') {
        return Err(invalid(format!(
            "{field} {hostname:?} is not a fully qualified DNS name such as api.example.com"
        )));
    }
    let prefix = hostname.strip_suffix(CLUSTER_DOMAIN);
    if prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.')) {
        return Err(invalid(format!(
            "{field} {hostname:?} is in {CLUSTER_DOMAIN}, the domain of the cluster; refer to the Service in backendRefs"
        )));
    }
    if spec.port.port == 0 {
        return Err(invalid("spec.port.port is 0; it has to be from 1 to 65535"));
    }
    Ok(())
}

/// Parses the TLS settings of one XBackend.
struct Reader<'a> {
    input: &'a Input<'a>,
    object: &'a XBackend,
    hostname: &'a str,
    unresolved: Vec<Fault>,
    last_good: &'a mut LastGood,
}

impl Reader<'_> {
    fn tls(
        &mut self,
        tls: &XBackendTls,
        protocol: UpstreamProtocol,
    ) -> Result<Option<ClientTls>, Fault> {
        let client = match tls.mode.as_str() {
            "None" => return Ok(None),
            "ServerOnly" => None,
            WITH_CLIENT => Some(self.client(tls)),
            other => {
                return Err(invalid(format!(
                    "spec.tls.mode is {other:?}; it has to be None, ServerOnly or ClientAndServer"
                )));
            }
        };
        let settings = self.settings(tls)?;
        Ok(Some(settings.with(protocol, client.transpose()?)))
    }

    /// Returns the TLS settings. By default, a system authority must have issued the certificate for the hostname.
    fn settings(&mut self, tls: &XBackendTls) -> Result<TlsSettings, Fault> {
        let default = BackendTlsValidation {
            hostname: self.hostname.to_owned(),
            well_known_ca_certificates: Some("System".to_owned()),
            ..BackendTlsValidation::default()
        };
        let validation = tls.validation.as_ref().unwrap_or(&default);
        let namespace = &self.object.metadata.namespace;
        let validation = (validation, "spec.tls.validation");
        backend_tls::validated(self.input, namespace, validation, &mut self.unresolved)
    }

    /// Returns the client certificate of the XBackend, which takes precedence over that of the Gateway.
    fn client(&mut self, tls: &XBackendTls) -> Result<Arc<Certificate>, Fault> {
        let field = "spec.tls.clientCertificateRef";
        let Some(reference) = &tls.client_certificate_ref else {
            return Err(invalid(format!(
                "{field} is missing, which spec.tls.mode ClientAndServer needs"
            )));
        };
        let origin = self.object.object_ref();
        let (certificate, problem) =
            certificate::client(self.input, &origin, reference, field, self.last_good);
        self.unresolved.extend(problem);
        certificate.map_err(|fault| invalid(fault.message))
    }
}
