//! The servers of the endpoint pickers of InferencePools: each is a backend, and is kept while requests are sent to the pool.
//! Must not know how a picker is asked.

use std::sync::Arc;

use crate::api::Resource;
use crate::api::core::Service;
use crate::api::inference_pool::{EndpointPickerRef, InferencePool};
use crate::ir::picker::{UNANSWERED, is_pool};
use crate::ir::{
    BackendId, Choice, FailureMode, ObjectRef, RouteKind, Transport, UpstreamProtocol,
};
use crate::status::{Condition, ConditionStatus};

use super::super::reason::{ConditionType, Fault, Reason, judge};
use super::picker::{Appointed, Server, unverified};
use super::port::{BackendUse, own_use};
use super::registry::unusable;
use super::{Backends, EnabledKind, sources};
use crate::translate::backend::kind::PortRef;
use crate::translate::changes::Changes;
use crate::translate::consumer::Requests;
use crate::translate::input::Input;
use crate::translate::policy::backend_tls::Decision;
use crate::translate::source::Source;

const FIELD: &str = "spec.endpointPickerRef";

impl Backends {
    /// Updates the pickers of pools that have changed, or to which other requests are sent. Comes after all that sends
    /// requests to backends.
    pub(in crate::translate) fn appoint(&mut self, input: &Input<'_>, changes: &mut Changes) {
        let mut names = self.pickers.outdated(changes);
        names.extend(changes.of::<InferencePool>());
        names.extend(self.claimed.iter().filter(|it| is_pool(it)).cloned());
        for pool in names {
            let computed = input.reading(|| self.appointed(input, &pool));
            if let Some(server) = computed.0.as_ref().and_then(Appointed::claim) {
                self.claim(server, true);
            }
            let previous = self.pickers.replace(&pool, computed).previous;
            if let Some(server) = previous.as_ref().and_then(Appointed::claim) {
                self.release(server, true);
            }
            if previous.as_ref() != self.pickers.get(&pool) {
                self.choose(&pool);
                changes.announce(Source::Backend(pool));
            }
        }
    }

    fn appointed(&mut self, input: &Input<'_>, pool: &ObjectRef) -> Option<Appointed> {
        self.enabled(pool)?;
        let object = input.find::<InferencePool>(pool)?;
        let reference = object.spec.endpoint_picker_ref.as_ref()?;
        let server = self.server(input, pool, reference);
        Some(Appointed {
            server: server.map_err(|fault| Fault::new(Reason::InvalidExtensionRef, fault.message)),
            failure_mode: match reference.failure_mode.as_deref() {
                Some("FailOpen") => FailureMode::Open,
                // Also what a later version may say.
                _ => FailureMode::Close,
            },
            is_served: self.of_object(pool).any(|(_, it)| it.served > 0),
        })
    }

    /// Resolves the reference of a pool to its picker: in plain text if the port says so, else in TLS. Pickers sign their own
    /// certificates, so that these are verified only if a policy says how.
    fn server(
        &mut self,
        input: &Input<'_>,
        pool: &ObjectRef,
        reference: &EndpointPickerRef,
    ) -> Result<Server, Fault> {
        let field = reference.field();
        let name = field.object_ref(&pool.namespace);
        if !field.is_core(Service::KIND) {
            let (group, kind) = (field.group, field.kind);
            let message =
                format!("{FIELD}: kind {kind} of group {group:?} is not supported; use a Service");
            return Err(Fault::new(Reason::InvalidKind, message));
        }
        input.read(|| Source::Backend(name.clone()));
        let enabled = self.enabled(&name);
        let EnabledKind { kind, resolver } = enabled.ok_or_else(|| unusable(&name, FIELD))?;
        let of_service = |fault: Fault| {
            let message = format!("{FIELD}: {name} {}", fault.message);
            Fault::new(fault.reason, message)
        };
        let port = PortRef {
            number: field.port,
            transport: Transport::Tcp,
        };
        let sources = sources(input, &self.slices);
        // It depends on the backend of the Service, whatever that is computed from.
        let (found, _) = input.reading(|| resolver.resolve(&sources, &name, port));
        let found = found.map_err(of_service)?;
        let at = &found.port;
        let protocol = at.protocol_for(RouteKind::Grpc).map_err(of_service)?;
        let requests = Requests {
            route: pool,
            rule: None,
            kind: RouteKind::Grpc,
            consumer: None,
            of_all_listeners: None,
        };
        let (policy, tls) = match self.decide(&name, at, protocol, &requests) {
            Decision::Plain(None) if at.protocol != UpstreamProtocol::H2c => {
                (Some(own_use(pool)), Some(Arc::new(unverified(&name))))
            }
            Decision::Plain(policy) => (policy, None),
            Decision::Tls(policy, tls) => (Some(policy), Some(tls)),
            Decision::Refused(why) => {
                let message = format!("{FIELD}: {name}: {why}");
                return Err(Fault::new(Reason::InvalidExtensionRef, message));
            }
        };
        at.permits(protocol, policy.as_ref(), kind.name.1)
            .map_err(of_service)?;
        let used = BackendUse {
            required: at.required(protocol),
            protocol,
            policy,
            tls,
        };
        let server = self.add(found, used);
        Ok(Server {
            id: server.id.clone(),
            is_encrypted: server.tls.is_some(),
        })
    }

    /// Puts the picker of a pool into its backends.
    fn choose(&mut self, pool: &ObjectRef) {
        let choice = self.choice_of(pool);
        let known = self.of_object(pool);
        let other = known.filter(|(_, it)| it.backend.choice != choice);
        let other: Vec<BackendId> = other.map(|(id, _)| id.clone()).collect();
        for id in other {
            if let Some(resolved) = self.resolved.get_mut(&id) {
                Arc::make_mut(&mut resolved.backend).choice = choice.clone();
                self.listed = None;
            }
        }
    }

    /// Returns who chooses the endpoints of an object.
    pub(super) fn choice_of(&self, object: &ObjectRef) -> Choice {
        let appointed = self.pickers.get(object);
        appointed.map_or(Choice::Balance, Appointed::choice)
    }

    /// Says in the conditions of an object which server picks its endpoints, and what happens if it does not answer.
    pub(super) fn add_picker(&self, object: &ObjectRef, conditions: &mut [Condition]) {
        let Some(appointed) = self.pickers.get(object) else {
            return;
        };
        for condition in conditions {
            match condition.kind {
                ConditionType::Accepted if condition.status == ConditionStatus::True => {
                    let effect = appointed.failure_mode.effect();
                    condition.message = format!("{UNANSWERED}: {effect}");
                }
                ConditionType::ResolvedRefs => {
                    let (kind, good) = (ConditionType::ResolvedRefs, Reason::ResolvedRefs);
                    let fault = appointed.server.as_ref().err();
                    *condition = judge(kind, good, fault, condition.observed_generation);
                    if let Ok(server) = &appointed.server {
                        condition.message = server.describe();
                    }
                }
                _ => {}
            }
        }
    }
}
