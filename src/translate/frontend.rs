//! Validation of client certificates (`spec.tls.frontend` of a Gateway) for its HTTPS listeners and those of its
//! ListenerSets, by port. Fails closed: a listener whose validation has no usable CA certificate is not served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Object;
use crate::api::gateway::{FrontendTls, FrontendValidation, TlsConfig};
use crate::api::reference::ObjectReference;
use crate::ir::ObjectRef;
use crate::ir::tls::{Authority, ClientValidation, ClientValidationMode};
use crate::snapshot::Snapshot;

use super::gateway::GatewayDraft;
use super::listener::{ListenerDraft, Protocol};
use super::reason::{Fault, Reason, merge};
use super::{Input, authority};

/// The value of `mode` that serves clients without a valid certificate.
const INSECURE: &str = "AllowInsecureFallback";

/// The CA certificates for client certificates. Kept from one translation to the next.
#[derive(Default)]
pub(super) struct ClientAuthorities {
    bundles: BTreeMap<ObjectRef, (Object, Bundle)>,
    /// ConfigMaps and Secrets that Gateways refer to, whether or not they exist.
    named: BTreeSet<ObjectRef>,
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
    /// Sets the validation of every HTTPS listener, or its fault.
    pub(super) fn load(&mut self, input: &Input<'_>, gateways: &mut [GatewayDraft<'_>]) {
        let mut store = Store {
            input,
            known: std::mem::take(&mut self.bundles),
            read: Self::default(),
        };
        for gateway in gateways {
            let tls = gateway.object.spec.tls.as_ref();
            let Some(frontend) = tls.and_then(|tls| tls.frontend.as_ref()) else {
                continue;
            };
            gateway.insecure_frontend = insecure(frontend);
            let mut by_config: BTreeMap<Option<u16>, Validated> = BTreeMap::new();
            let listeners = gateway.listeners.iter_mut();
            for listener in listeners.filter(|listener| listener.protocol == Protocol::Https) {
                let (port, config) = config_of(frontend, listener.spec.port);
                let Some(validation) = &config.validation else {
                    continue;
                };
                let read = || store.validate(&gateway.name, &field(port), validation);
                by_config
                    .entry(port)
                    .or_insert_with(read)
                    .apply_to(listener);
            }
        }
        *self = store.read;
    }

    /// Reports whether a ConfigMap that a Gateway refers to has changed.
    pub(super) fn differ(&self, before: &Snapshot, now: &Snapshot) -> bool {
        let mut changed = now.config_maps.names_changed_since(&before.config_maps);
        changed.any(|name| self.named.contains(&name))
    }
}

impl Validated {
    fn apply_to(&self, listener: &mut ListenerDraft<'_>) {
        listener.unresolved.extend(self.unresolved.iter().cloned());
        listener.client_validation.clone_from(&self.validation);
        if self.validation.is_none() {
            let why = merge(&self.unresolved).map(|fault| fault.message);
            let why = why.unwrap_or_else(|| "caCertificateRefs is empty".to_owned());
            let message = format!("no usable CA certificate to verify clients by: {why}");
            listener.reject(Reason::NoValidCACertificate, message);
        }
    }
}

struct Store<'i, 'a> {
    input: &'i Input<'a>,
    known: BTreeMap<ObjectRef, (Object, Bundle)>,
    /// Objects that were read in this translation: each once, although many validations may refer to it.
    read: ClientAuthorities,
}

impl Store<'_, '_> {
    fn validate(
        &mut self,
        gateway: &ObjectRef,
        field: &str,
        validation: &FrontendValidation,
    ) -> Validated {
        let mut unresolved = Vec::new();
        let mut authorities = authority::Union::default();
        for (index, reference) in validation.ca_certificate_refs.iter().enumerate() {
            let field = format!("{field}.caCertificateRefs[{index}] of {gateway}");
            match self.get(gateway, reference, &field) {
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
            let group = if group.is_empty() { "core" } else { group };
            let message = format!(
                "{field} names a {kind} of group {group}; name a ConfigMap or a Secret of the core group with the key \
                 ca.crt"
            );
            return Err(Fault::new(Reason::InvalidCACertificateKind, message));
        }
        let namespace = namespace.as_deref().unwrap_or(&gateway.namespace);
        let name = ObjectRef::core(kind, namespace, name);
        self.read.named.insert(name.clone());
        // Check the permission first: without one, the status must not disclose whether the object exists.
        self.input.grants.check(gateway, &name, field)?;
        let bad = |problem: &str| {
            let message = format!("{field}: {name} {problem}");
            Fault::new(Reason::InvalidCACertificateRef, message)
        };
        let object = self.input.snapshot.object(&name);
        let object = object.ok_or_else(|| bad("does not exist"))?;
        let (_, bundle) = self.read.bundles.entry(name.clone()).or_insert_with(|| {
            let known = self.known.remove(&name);
            known
                .filter(|(same, _)| *same == object)
                .unwrap_or_else(|| {
                    let bundle = bundle(&object, &name);
                    (object, bundle)
                })
        });
        bundle.clone().map_err(|problem| bad(&problem))
    }
}

fn bundle(object: &Object, name: &ObjectRef) -> Bundle {
    let certificates = match object {
        Object::ConfigMap(map) => authority::of_config_map(map, name)?,
        Object::Secret(secret) => authority::of_secret(secret, name)?,
        _ => return Err("is neither a ConfigMap nor a Secret".to_owned()),
    };
    Ok(certificates.into())
}

/// Returns the objects with CA certificates that the HTTPS listeners of a Gateway use.
pub(super) fn used_authorities(gateway: &GatewayDraft<'_>) -> Vec<ObjectReference> {
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
