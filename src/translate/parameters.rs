//! Parameters of GatewayClasses and Gateways: which objects are named, and what the Gateway's over the class's come to.
//! Knows nothing of what parameters are for.

use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::{Gateway, GatewayClass};
use crate::api::parameters::{GROUP, GatewayParameters, Parameters};
use crate::status::Note;

use super::Input;
use super::reason::{Fault, Reason};

/// The parameters that a class gives to its Gateways.
pub(super) fn of_class(input: &Input<'_>, class: &GatewayClass) -> Result<Arc<Parameters>, Fault> {
    let Some(reference) = &class.spec.parameters_ref else {
        return Ok(Arc::default());
    };
    let place = "spec.parametersRef";
    check_kind(place, &reference.group, &reference.kind, &reference.name)?;
    let name = &reference.name;
    let Some(namespace) = &reference.namespace else {
        return Err(invalid(format!(
            "{place}.namespace is missing: a class has none of its own; write the one of GatewayParameters {name}"
        )));
    };
    let parameters = find(input, place, namespace, name)?;
    Ok(Arc::new(parameters.spec.clone()))
}

/// The parameters of a Gateway: its own over those of its class.
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
    let place = "spec.infrastructure.parametersRef";
    check_kind(place, &reference.group, &reference.kind, &reference.name)?;
    let own = find(input, place, &gateway.metadata.namespace, &reference.name)?;
    let merged = own.spec.over(Parameters::clone(of_class));
    check_bounds(own, &merged, &gateway.spec.gateway_class_name)?;
    Ok(Arc::new(merged))
}

/// Tells of parameters where no pods are made.
pub(super) fn without_effect(input: &Input<'_>) -> Vec<Note> {
    let all = input.snapshot.gateway_parameters.iter();
    all.map(|parameters| Note {
        object: parameters.object_ref(),
        message: "not applied: its values are for pods that `portcullis controller` makes; here, flags of \
                  `portcullis run` say the same"
            .to_owned(),
    })
    .collect()
}

fn check_kind(place: &str, group: &str, kind: &str, name: &str) -> Result<(), Fault> {
    let expected = GatewayParameters::KIND;
    if (group, kind) == (GROUP, expected) {
        return Ok(());
    }
    Err(invalid(format!(
        "{place} names {kind} {name} of group {group:?}, and parameters are of kind {expected} in group {GROUP}; name \
         such an object or remove {place}"
    )))
}

fn find<'a>(
    input: &Input<'a>,
    place: &str,
    namespace: &str,
    name: &str,
) -> Result<&'a GatewayParameters, Fault> {
    let found = input.snapshot.gateway_parameters.get(namespace, name);
    found.map(AsRef::as_ref).ok_or_else(|| {
        invalid(format!(
            "{place} names {} {namespace}/{name}, which does not exist; create it or remove {place}",
            GatewayParameters::KIND
        ))
    })
}

/// The one rule between fields that two valid objects can break together.
fn check_bounds(own: &GatewayParameters, merged: &Parameters, class: &str) -> Result<(), Fault> {
    let autoscaling = merged.autoscaling.as_ref();
    let bounds = autoscaling.and_then(|bounds| bounds.min_replicas.zip(bounds.max_replicas));
    match bounds {
        Some((min, max)) if min > max => {
            let own = own.object_ref();
            Err(invalid(format!(
                "autoscaling.minReplicas is {min} and maxReplicas {max} where {own} goes over the parameters of \
                 GatewayClass {class}; write both into {own}"
            )))
        }
        _ => Ok(()),
    }
}

fn invalid(message: String) -> Fault {
    Fault::new(Reason::InvalidParameters, message)
}
