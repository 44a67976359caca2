//! InferencePools as backends: selected pods, each with all target ports. Keeps parsed objects from one translation to the
//! next. Must not know which server picks endpoints: that is in `pickers`.

use std::net::SocketAddr;

use crate::api::core::{EndpointSlice, Service};
use crate::api::inference_pool::{ACTIVE_PORTS, InferencePool};
use crate::api::pod::Pod;
use crate::api::{Object, Resource};
use crate::ir::sharing::Text;
use crate::ir::{Backend, BackendId, Endpoints, ObjectRef, UpstreamProtocol};
use crate::status::Condition;

use super::super::reason::{ConditionType, Fault, Reason, judge};
use super::kind::{
    BackendKind, Carried, Found, KindName, Kinds, PortRef, Resolver, Sources, name_of,
};
use super::pods;
use super::port::{Port, PortTls};
use crate::translate::changes::Changes;
use crate::translate::endpoints::EndpointState;
use crate::translate::input::Input;
use crate::translate::links::Collector;
use crate::translate::memo::Memo;
use crate::translate::source::Source;
use crate::translate::unknown_field;

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "inference.networking.k8s.io/v1.InferencePool",
    name: name_of::<InferencePool>(),
    reads: &[
        name_of::<Service>(),
        name_of::<EndpointSlice>(),
        name_of::<Pod>(),
    ],
    endpoint_label: None,
    is_local: false,
    carries: Carried::Requests,
    target_ports: None,
    load_balancer: None,
    has_status: true,
    links,
    resolver: || Box::new(InferencePools::default()),
};

/// The parsed InferencePools of a snapshot.
#[derive(Default)]
struct InferencePools(Memo<Pool>);

/// A parsed InferencePool.
struct Pool {
    settings: Settings,
    endpoints: Endpoints,
}

/// What decides about a pool, apart from its endpoints.
#[derive(PartialEq, Eq)]
struct Settings {
    generation: i64,
    /// The first target port, which stands for all.
    port: u16,
    protocol: UpstreamProtocol,
    has_picker: bool,
    /// Why no request is sent to it.
    refused: Option<Fault>,
}

/// Collects the links: the pods that have an address, and the Service of the picker.
fn links(object: &Object, all: Kinds, collector: &mut Collector<'_>) {
    let Object::InferencePool(pool) = object else {
        return;
    };
    let input = collector.input();
    let namespace = &pool.metadata.namespace;
    let labels = &pool.spec.selector.match_labels;
    if !labels.is_empty() {
        collector.depends_on_all(Pod::KIND);
        let selected = input.pods_labelled(namespace, labels);
        let selected = selected.filter(|pod| pods::address(pod).is_some());
        collector.refers_to_all(selected.map(|pod| pod.object_ref()));
    }
    let enabled = &input.options.permissions.backend_kinds;
    pool.spec.references(&mut |field| {
        let kind = all.find(field.group, field.kind);
        let is_enabled = kind.is_some_and(|kind| enabled.has(kind.gvk));
        if field.is_core(Service::KIND) && is_enabled {
            collector.refers_to(field.object_ref(namespace));
        }
    });
}

impl Resolver for InferencePools {
    fn step(&mut self, _: KindName, sources: &Sources<'_, '_>, changes: &mut Changes) {
        let input = sources.input;
        if !self.0.is_empty() {
            pods::announce(input, changes);
        }
        let mut names = self.0.outdated(changes);
        names.extend(changes.of::<InferencePool>());
        for name in names {
            let computed = input.reading(|| {
                let object = input.find::<InferencePool>(&name)?;
                Some(Pool {
                    settings: Settings::read(object),
                    endpoints: endpoints(input, object),
                })
            });
            let previous = self.0.replace(&name, computed).previous;
            let (before, now) = (previous.as_ref(), self.0.get(&name));
            if before.map(|pool| &pool.settings) != now.map(|pool| &pool.settings) {
                changes.announce(Source::Backend(name));
            } else if before.map(|pool| &pool.endpoints) != now.map(|pool| &pool.endpoints) {
                changes.announce(Source::EndpointsOf(name));
            }
        }
    }

    /// Finds the pool. The API says that the port of a reference has no meaning.
    fn resolve(
        &self,
        sources: &Sources<'_, '_>,
        name: &ObjectRef,
        _: PortRef,
    ) -> Result<Found, Fault> {
        let Pool {
            settings,
            endpoints,
        } = self.0.get(name).ok_or_else(|| sources.absent(name))?;
        let protocol = settings.protocol;
        let refused = |fault: &Fault| -> Text {
            format!("{}; requests are refused rather than sent", fault.message).into()
        };
        let id = BackendId::new(name.clone(), settings.port);
        Ok(Found {
            backend: Backend::new(id, protocol, endpoints.clone()),
            port: Port {
                zoned: None,
                name: None,
                protocol,
                refuses_grpc: None,
                tls: PortTls::Own(
                    settings
                        .refused
                        .as_ref()
                        .map_or(Ok(None), |it| Err(refused(it))),
                ),
            },
        })
    }

