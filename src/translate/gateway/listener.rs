//! One listener while it is translated: its validity, the routes that it supports, and its conditions. Must not know
//! other listeners.

use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::{Listener as Spec, RouteGroupKind};
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::tls::{CipherPolicy, ClientValidation, TlsVersion};
use crate::ir::{
    self, AttachedRoutes, Hostname, Listener, ListenerKey, ObjectRef, TlsTermination, Transport,
};
use crate::status::Condition;

use crate::translate::input::Input;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{ConditionType, Fault, Reason, judge, merge};
use crate::translate::unknown_field;

/// Prefix of our TLS options. Options of other domains are ignored.
const OPTION_PREFIX: &str = "portcullis.dev/";

/// A listener while it is translated.
pub(in crate::translate) struct ListenerDraft<'a> {
    pub(in crate::translate) spec: &'a Spec,
    pub(in crate::translate) key: ListenerKey,
    pub(in crate::translate) generation: i64,
    pub(in crate::translate) hostname: Hostname,
    pub(in crate::translate) protocol: Protocol,
    /// Kinds of routes that may attach.
    pub(in crate::translate) kinds: Vec<&'static str>,
    /// Makes `Accepted` false.
    pub(super) rejected: Option<Fault>,
    /// Whether it takes nothing from later listeners: it is beyond the limit of its namespace, or has the name of an
    /// earlier one.
    pub(super) is_surplus: bool,
    /// Makes `Conflicted` true, and `Accepted` false for the same reason.
    pub(in crate::translate) conflict: Option<Fault>,
    /// Makes `OverlappingTLSConfig` true.
    pub(in crate::translate) overlap: Option<Fault>,
    /// Make `ResolvedRefs` false.
    pub(in crate::translate) unresolved: Vec<Fault>,
    /// Makes `Programmed` false for a listener that is accepted.
    pub(super) unprogrammed: Option<Fault>,
    pub(in crate::translate) options: TlsOptions,
    /// How client certificates are verified; `None` if they are not, or if the listener is rejected because of it.
    pub(super) client_validation: Option<Arc<ClientValidation>>,
    /// How TLS is terminated; set when certificates are loaded.
    pub(in crate::translate) termination: Option<TlsTermination>,
}

/// TLS options with our prefix.
#[derive(Clone, Copy)]
pub(in crate::translate) struct TlsOptions {
    pub(in crate::translate) min_version: TlsVersion,
    pub(super) ciphers: CipherPolicy,
}

impl<'a> ListenerDraft<'a> {
    /// Reads a listener of `origin`, a Gateway or a ListenerSet.
    pub(in crate::translate) fn new(
        input: &Input<'_>,
        spec: &'a Spec,
        origin: &ObjectRef,
        generation: i64,
    ) -> Self {
        let protocol = Protocol::new(&spec.protocol);
        let mut draft = Self {
            spec,
            key: ListenerKey {
                origin: origin.clone(),
                name: spec.name.as_str().into(),
            },
            generation,
            hostname: Hostname::new(spec.hostname.as_deref().unwrap_or_default()),
            protocol,
            kinds: Vec::new(),
            rejected: None,
            is_surplus: false,
            conflict: None,
            overlap: None,
            unresolved: Vec::new(),
            unprogrammed: None,
            options: TlsOptions {
                min_version: TlsVersion::Tls12,
                ciphers: CipherPolicy::Default,
            },
            client_validation: None,
            termination: None,
        };
        draft.check_protocol();
        draft.check_values();
        draft.read_kinds(input);
        if matches!(protocol, Protocol::Https | Protocol::Tls) {
            draft.read_tls();
        }
        draft
    }

    /// Rejects the listener at `index` of its object if it has a field that this version does not know.
    pub(super) fn check_fields<T: Resource>(mut self, object: &T, index: usize) -> Self {
        if let Some(fault) = unknown_field::of_item(object, "spec.listeners", index) {
            self.reject(fault.reason, fault.message);
        }
        self
    }

    /// Returns the path of a field of this listener.
    pub(in crate::translate) fn field(&self, name: &str) -> String {
        format!("spec.listeners[{}].{name}", self.spec.name)
    }

