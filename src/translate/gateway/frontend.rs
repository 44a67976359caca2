//! Validation of client certificates (`spec.tls.frontend` of a Gateway) for its HTTPS listeners and those of its
//! ListenerSets, by port. Fails closed: a listener whose validation has no usable CA certificate is not served.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::core::{ConfigMap, Secret};
use crate::api::gateway::{FrontendTls, FrontendValidation, TlsConfig};
use crate::api::reference::ObjectReference;
use crate::ir::ObjectRef;
use crate::ir::tls::{Authority, ClientValidation, ClientValidationMode};

use super::authority;
use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use crate::translate::input::Input;
use crate::translate::memo::Parsed;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{Fault, Reason, merge};
use crate::translate::reference_grant;
use crate::translate::source::Source;

/// The value of `mode` that serves clients without a valid certificate.
const INSECURE: &str = "AllowInsecureFallback";

/// The CA certificates for client certificates. Kept from one translation to the next.
#[derive(Default)]
pub(in crate::translate) struct ClientAuthorities {
    of_config_maps: Parsed<ConfigMap, Bundle>,
    of_secrets: Parsed<Secret, Bundle>,
}

/// The certificates of an object, or its problem.
type Bundle = Result<Arc<[Authority]>, String>;

/// The result of one validation.
struct Validated {
    /// `None` if no CA certificate is usable.
    validation: Option<Arc<ClientValidation>>,
    unresolved: Vec<Fault>,
}

impl ClientAuthorities {
    /// Sets the validation of every HTTPS listener of a Gateway, or its fault.
    pub(super) fn load(&mut self, input: &Input<'_>, gateway: &mut GatewayDraft<'_>) {
        let tls = gateway.object.spec.tls.as_ref();
        let Some(frontend) = tls.and_then(|tls| tls.frontend.as_ref()) else {
            return;
        };
        gateway.insecure_frontend = insecure(frontend);
        let mut by_config: BTreeMap<Option<u16>, Validated> = BTreeMap::new();
        let listeners = gateway.listeners.iter_mut();
        for listener in listeners.filter(|listener| listener.protocol == Protocol::Https) {
            let (port, config) = config_of(frontend, listener.spec.port);
            let Some(validation) = &config.validation else {
                continue;
            };
            let read = || self.validate(input, &gateway.name, &field(port), validation);
            by_config
                .entry(port)
                .or_insert_with(read)
                .apply_to(listener);
        }
    }

    /// Removes what is no longer read.
    pub(super) fn remove(&mut self, unread: &Source) {
        if let Source::Object(name) = unread {
            self.of_config_maps.remove(name);
            self.of_secrets.remove(name);
        }
    }

    fn validate(
        &mut self,
        input: &Input<'_>,
        gateway: &ObjectRef,
        field: &str,
        validation: &FrontendValidation,
    ) -> Validated {
        let mut unresolved = Vec::new();
        let mut authorities = authority::Union::default();
        for (index, reference) in validation.ca_certificate_refs.iter().enumerate() {
            let field = format!("{field}.caCertificateRefs[{index}] of {gateway}");
            match self.get(input, gateway, reference, &field) {
                Ok(bundle) => authorities.add(bundle.iter().cloned()),
                Err(fault) => unresolved.push(fault),
            }
        }
        let mode = match validation.mode.as_deref() {
            Some(INSECURE) => ClientValidationMode::AllowInsecureFallback,
            _ => ClientValidationMode::AllowValidOnly,
        };
        let validation = (!authorities.is_empty()).then(|| {
            Arc::new(ClientValidation {
                authorities: authorities.into_list(),
                mode,
            })
        });
        Validated {
            validation,
            unresolved,
        }
    }

