//! Parameters of GatewayClasses and Gateways: resolves references, merges the Gateway's parameters over those of its
//! class, and refuses what the operator does not permit. Must not know what parameters are for.

use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::{Gateway, GatewayClass};
use crate::api::parameters::{GROUP, GatewayParameters, Parameters, Workload};
use crate::ir::ObjectRef;
use crate::status::Note;

use super::infrastructure;
use crate::translate::changes::Changes;
use crate::translate::input::{Input, Mode};
use crate::translate::reason::{Fault, Reason};
use crate::translate::report::Report;

/// Parameters with what they may do.
#[derive(Clone, Default)]
pub(in crate::translate) struct Granted {
    pub(in crate::translate) parameters: Arc<Parameters>,
    /// Whether they are the operator's own.
    is_of_operator: bool,
    /// Whether pods on the host network must not bind ports below 1024.
    pub(super) only_unprivileged_ports: bool,
}

/// Returns the parameters of a class.
pub(in crate::translate) fn of_class(
    input: &Input<'_>,
    class: &GatewayClass,
) -> Result<Granted, Fault> {
    let Some(reference) = &class.spec.parameters_ref else {
        return Ok(Granted::default());
    };
    let field = "spec.parametersRef";
    check_kind(field, &reference.group, &reference.kind, &reference.name)?;
    let name = &reference.name;
    let Some(namespace) = &reference.namespace else {
        return Err(invalid(format!(
            "{field}.namespace is missing: a GatewayClass has no namespace; set the namespace of GatewayParameters {name}"
        )));
    };
    let parameters = find(input, field, namespace, name)?;
    check_alone(parameters)?;
    let permissions = input.options.infrastructure.as_deref();
    // A class refers to an object that everybody may edit who has rights in its namespace.
    let is_of_operator =
        permissions.is_none_or(|permissions| *namespace == permissions.operator_namespace);
    if let Some(permissions) = permissions.filter(|_| !is_of_operator) {
        let none = Parameters::default();
        let refused = infrastructure::check_parameters(permissions, parameters, &none);
        refused.map_or(Ok(()), |fault| {
            let remedy = format!(
                "{}; parameters of a class may set everything in namespace {}",
                fault.message, permissions.operator_namespace
            );
            Err(invalid(remedy))
        })?;
    }
    Ok(Granted {
        parameters: Arc::new(parameters.spec.clone()),
        is_of_operator,
        only_unprivileged_ports: false,
    })
}

/// Returns the parameters of a Gateway, merged over those of its class.
pub(in crate::translate) fn of_gateway(
    input: &Input<'_>,
    gateway: &Gateway,
    of_class: &Granted,
) -> Result<Granted, Fault> {
    let permissions = input.options.infrastructure.as_deref();
    let infrastructure = gateway.spec.infrastructure.as_ref();
    let reference =
        infrastructure.and_then(|infrastructure| infrastructure.parameters_ref.as_ref());
    let mut granted = of_class.clone();
    if let Some(reference) = reference {
        let field = "spec.infrastructure.parametersRef";
        check_kind(field, &reference.group, &reference.kind, &reference.name)?;
        let own = find(input, field, &gateway.metadata.namespace, &reference.name)?;
        check_alone(own)?;
        let class = &of_class.parameters;
        let refused = permissions
            .and_then(|permissions| infrastructure::check_parameters(permissions, own, class));
        refused.map_or(Ok(()), Err)?;
        let merged = own.spec.over(Parameters::clone(class));
        check_merged(own, &merged, &gateway.spec.gateway_class_name)?;
        granted.parameters = Arc::new(merged);
    }
    if let Some(permissions) = permissions {
        let none = Parameters::default();
        let of_operator = match of_class.is_of_operator {
            true => &*of_class.parameters,
            false => &none,
        };
        granted.only_unprivileged_ports =
            infrastructure::is_restricted(permissions, &granted.parameters, of_operator);
        let is_restricted = granted.only_unprivileged_ports;
        let refused = infrastructure::check_gateway(permissions, gateway, is_restricted);
        refused.map_or(Ok(()), Err)?;
    }
    Ok(granted)
}