    /// Returns the port that it occupies.
    pub(in crate::translate) fn port(&self) -> (u16, Transport) {
        (self.spec.port, self.protocol.transport())
    }

    /// Reports whether the listener can be served. Its Gateway can still prevent that.
    pub(super) fn is_servable(&self) -> bool {
        self.rejected.is_none() && self.conflict.is_none() && self.unprogrammed.is_none()
    }

    /// Reports whether the listener decrypts what clients send.
    pub(in crate::translate) fn terminates_tls(&self) -> bool {
        match self.protocol {
            Protocol::Https => true,
            Protocol::Tls => !self.passes_tls_through(),
            Protocol::Http | Protocol::Tcp | Protocol::Udp | Protocol::Other => false,
        }
    }

    /// Reports whether the listener forwards TLS as it is.
    pub(super) fn passes_tls_through(&self) -> bool {
        let mode = self.spec.tls.as_ref().and_then(|tls| tls.mode.as_deref());
        self.protocol == Protocol::Tls && mode == Some("Passthrough")
    }

    /// Reports whether no step has found anything about it that its conditions tell.
    pub(super) fn is_sound(&self) -> bool {
        self.is_servable() && self.overlap.is_none() && self.unresolved.is_empty()
    }

    /// Reports whether `Accepted` is true.
    pub(in crate::translate) fn is_accepted(&self) -> bool {
        self.rejected.is_none() && self.conflict.is_none()
    }

    /// Returns the listener for the IR, without routes; `None` if it cannot be served.
    pub(in crate::translate) fn finish(&self) -> Option<Listener> {
        let protocol = self.ir_protocol().filter(|_| self.is_servable())?;
        Some(Listener {
            key: self.key.clone(),
            hostname: self.hostname.clone(),
            protocol,
            policies: None,
            clients: None,
            routes: AttachedRoutes::default(),
        })
    }

    fn ir_protocol(&self) -> Option<ir::Protocol> {
        let termination = self.termination.clone();
        match self.protocol {
            Protocol::Http => Some(ir::Protocol::Http),
            Protocol::Https => termination.map(ir::Protocol::Https),
            Protocol::Tls if self.passes_tls_through() => Some(ir::Protocol::TlsPassthrough),
            Protocol::Tls => termination.map(ir::Protocol::TlsTerminate),
            Protocol::Tcp => Some(ir::Protocol::Tcp),
            Protocol::Udp => Some(ir::Protocol::Udp),
            Protocol::Other => None,
        }
    }

    /// Returns the listener's conditions. `gateway_fault` is the fault of its Gateway.
    pub(in crate::translate) fn conditions(&self, gateway_fault: Option<&Fault>) -> Vec<Condition> {
        let generation = self.generation;
        let rejected = self.conflict.as_ref().or(self.rejected.as_ref());
        let accepted = judge(
            ConditionType::Accepted,
            Reason::Accepted,
            rejected,
            generation,
        );
        let unprogrammed = match rejected {
            Some(fault) => match fault.reason {
                Reason::HostnameConflict | Reason::ProtocolConflict | Reason::PortUnavailable => {
                    Some(fault.clone())
                }
                _ => Some(Fault::new(Reason::Invalid, fault.message.clone())),
            },
            None => self.unprogrammed.clone().or_else(|| gateway_fault.cloned()),
        };
        let programmed = ConditionType::Programmed;
        let programmed = judge(
            programmed,
            Reason::Programmed,
            unprogrammed.as_ref(),
            generation,
        );
        let unresolved = merge(&self.unresolved);
        let resolved = ConditionType::ResolvedRefs;
        let resolved = judge(
            resolved,
            Reason::ResolvedRefs,
            unresolved.as_ref(),
            generation,
        );
        let bad = |kind, fault: &Option<Fault>| {
            let fault = fault.as_ref()?;
            Some(Condition::holds(kind, fault.reason, generation).with_message(&fault.message))
        };
        let conflicted = bad(ConditionType::Conflicted, &self.conflict);
        let overlapping = bad(ConditionType::OverlappingTLSConfig, &self.overlap);
        let mut conditions = vec![accepted];
        conditions.extend(conflicted);
        conditions.extend(overlapping);
        conditions.extend([programmed, resolved]);
        conditions
    }