    fn get(
        &mut self,
        input: &Input<'_>,
        gateway: &ObjectRef,
        reference: &ObjectReference,
        field: &str,
    ) -> Result<Arc<[Authority]>, Fault> {
        let ObjectReference {
            group,
            kind,
            name,
            namespace,
        } = reference;
        if !group.is_empty() || !["ConfigMap", "Secret"].contains(&kind.as_str()) {
            let message = format!(
                "{field} names a {kind} of group {group:?}; name a ConfigMap or a Secret of the core group with the key \
                 ca.crt"
            );
            return Err(Fault::new(Reason::InvalidCACertificateKind, message));
        }
        let namespace = namespace.as_deref().unwrap_or(&gateway.namespace);
        let name = ObjectRef::core(kind, namespace, name);
        // Check the permission first: without one, the status must not disclose whether the object exists.
        reference_grant::check(input, gateway, &name, field)?;
        let bad = |problem: &str| {
            let message = format!("{field}: {name} {problem}");
            Fault::new(Reason::InvalidCACertificateRef, message)
        };
        let bundle = match kind.as_str() {
            "Secret" => input.find::<Secret>(&name).map(|secret| {
                let read = || authority::of_secret(secret, &name);
                self.of_secrets
                    .get(&name, secret, |_| read().map(Into::into))
            }),
            _ => input.find::<ConfigMap>(&name).map(|map| {
                let read = || authority::of_config_map(map, &name);
                self.of_config_maps
                    .get(&name, map, |_| read().map(Into::into))
            }),
        };
        let bundle = bundle.ok_or_else(|| bad(input.absence(&name)))?;
        bundle.map_err(|problem| bad(&problem))
    }
}

impl Validated {
    fn apply_to(&self, listener: &mut ListenerDraft<'_>) {
        listener.unresolved.extend(self.unresolved.iter().cloned());
        listener.client_validation.clone_from(&self.validation);
        if self.validation.is_none() {
            let why = merge(&self.unresolved).map(|fault| fault.message);
            let why = why.unwrap_or_else(|| "caCertificateRefs is empty".to_owned());
            let message = format!("no usable CA certificate for client validation: {why}");
            listener.reject(Reason::NoValidCACertificate, message);
        }
    }
}

/// Returns the objects with CA certificates that the HTTPS listeners of a Gateway use.
pub(in crate::translate) fn used_authorities(gateway: &GatewayDraft<'_>) -> Vec<ObjectReference> {
    let tls = gateway.object.spec.tls.as_ref();
    let Some(frontend) = tls.and_then(|tls| tls.frontend.as_ref()) else {
        return Vec::new();
    };
    let listeners = gateway.listeners.iter();
    let listeners = listeners.filter(|it| it.protocol == Protocol::Https && it.is_accepted());
    let configs: BTreeMap<_, _> = listeners
        .map(|listener| config_of(frontend, listener.spec.port))
        .collect();
    let validations = configs
        .into_values()
        .filter_map(|it| it.validation.as_ref());
    validations
        .flat_map(|validation| validation.ca_certificate_refs.iter().cloned())
        .collect()
}

/// Returns the configuration of a port, and the port if an entry of `perPort` replaces the default.
fn config_of(frontend: &FrontendTls, port: u16) -> (Option<u16>, &TlsConfig) {
    let own = frontend.per_port.iter().find(|entry| entry.port == port);
    own.map_or((None, &frontend.default), |entry| (Some(port), &entry.tls))
}

fn field(port: Option<u16>) -> String {
    match port {
        None => "spec.tls.frontend.default.validation".to_owned(),
        Some(port) => format!("spec.tls.frontend.perPort[{port}].tls.validation"),
    }
}

/// Returns the message of a Gateway that serves clients without a valid certificate on some port.
fn insecure(frontend: &FrontendTls) -> Option<String> {
    let ports = frontend.per_port.iter();
    let ports = ports.map(|entry| (Some(entry.port), &entry.tls));
    let all = std::iter::once((None, &frontend.default)).chain(ports);
    let is_insecure = |config: &TlsConfig| {
        let validation = config.validation.as_ref();
        validation.is_some_and(|it| it.mode.as_deref() == Some(INSECURE))
    };
    let fields: Vec<_> = all
        .filter(|(_, config)| is_insecure(config))
        .map(|(port, _)| field(port))
        .collect();
    (!fields.is_empty()).then(|| {
        let fields = fields.join(", ");
        format!(
            "clients without a valid certificate are served: mode is {INSECURE} in {fields}; backends must not take \
             clients for authenticated unless X-Forwarded-Client-Cert says so"
        )
    })
}