/// Updates the notes on parameters.
pub(in crate::translate) fn step(input: &Input<'_>, changes: &Changes, report: &mut Report) {
    for name in changes.of::<GatewayParameters>() {
        report.notes.replace(&name, without_effect(input, &name));
    }
}

/// Returns the note on parameters in standalone mode, where no pods are created.
fn without_effect(input: &Input<'_>, name: &ObjectRef) -> Vec<Note> {
    let is_standalone = input.options.mode == Mode::Standalone;
    let note = Note {
        object: name.clone(),
        message: "not applied: it configures pods that `portcullis controller` creates; use the flags of `portcullis \
                  run` instead"
            .to_owned(),
    };
    let exists = is_standalone && input.exists(name);
    exists.then_some(note).into_iter().collect()
}

fn check_kind(field: &str, group: &str, kind: &str, name: &str) -> Result<(), Fault> {
    let expected = GatewayParameters::KIND;
    if (group, kind) == (GROUP, expected) {
        return Ok(());
    }
    Err(invalid(format!(
        "{field} names {kind} {name} of group {group:?}; only {expected} of group {GROUP} are supported: name one or remove \
         {field}"
    )))
}

fn find<'a>(
    input: &Input<'a>,
    field: &str,
    namespace: &str,
    name: &str,
) -> Result<&'a GatewayParameters, Fault> {
    let found = input.get::<GatewayParameters>(namespace, name);
    found.map(AsRef::as_ref).ok_or_else(|| {
        let name = ObjectRef::new(GROUP, GatewayParameters::KIND, namespace, name);
        let why = match input.is_invalid(&name) {
            true => "is invalid; correct it",
            false => "does not exist; create it",
        };
        invalid(format!(
            "{field} names {name}, which {why} or remove {field}"
        ))
    })
}

/// Checks the rules that the parameters of everybody have to meet, and that the CRD cannot check.
fn check_alone(parameters: &GatewayParameters) -> Result<(), Fault> {
    infrastructure::check_rules_of_patches(parameters).map_or(Ok(()), Err)
}

/// Checks the rules that two valid objects can violate when they are merged.
fn check_merged(own: &GatewayParameters, merged: &Parameters, class: &str) -> Result<(), Fault> {
    let bounds = merged.autoscaling.as_ref();
    let bounds = bounds.and_then(|bounds| bounds.min_replicas.zip(bounds.max_replicas));
    let service = &merged.service;
    let families = service.ip_families.as_ref().map_or(0, Vec::len);
    let is_single = service.ip_family_policy.as_deref() == Some("SingleStack");
    let wrong = match bounds {
        Some((min, max)) if min > max => {
            let fields = format!("autoscaling.minReplicas ({min}) exceeds maxReplicas ({max})");
            Some(fields)
        }
        _ if families > 1 && is_single => {
            let fields = "service.ipFamilies has two families with ipFamilyPolicy SingleStack";
            Some(fields.to_owned())
        }
        _ => unknown_volume(&merged.workload).map(|(path, volume)| {
            let fields = format!(
                "workload.volumeMounts[{path}] names volume {volume}, which workload.volumes does not have"
            );
            fields
        }),
    };
    wrong.map_or(Ok(()), |wrong| {
        let own = own.object_ref();
        Err(invalid(format!(
            "{wrong} when {own} overrides the parameters of GatewayClass {class}; set both in {own}"
        )))
    })
}

/// Returns the path and the volume of a mount whose volume does not exist.
fn unknown_volume(workload: &Workload) -> Option<(&str, &str)> {
    let exists = |name: &str| {
        let mut volumes = workload.volumes.iter().flatten();
        volumes.any(|volume| volume.name == name)
    };
    let mut mounts = workload.volume_mounts.iter().flatten();
    let unknown = mounts.find(|mount| !exists(&mount.name))?;
    Some((&unknown.mount_path, &unknown.name))
}

fn invalid(message: String) -> Fault {
    Fault::new(Reason::InvalidParameters, message)
}
