//! What Gateways and GatewayParameters ask of the cluster, compared with what the operator permits. The controller
//! creates the objects of a Gateway with its own rights: without this check, everybody who may write a Gateway or
//! GatewayParameters would have them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::api::Resource;
use crate::api::gateway::Gateway;
use crate::api::parameters::{GatewayParameters, Parameters, Workload};
use crate::provision::data_plane::FIRST_UNPRIVILEGED_PORT;
use crate::provision::patch;
use crate::provision::patch::Patched;
use crate::settings::permissions::{HostNetwork, InfrastructurePermissions};

use crate::translate::reason::{Fault, Reason};

/// Flags of the controller that permit a field.
const ALLOW_IMAGE: &str = "--allow-image";
const ALLOW_HOST_NETWORK: &str = "--allow-host-network";
const ALLOW_TOLERATION: &str = "--allow-toleration";
const ALLOW_PRIORITY_CLASS: &str = "--allow-priority-class";
const ALLOW_ANNOTATION: &str = "--allow-annotation";
const ALLOW_LABEL: &str = "--allow-label";
const ALLOW_ENV: &str = "--allow-env";
const ALLOW_VOLUME: &str = "--allow-volume";
const ALLOW_PATCH: &str = "--allow-patch";
const ALLOW_NETWORK_POLICY: &str = "--allow-network-policy";

/// Fields of one object that are not permitted.
struct Refusals {
    /// The object, as messages name it.
    object: String,
    fields: Vec<String>,
}

impl Refusals {
    fn of(object: &impl Resource) -> Self {
        Self {
            object: object.object_ref().to_string(),
            fields: Vec::new(),
        }
    }

    fn add(&mut self, field: &str, flag: &str) {
        self.fields.push(format!("{field} ({flag})"));
    }

    fn fault(self) -> Option<Fault> {
        let Self { object, fields } = self;
        (!fields.is_empty()).then(|| {
            let message = format!(
                "{object} sets what the operator of this cluster does not permit: {}; remove it, or ask the operator for \
                 the flag of the controller in parentheses",
                fields.join(", ")
            );
            Fault::new(Reason::InvalidParameters, message)
        })
    }
}

/// Returns the fault of parameters that set more than is permitted. Values that the parameters of the class have too
/// are permitted.
pub(super) fn check_parameters(
    permissions: &InfrastructurePermissions,
    object: &GatewayParameters,
    of_class: &Parameters,
) -> Option<Fault> {
    let mut refusals = Refusals::of(object);
    let (spec, class) = (&object.spec, of_class);
    check_workload(permissions, &spec.workload, &class.workload, &mut refusals);
    check_nodes(permissions, &spec.workload, &class.workload, &mut refusals);
    check_container(permissions, &spec.workload, &class.workload, &mut refusals);
    check_patches(permissions, spec, class, &mut refusals);
    // Policies add up: another one admits more, whatever those of the namespace deny.
    let policy = spec.network_policy.as_ref();
    if policy.is_some() && policy != class.network_policy.as_ref() && !permissions.network_policy {
        refusals.add("spec.networkPolicy", ALLOW_NETWORK_POLICY);
    }
    let maps = [
        (
            "spec.workload.annotations",
            &spec.workload.annotations,
            &class.workload.annotations,
        ),
        (
            "spec.service.annotations",
            &spec.service.annotations,
            &class.service.annotations,
        ),
    ];
    for (field, own, class) in maps {
        let is_permitted = |key: &str| permissions.permits_annotation(key);
        let own = own.iter().flatten();
        let foreign = own.filter(|(key, value)| class_value(class, key) != Some(value));
        for (key, _) in foreign.filter(|(key, _)| !is_permitted(key)) {
            refusals.add(&format!("{field}[{key}]"), ALLOW_ANNOTATION);
        }
    }
    refusals.fault()
}