    /// Rejects a listener that must take nothing from later ones, whatever else is wrong with it.
    pub(super) fn exclude(&mut self, fault: Fault) {
        self.rejected = Some(fault);
        self.is_surplus = true;
    }

    pub(super) fn reject(&mut self, reason: Reason, message: String) {
        self.rejected.get_or_insert(Fault::new(reason, message));
    }

    fn check_protocol(&mut self) {
        if self.protocol == Protocol::Other {
            let (field, protocol) = (self.field("protocol"), &self.spec.protocol);
            let message = format!(
                "{field}: {protocol} is not a protocol that Portcullis knows; use HTTP, HTTPS, TLS, TCP or UDP"
            );
            self.reject(Reason::UnsupportedProtocol, message);
        }
    }

    /// Checks values that an API server refuses but that a file may contain.
    fn check_values(&mut self) {
        if self.spec.port == 0 {
            let message = format!("{}: 0 is not a port", self.field("port"));
            self.reject(Reason::PortUnavailable, message);
        }
        let hostname = self
            .spec
            .hostname
            .as_deref()
            .filter(|name| !name.is_empty());
        if let Some(name) = hostname.filter(|name| !Hostname::is_valid(name)) {
            let message = format!("{}: {name:?} is not a hostname", self.field("hostname"));
            self.reject(Reason::UnsupportedValue, message);
        }
    }

    fn read_kinds(&mut self, input: &Input<'_>) {
        let supported = input.kinds.of_routes(self.protocol);
        let asked = self
            .spec
            .allowed_routes
            .as_ref()
            .map_or(&[][..], |routes| &routes.kinds);
        if asked.is_empty() || supported.is_empty() {
            self.kinds = supported;
            return;
        }
        let named = |asked: &RouteGroupKind| {
            let known = supported
                .iter()
                .find(|kind| asked.group == GATEWAY_GROUP && **kind == asked.kind);
            known.copied().ok_or_else(|| asked.kind.clone())
        };
        let mut unknown = Vec::new();
        for kind in asked {
            match named(kind) {
                Ok(kind) if self.kinds.contains(&kind) => {}
                Ok(kind) => self.kinds.push(kind),
                Err(kind) => unknown.push(kind),
            }
        }
        if !unknown.is_empty() {
            let message = format!(
                "{}: {} is not supported on a listener of protocol {}; supported kinds: {}",
                self.field("allowedRoutes.kinds"),
                unknown.join(", "),
                self.spec.protocol,
                supported.join(", ")
            );
            self.unresolved
                .push(Fault::new(Reason::InvalidRouteKinds, message));
        }
    }

    fn read_tls(&mut self) {
        let Some(tls) = &self.spec.tls else {
            return;
        };
        if self.passes_tls_through() {
            return;
        }
        if let Some(mode) = tls.mode.as_deref().filter(|mode| *mode != "Terminate") {
            let needed = match self.protocol {
                Protocol::Https => "an HTTPS listener needs Terminate",
                _ => "a TLS listener needs Terminate or Passthrough",
            };
            let message = format!("{} is {mode}; {needed}", self.field("tls.mode"));
            self.reject(Reason::UnsupportedValue, message);
        }
        for (key, value) in &tls.options {
            let Some(name) = key.strip_prefix(OPTION_PREFIX) else {
                continue;
            };
            match (name, value.as_str()) {
                ("min-tls-version", "1.2") => self.options.min_version = TlsVersion::Tls12,
                ("min-tls-version", "1.3") => self.options.min_version = TlsVersion::Tls13,
                ("tls-ciphers", "default") => self.options.ciphers = CipherPolicy::Default,
                ("tls-ciphers", "aes-gcm") => self.options.ciphers = CipherPolicy::AesGcm,
                _ => {
                    let message = format!(
                        "{}: {key}: {value:?} is not supported; options are {OPTION_PREFIX}min-tls-version (\"1.2\" \
                         or \"1.3\") and {OPTION_PREFIX}tls-ciphers (default or aes-gcm)",
                        self.field("tls.options")
                    );
                    self.reject(Reason::UnsupportedValue, message);
                }
            }
        }
    }
}
