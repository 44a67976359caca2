//! Parameters of GatewayClasses and Gateways: resolves references, and merges the Gateway's parameters over those of
//! its class. Must not know what parameters are for.

use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::{Gateway, GatewayClass};
use crate::api::parameters::{GROUP, GatewayParameters, Parameters};
use crate::status::Note;

use super::Input;
use super::reason::{Fault, Reason};

/// Returns the parameters of a class.
pub(super) fn of_class(input: &Input<'_>, class: &GatewayClass) -> Result<Arc<Parameters>, Fault> {
    let Some(reference) = &class.spec.parameters_ref else {
        return Ok(Arc::default());
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
    Ok(Arc::new(parameters.spec.clone()))
}

/// Returns the parameters of a Gateway, merged over those of its class.
pub(super) fn of_gateway(
    input: &Input<'_>,
    gateway: &Gateway,
    of_class: &Arc<Parameters>,
) -> Result<Arc<Parameters>, Fault> {
    let infrastructure = gateway.spec.infrastructure.as_ref();
    let reference =
        infrastructure.and_then(|infrastructure| infrastructure.parameters_ref.as_ref());
    let Some(reference) = reference else {
        return Ok(Arc::clone(of_class));
    };
    let field = "spec.infrastructure.parametersRef";
    check_kind(field, &reference.group, &reference.kind, &reference.name)?;
    let own = find(input, field, &gateway.metadata.namespace, &reference.name)?;
    let merged = own.spec.over(Parameters::clone(of_class));
    check_bounds(own, &merged, &gateway.spec.gateway_class_name)?;
    Ok(Arc::new(merged))
}

/// Returns notes on parameters in standalone mode, where no pods are created.
pub(super) fn without_effect(input: &Input<'_>) -> Vec<Note> {
    let all = input.snapshot.gateway_parameters.iter();
    all.map(|parameters| Note {
        object: parameters.object_ref(),
        message: "not applied: it configures pods that `portcullis controller` creates; use the flags of `portcullis \
                  run` instead"
            .to_owned(),
    })
    .collect()
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
    let found = input.snapshot.gateway_parameters.get(namespace, name);
    found.map(AsRef::as_ref).ok_or_else(|| {
        invalid(format!(
            "{field} names {} {namespace}/{name}, which does not exist; create it or remove {field}",
            GatewayParameters::KIND
        ))
    })
}

/// Checks the one rule that two valid objects can violate when they are merged.
fn check_bounds(own: &GatewayParameters, merged: &Parameters, class: &str) -> Result<(), Fault> {
    let autoscaling = merged.autoscaling.as_ref();
    let bounds = autoscaling.and_then(|bounds| bounds.min_replicas.zip(bounds.max_replicas));
    match bounds {
        Some((min, max)) if min > max => {
            let own = own.object_ref();
            Err(invalid(format!(
                "autoscaling.minReplicas ({min}) exceeds maxReplicas ({max}) when {own} overrides the parameters of \
                 GatewayClass {class}; set both in {own}"
            )))
        }
        _ => Ok(()),
    }
}

fn invalid(message: String) -> Fault {
    Fault::new(Reason::InvalidParameters, message)
}