fn check_workload(
    permissions: &InfrastructurePermissions,
    own: &Workload,
    class: &Workload,
    refusals: &mut Refusals,
) {
    // Destructured, so that a new field fails to compile until it is decided here.
    let Workload {
        image,
        priority_class_name,
        labels,
        // Checked by `check_nodes`.
        host_network: _,
        tolerations: _,
        node_selector: _,
        // Checked with those of the Service.
        annotations: _,
        patch: _,
        // Checked by `check_container`.
        env: _,
        volumes: _,
        // Below /mnt/, where the image has nothing.
        volume_mounts: _,
        // What any pod of the namespace may have; quotas of the namespace apply.
        kind: _,
        replicas: _,
        image_pull_policy: _,
        image_pull_secrets: _,
        resources: _,
        topology_spread_constraints: _,
        // Without terms for pods of other namespaces, which could keep those from a node or zone.
        affinity: _,
    } = own;
    let differs = |image: &&String| class.image.as_ref() != Some(image);
    if let Some(image) = image.as_ref().filter(differs)
        && !permissions.permits_image(image)
    {
        refusals.add(&format!("spec.workload.image {image}"), ALLOW_IMAGE);
    }
    let differs = |name: &&String| class.priority_class_name.as_ref() != Some(name);
    if let Some(name) = priority_class_name.as_ref().filter(differs)
        && !permissions.permits_priority_class(name)
    {
        let field = format!("spec.workload.priorityClassName {name}");
        refusals.add(&field, ALLOW_PRIORITY_CLASS);
    }
    for (key, value) in labels.iter().flatten() {
        let is_of_class = class_value(&class.labels, key) == Some(value);
        if !is_of_class && !permissions.permits_label(key) {
            refusals.add(&format!("spec.workload.labels[{key}]"), ALLOW_LABEL);
        }
    }
}

/// Checks the nodes that pods run on, and what they get from them.
fn check_nodes(
    permissions: &InfrastructurePermissions,
    own: &Workload,
    class: &Workload,
    refusals: &mut Refusals,
) {
    let wants_host = own.host_network == Some(true) && class.host_network != Some(true);
    if wants_host && permissions.host_network == HostNetwork::None {
        refusals.add("spec.workload.hostNetwork", ALLOW_HOST_NETWORK);
    }
    let of_class = class.tolerations.as_deref().unwrap_or_default();
    let asked = own.tolerations.iter().flatten().enumerate();
    for (index, toleration) in asked.filter(|(_, one)| !of_class.contains(one)) {
        let text = |field: &str| toleration.get(field).and_then(Value::as_str);
        if !permissions.permits_toleration(text("key"), text("effect")) {
            let key = text("key").filter(|key| !key.is_empty());
            let what = key.unwrap_or("of every taint");
            let field = format!("spec.workload.tolerations[{index}] {what}");
            refusals.add(&field, ALLOW_TOLERATION);
        }
    }
    // Otherwise a Gateway could take rights that its class has on some nodes to others.
    let effective = own.tolerations.as_deref().unwrap_or(of_class);
    let is_on_host = own.host_network.or(class.host_network) == Some(true);
    let has_rights = is_on_host || !effective.is_empty();
    if let Some(selector) = own.node_selector.as_ref().filter(|_| has_rights) {
        let required = class.node_selector.iter().flatten();
        for (key, value) in required.filter(|(key, value)| selector.get(*key) != Some(value)) {
            refusals.fields.push(format!(
                "spec.workload.nodeSelector without {key}: {value} of the class (its host network and tolerations are for these nodes only)"
            ));
        }
    }
}

/// Checks variables and volumes, with which a container may read, load and send what its image does not.
fn check_container(
    permissions: &InfrastructurePermissions,
    own: &Workload,
    class: &Workload,
    refusals: &mut Refusals,
) {
    let of_class = class.env.as_deref().unwrap_or_default();
    let asked = own.env.iter().flatten();
    for variable in asked.filter(|one| !of_class.contains(one)) {
        if !permissions.permits_env(&variable.name) {
            refusals.add(&format!("spec.workload.env[{}]", variable.name), ALLOW_ENV);
        }
    }
    let of_class = class.volumes.as_deref().unwrap_or_default();
    let asked = own.volumes.iter().flatten();
    for volume in asked.filter(|one| !of_class.contains(one)) {
        let kinds = volume.source.keys();
        for kind in kinds.filter(|kind| !permissions.permits_volume(kind)) {
            let field = format!("spec.workload.volumes[{}].{kind}", volume.name);
            refusals.add(&field, ALLOW_VOLUME);
        }
    }
}

