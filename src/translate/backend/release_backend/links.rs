//! The links of a ReleaseBackend: its load balancer, and the pods that are endpoints.

use crate::api::core::{EndpointSlice, Service, SliceEndpoint};
use crate::api::pod::Pod;
use crate::api::{Object, Resource};
use crate::ir::ObjectRef;

use super::super::load_balancer::{Chosen, marked};
use super::parsed::chosen;
use crate::translate::backend::kind::Kinds;
use crate::translate::links::Collector;

/// Collects the links. Omits pods that cannot be endpoints.
pub(super) fn links(object: &Object, all: Kinds, collector: &mut Collector<'_>) {
    let Object::ReleaseBackend(backend) = object else {
        return;
    };
    let input = collector.input();
    let namespace = &backend.metadata.namespace;
    let permitted = &input.options.permissions.backend_kinds;
    let kinds = all.enabled(permitted);
    if backend.spec.load_balancer.is_empty() {
        collector.depends_on_all(Service::KIND);
        // Several labelled objects are a fault, which a data plane reports only if it gets all of them.
        let marked = marked(&kinds, input, namespace);
        collector.refers_to_all(marked.into_iter().map(|(_, it)| it.object));
    }
    let Chosen { result, .. } = chosen(all, permitted, input, backend);
    let Ok((kind, load_balancer)) = result else {
        return;
    };
    collector.depends_on_object(&load_balancer.object);
    let found = (kind.find)(input, &load_balancer);
    let labels = found.map(|balanced| balanced.labels);
    let pod = |name: &str| ObjectRef::new(Pod::GROUP, Pod::KIND, namespace, name);
    match labels {
        Ok(Some(labels)) => {
            collector.depends_on_all(Pod::KIND);
            let selected = input.pods_labelled(namespace, &labels);
            collector.refers_to_all(selected.map(|pod| pod.object_ref()));
        }
        Ok(None) => {
            collector.depends_on_all(EndpointSlice::KIND);
            let slices = input.in_namespace::<EndpointSlice>(namespace);
            let is_own = |slice: &&_| all.owners(slice).any(|owner| owner == load_balancer.object);
            let own = slices.filter(|slice| is_own(&&***slice));
            let endpoints = own.flat_map(|slice| &slice.endpoints);
            let names = endpoints.filter_map(SliceEndpoint::pod_name);
            collector.refers_to_all(names.map(pod));
        }
        Err(_) => {}
    }
    collector.refers_to_all([load_balancer.object]);
}