    fn conditions(&self, name: &ObjectRef) -> Option<Vec<Condition>> {
        let settings = &self.0.get(name)?.settings;
        let (generation, fault) = (settings.generation, settings.refused.as_ref());
        let mut accepted = judge(ConditionType::Accepted, Reason::Accepted, fault, generation);
        if fault.is_none() && !settings.has_picker {
            accepted = accepted.with_message(
                "there is no spec.endpointPickerRef: requests are balanced over the ready pods",
            );
        }
        let refs = Condition::holds(
            ConditionType::ResolvedRefs,
            Reason::ResolvedRefs,
            generation,
        );
        Some(vec![accepted, refs])
    }
}

impl Settings {
    fn read(object: &InferencePool) -> Self {
        let spec = &object.spec;
        let (protocol, unsupported) = match spec.app_protocol.as_deref() {
            None | Some("" | "http") => (UpstreamProtocol::Http1, None),
            Some("kubernetes.io/h2c") => (UpstreamProtocol::H2c, None),
            Some(other) => {
                let message =
                    format!("spec.appProtocol {other:?} is neither http nor kubernetes.io/h2c");
                (UpstreamProtocol::Http1, Some(unsupported(message)))
            }
        };
        Self {
            generation: object.metadata.generation,
            port: spec.target_ports.first().map_or(0, |port| port.number),
            protocol,
            has_picker: spec.endpoint_picker_ref.is_some(),
            refused: unsupported.or_else(|| invalid(object)),
        }
    }
}

fn unsupported(message: impl Into<String>) -> Fault {
    Fault::new(Reason::NotSupportedByParent, message)
}

/// Returns why no request can be sent to a pool, whatever its protocol.
fn invalid(object: &InferencePool) -> Option<Fault> {
    let mut parts = ["spec.selector", "spec.endpointPickerRef"].into_iter();
    if let Some(fault) = parts.find_map(|part| unknown_field::of_part(object, part)) {
        return Some(unsupported(fault.message));
    }
    let spec = &object.spec;
    if spec.selector.match_labels.is_empty() {
        return Some(unsupported("spec.selector.matchLabels has no label"));
    }
    let has_port = spec.target_ports.iter().any(|port| port.number > 0);
    (!has_port).then(|| unsupported("spec.targetPorts has no port"))
}

/// Returns the endpoints of a pool: as the pods of a Service, those that are ready or, if none is, those that still serve while
/// they terminate. A picker may choose any other.
fn endpoints(input: &Input<'_>, object: &InferencePool) -> Endpoints {
    let (namespace, spec) = (&object.metadata.namespace, &object.spec);
    let labels = &spec.selector.match_labels;
    if labels.is_empty() {
        return Endpoints::Addresses(Vec::new());
    }
    let (mut ready, mut draining, mut unready) = (Vec::new(), Vec::new(), Vec::new());
    for pod in input.pods_labelled(namespace, labels) {
        let Some(address) = pods::address(pod) else {
            continue;
        };
        let group = match pods::state(pod) {
            Some(EndpointState::Ready) => &mut ready,
            Some(EndpointState::Draining) => &mut draining,
            None => &mut unready,
        };
        let ports = spec.target_ports.iter().map(|port| port.number);
        let ports = ports.filter(|port| *port > 0 && is_active(pod, *port));
        group.extend(ports.map(|port| SocketAddr::new(address, port)));
    }
    match ready.is_empty() {
        true => ready = draining,
        false => unready.extend(draining),
    }
    if spec.endpoint_picker_ref.is_none() {
        unready.clear();
    }
    for addresses in [&mut ready, &mut unready] {
        addresses.sort_unstable();
        addresses.dedup();
    }
    unready.retain(|address| ready.binary_search(address).is_err());
    match unready.is_empty() {
        true => Endpoints::Addresses(ready),
        false => Endpoints::Unready {
            addresses: ready,
            unready,
        },
    }
}

/// Reports whether a pod serves a target port. Pickers read the annotation in the same way.
fn is_active(pod: &Pod, port: u16) -> bool {
    let Some(ports) = pod.metadata.annotations.get(ACTIVE_PORTS) else {
        return true;
    };
    ports.split(',').any(|it| it.trim().parse() == Ok(port))
}

#[cfg(test)]
mod tests;
