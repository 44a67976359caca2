//! The desired objects of all Gateways, from one translation to the next. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::translated::Translated;
use crate::ir::ObjectRef;
use crate::provision::{self, Child, DesiredState, StreamEndpoint};

/// Settings that all pods of Gateways share.
pub struct PodSettings {
    /// Image, unless GatewayParameters set one.
    pub image: String,
    /// URL of the configuration stream.
    pub controller_url: String,
    /// Arguments of all pods, in addition to those from GatewayParameters.
    pub arguments: Vec<String>,
}

/// The desired objects of all Gateways.
#[derive(Debug, Default)]
pub(super) struct DesiredObjects {
    state: DesiredState,
    /// How pods reach the controller.
    endpoint: StreamEndpoint,
}

impl DesiredObjects {
    /// Returns the desired objects.
    pub(super) fn state(&self) -> &DesiredState {
        &self.state
    }

    /// Computes the desired objects of the changed Gateways; of all if `endpoint` is another one. Returns the Gateways
    /// whose desired objects differ from those before.
    pub(super) fn follow(
        &mut self,
        now: &Translated,
        changed: &BTreeSet<ObjectRef>,
        pods: &PodSettings,
        endpoint: &StreamEndpoint,
    ) -> BTreeSet<ObjectRef> {
        let mut names = changed.clone();
        if self.endpoint != *endpoint {
            self.endpoint = endpoint.clone();
            names.extend(now.report.gateways.keys().cloned());
        }
        names.retain(|name| self.update(name, now, pods));
        names
    }

    /// Computes the desired objects of a Gateway. One that is being deleted, or whose class or parameters are invalid,
    /// retains its existing objects. Returns whether they differ from those before.
    fn update(&mut self, name: &ObjectRef, now: &Translated, pods: &PodSettings) -> bool {
        let is_managed = now.report.gateways.contains_key(name);
        let gateway = now.snapshot.gateways.get(&name.namespace, &name.name);
        let gateway = gateway.filter(|gateway| gateway.metadata.deletion_timestamp.is_none());
        let source = gateway.zip(now.data_planes.get(name));
        let children = source.filter(|_| is_managed).map(|(gateway, data_plane)| {
            let children = provision::children(gateway, data_plane, &pods.image, &self.endpoint);
            Arc::<[Child]>::from(children)
        });
        let is_retained = is_managed && children.is_none();
        let DesiredState {
            children: known,
            retained,
        } = &mut self.state;
        let is_same =
            known.get(name) == children.as_ref() && retained.contains(name) == is_retained;
        if is_same {
            return false;
        }
        match children {
            Some(children) => drop(known.insert(name.clone(), children)),
            None => drop(known.remove(name)),
        }
        match is_retained {
            true => drop(retained.insert(name.clone())),
            false => drop(retained.remove(name)),
        }
        true
    }
}