/// Checks the fields that patches set. A patch replaces that of the class, so that fields count which only the class sets.
fn check_patches(
    permissions: &InfrastructurePermissions,
    own: &Parameters,
    class: &Parameters,
    refusals: &mut Refusals,
) {
    let none = Map::new();
    for (patched, place, patch) in patches(own) {
        let of_class = patches(class).find(|(of_class, ..)| *of_class == patched);
        let of_class = of_class.map_or(&none, |(_, _, patch)| patch);
        let fields = patch::differences(patched, patch, of_class);
        let refused = |field: &&String| !permissions.permits_patch(&format!("{place}.{field}"));
        for field in fields.iter().filter(refused) {
            refusals.add(&format!("{field} in spec.{place}.patch"), ALLOW_PATCH);
        }
    }
}

/// Returns the patches of parameters, with what they are for and the field that they are in.
fn patches(
    parameters: &Parameters,
) -> impl Iterator<Item = (Patched, &'static str, &Map<String, Value>)> {
    let workload = parameters.workload.patch.as_ref();
    let workload = workload.map(|patch| (Patched::Workload, "workload", patch));
    let service = parameters.service.patch.as_ref();
    let service = service.map(|patch| (Patched::Service, "service", patch));
    workload.into_iter().chain(service)
}

/// Returns the fault of parameters with a patch that must not be applied, not even from the operator.
pub(super) fn check_rules_of_patches(object: &GatewayParameters) -> Option<Fault> {
    let wrong = patches(&object.spec).flat_map(|(patched, place, patch)| {
        let wrong = patch::check(patched, patch).into_iter();
        wrong.map(move |wrong| format!("spec.{place}.patch: {wrong}"))
    });
    let wrong: Vec<_> = wrong.collect();
    (!wrong.is_empty()).then(|| {
        let message = format!(
            "{} has a patch that cannot be applied: {}",
            object.object_ref(),
            wrong.join("; ")
        );
        Fault::new(Reason::InvalidParameters, message)
    })
}

fn class_value<'a>(map: &'a Option<BTreeMap<String, String>>, key: &str) -> Option<&'a String> {
    map.as_ref().and_then(|map| map.get(key))
}

/// Returns the fault of a Gateway whose infrastructure labels or annotations are not permitted, or that needs a port
/// below 1024 on the host network without permission. `is_restricted` tells whether only other ports are permitted.
pub(super) fn check_gateway(
    permissions: &InfrastructurePermissions,
    gateway: &Gateway,
    is_restricted: bool,
) -> Option<Fault> {
    let mut refusals = Refusals::of(gateway);
    if let Some(infrastructure) = &gateway.spec.infrastructure {
        let labels = infrastructure.labels.keys();
        for key in labels.filter(|key| !permissions.permits_label(key)) {
            refusals.add(&format!("spec.infrastructure.labels[{key}]"), ALLOW_LABEL);
        }
        let annotations = infrastructure.annotations.keys();
        for key in annotations.filter(|key| !permissions.permits_annotation(key)) {
            let field = format!("spec.infrastructure.annotations[{key}]");
            refusals.add(&field, ALLOW_ANNOTATION);
        }
    }
    let listeners = gateway.spec.listeners.iter().enumerate();
    for (index, listener) in listeners.filter(|_| is_restricted) {
        if listener.port < FIRST_UNPRIVILEGED_PORT {
            let field = format!(
                "spec.listeners[{index}].port {} on the host network, which needs pods that run as root",
                listener.port
            );
            let flag = format!("{ALLOW_HOST_NETWORK}={}", HostNetwork::AllPorts);
            refusals.add(&field, &flag);
        }
    }
    refusals.fault()
}

/// Reports whether pods must not bind host ports below 1024: the host network is not one that the operator's own
/// parameters choose, and the flags permit other ports only.
pub(super) fn is_restricted(
    permissions: &InfrastructurePermissions,
    merged: &Parameters,
    of_operator: &Parameters,
) -> bool {
    let is_on_host = |parameters: &Parameters| parameters.workload.host_network == Some(true);
    is_on_host(merged)
        && !is_on_host(of_operator)
        && permissions.host_network < HostNetwork::AllPorts
}
