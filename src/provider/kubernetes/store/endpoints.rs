//! Endpoints where requests found none wait for the policies that are older, as all does that can make something served. Owns
//! that nothing else of EndpointSlices and Pods waits: removed endpoints get no requests, and those that join others do.

use std::collections::BTreeSet;
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::deferrals::Wait;
use super::{Store, Versions};
use crate::api::core::{EndpointSlice, SliceEndpoint, SlicePort};
use crate::api::pod::Pod;
use crate::api::release_backend::{BelowMinReady, ReleaseBackend};
use crate::api::service_import::OWNER_LABELS;
use crate::api::{Object, ObjectMeta, ObjectRef, Resource};

/// What requests reach through an endpoint.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Reached<'a> {
    /// The label by which the EndpointSlice names a Service or a ServiceImport, and its value.
    owner: (&'a str, &'a str),
    /// Name and protocol of the port.
    port: (Option<&'a str>, Option<&'a str>),
    /// A label by which a ReleaseBackend splits, and its value; `None` for all releases together.
    release: Option<(&'a str, &'a str)>,
    /// The address of an endpoint that is ready, where these count; `None` for all endpoints together.
    endpoint: Option<&'a str>,
}

/// What a version adds where requests found no endpoint.
struct Opening {
    /// What is published until the policies are known.
    meanwhile: Option<Object>,
    /// What is published when the first version would be that waits: what it adds, as far as the new one has it.
    next: Option<Object>,
    /// Whether the version before adds the same.
    is_repeated: bool,
}

/// The pods of a namespace: their last versions, or the published ones.
struct Pods<'a> {
    store: &'a Store,
    namespace: &'a str,
    /// The labels by which ReleaseBackends split.
    splits: BTreeSet<&'a str>,
    /// Whether a release may get no request before several of its endpoints are ready.
    counts_ready: bool,
    is_published: bool,
}

impl Store {
    /// Stores a version of an EndpointSlice or a Pod. Returns whether something of it is to be published at once.
    pub(super) fn replace_endpoints(
        &mut self,
        name: &ObjectRef,
        object: &Object,
        known: &Versions,
    ) -> bool {
        if !self.snapshot.insert(object.clone()) {
            return false;
        }
        let opening = match object {
            Object::EndpointSlice(slice) => self.opened_by_slice(slice, known),
            Object::Pod(pod) => self.opened_by_pod(pod, known),
            _ => None,
        };
        let Some(opening) = opening else {
            self.deferred.remove(name);
            return true;
        };
        let after = match known.held {
            Some((_, after)) if opening.is_repeated => after,
            _ => self.moments.next(),
        };
        if self.moments.is_past(after) {
            self.deferred.remove(name);
            return true;
        }
        let is_changed = opening.meanwhile.as_ref() != known.published();
        let wait = Wait::new(Vec::new(), after);
        self.deferred
            .hold_part(name, opening.meanwhile, opening.next, wait);
        is_changed
    }

    /// Returns what an EndpointSlice adds. Its endpoints that join others are published meanwhile.
    fn opened_by_slice(&self, slice: &EndpointSlice, known: &Versions) -> Option<Opening> {
        let namespace = &slice.metadata.namespace;
        let (last, published) = (
            self.pods_of(namespace, false),
            self.pods_of(namespace, true),
        );
        let new = last.reached(slice);
        let own = known.published().and_then(as_slice);
        let mut open = own.map(|it| published.reached(it)).unwrap_or_default();
        if new.is_subset(&open) {
            return None;
        }
        let had_endpoints = !open.is_empty();
        let slices = self.snapshot.endpoint_slices.in_namespace(namespace);
        let slices = self.published_in(namespace, slices, as_slice);
        let others = slices.filter(|it| it.metadata.name != slice.metadata.name);
        for other in others.filter(|it| has_same_owner(it, slice)) {
            open.extend(published.reached(other));
        }
        let opened: BTreeSet<_> = new.difference(&open).cloned().collect();
        if opened.is_empty() {
            return None;
        }
        let before = known.last.as_ref().and_then(as_slice);
        let before = before.map(|it| last.reached(it)).unwrap_or_default();
        let part = last.part(slice, &open);
        let joins_others = !last.reached(&part).is_empty();
        let meanwhile = match had_endpoints || joins_others {
            true => Some(Arc::new(part).into()),
            false => known.published().cloned(),
        };
        let next = known.waiting().and_then(as_slice).map(|waiting| {
            let mut open = open.clone();
            open.extend(last.reached(waiting));
            Arc::new(last.part(slice, &open)).into()
        });
        Some(Opening {
            meanwhile,
            next,
            is_repeated: opened.is_subset(&before),
        })
    }

    /// Returns what a Pod adds: it gets requests where no other one with its labels does, or its labels make a release of an
    /// endpoint that an EndpointSlice has already.
    fn opened_by_pod(&self, pod: &Pod, known: &Versions) -> Option<Opening> {
        let ObjectMeta {
            namespace, labels, ..
        } = &pod.metadata;
        let own = known.published().and_then(as_pod);
        let counts_ready = self.counts_ready(namespace);
        let opens = |gets: fn(&Pod) -> bool| {
            let pods = self.snapshot.pods.in_namespace(namespace);
            let pods = self.published_in(namespace, pods, as_pod);
            let others = pods.filter(|it| it.metadata.name != pod.metadata.name);
            let others = others.filter(|_| !counts_ready);
            let mut published = own.into_iter().chain(others);
            gets(pod) && !published.any(|it| gets(it) && is_alike(it, pod))
        };
        let mut pools = self.snapshot.inference_pools.in_namespace(namespace);
        // Pickers choose pods that are not ready, too.
        let is_first = opens(gets_requests) || pools.next().is_some() && opens(has_address);
        let is_named = || {
            let mut slices = self.snapshot.endpoint_slices.in_namespace(namespace);
            let is_pod = |it: &SliceEndpoint| it.pod_name() == Some(&*pod.metadata.name);
            slices.any(|slice| slice.endpoints.iter().any(is_pod))
        };
        let is_relabelled = own.is_none_or(|own| own.metadata.labels != *labels);
        (is_first || is_relabelled && is_named()).then(|| Opening {
            meanwhile: own.map(|own| Arc::new(part_of_pod(own, pod)).into()),
            next: known
                .waiting()
                .and_then(as_pod)
                .map(|waiting| Arc::new(part_of_pod(waiting, pod)).into()),
            is_repeated: known
                .last
                .as_ref()
                .and_then(as_pod)
                .is_some_and(|last| is_alike(last, pod) && !gets_more(last, pod)),
        })
    }

    /// Returns the published versions of the objects of a kind in a namespace, of which these are the last ones.
    fn published_in<'a, T: Resource + 'a>(
        &'a self,
        namespace: &'a str,
        last: impl Iterator<Item = &'a Arc<T>>,
        read: fn(&'a Object) -> Option<&'a T>,
    ) -> impl Iterator<Item = &'a T> {
        let first = ObjectRef::new(T::GROUP, T::KIND, namespace, "");
        let held = self.deferred.published_from(first);
        let held = held.take_while(move |(it, _)| {
            (&*it.group, &*it.kind) == (T::GROUP, T::KIND) && *it.namespace == *namespace
        });
        // Both are in the order of names: a look-up of each object would cost more in a namespace with many.
        let mut held = held.peekable();
        last.filter_map(move |last| {
            let name = &*last.meta().name;
            while held.next_if(|(it, _)| *it.name < *name).is_some() {}
            match held.next_if(|(it, _)| *it.name == *name) {
                Some((_, published)) => published.and_then(read),
                None => Some(&**last),
            }
        })
    }

    /// Returns the published version of an object of which this is the last one.
    fn published_version<'a, T: Resource>(
        &'a self,
        last: &'a T,
        read: fn(&'a Object) -> Option<&'a T>,
    ) -> Option<&'a T> {
        let ObjectMeta {
            namespace, name, ..
        } = last.meta();
        let name = ObjectRef::new(T::GROUP, T::KIND, namespace, name);
        match self.deferred.published(&name) {
            Some((published, _)) => published.and_then(read),
            None => Some(last),
        }
    }

    /// Returns the ReleaseBackends of a namespace: both versions while one waits.
    pub(super) fn release_backends<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a ReleaseBackend> {
        let backends = self.snapshot.release_backends.in_namespace(namespace);
        backends.flat_map(move |last| {
            let published = self.published_version(&**last, as_release_backend);
            iter::once(&**last).chain(published)
        })
    }

    /// Reports whether a release in a namespace may get no request before several of its endpoints are ready.
    fn counts_ready(&self, namespace: &str) -> bool {
        let mut backends = self.release_backends(namespace);
        backends.any(|it| it.spec.below_min_ready == BelowMinReady::Unavailable)
    }

    fn pods_of<'a>(&'a self, namespace: &'a str, is_published: bool) -> Pods<'a> {
        let backends = self.release_backends(namespace);
        Pods {
            store: self,
            namespace,
            splits: backends.map(|it| it.spec.split_by.as_str()).collect(),
            counts_ready: self.counts_ready(namespace),
            is_published,
        }
    }
}

impl<'a> Pods<'a> {
    fn find(&self, name: &str) -> Option<&'a Pod> {
        let last = self.store.snapshot.pods.get(self.namespace, name)?;
        match self.is_published {
            true => self.store.published_version(&**last, as_pod),
            false => Some(last),
        }
    }

    /// Returns what is reached through the endpoints of an EndpointSlice that may get requests.
    fn reached(&self, slice: &'a EndpointSlice) -> BTreeSet<Reached<'a>> {
        let pairs = slice
            .ports
            .iter()
            .flat_map(|port| slice.endpoints.iter().map(move |endpoint| (port, endpoint)));
        pairs
            .flat_map(|(port, endpoint)| self.through(slice, port, endpoint))
            .collect()
    }

    /// Returns what is reached through an endpoint at a port; nothing if it may get no requests.
    fn through(
        &self,
        slice: &'a EndpointSlice,
        port: &'a SlicePort,
        endpoint: &'a SliceEndpoint,
    ) -> Vec<Reached<'a>> {
        let address = endpoint.addresses.first();
        let has_address = address.is_some_and(|it| it.parse::<IpAddr>().is_ok());
        let is_usable = has_address && port.port.is_some() && slice.address_type != "FQDN";
        if !is_usable || !endpoint.conditions.may_get_requests() {
            return Vec::new();
        }
        // Most namespaces have no ReleaseBackend.
        let name = endpoint.pod_name().filter(|_| !self.splits.is_empty());
        let pod = name.and_then(|name| self.find(name));
        let splits = pod.into_iter().flat_map(|pod| {
            let labels = &pod.metadata.labels;
            let splits = self.splits.iter();
            splits.filter_map(move |label| Some((*label, labels.get(*label)?.as_str())))
        });
        let is_counted = self.counts_ready && endpoint.conditions.is_ready();
        let counted = address.filter(|_| is_counted).map(|it| &**it);
        let releases = splits.flat_map(|split| {
            let each = iter::once(None).chain(counted.map(Some));
            each.map(move |endpoint| (Some(split), endpoint))
        });
        let releases: Vec<_> = iter::once((None, None)).chain(releases).collect();
        let reached = owners(slice).flat_map(|owner| {
            releases.iter().map(move |(release, endpoint)| Reached {
                owner,
                port: (port.name.as_deref(), port.protocol.as_deref()),
                release: *release,
                endpoint: *endpoint,
            })
        });
        reached.collect()
    }

    /// Returns a version of an EndpointSlice whose endpoints add nothing to what is open.
    fn part(&self, slice: &'a EndpointSlice, open: &BTreeSet<Reached<'a>>) -> EndpointSlice {
        let is_open = |port: &'a SlicePort, endpoint: &'a SliceEndpoint| {
            let reached = self.through(slice, port, endpoint);
            reached.iter().all(|it| open.contains(it))
        };
        let joins = |port: &'a SlicePort, endpoint: &'a SliceEndpoint| {
            is_open(port, endpoint) && !self.through(slice, port, endpoint).is_empty()
        };
        let ports = slice.ports.iter();
        let ports: Vec<_> = ports
            .filter(|&port| slice.endpoints.iter().any(|it| joins(port, it)))
            .collect();
        let endpoints = slice.endpoints.iter();
        let endpoints = endpoints.filter(|it| ports.iter().all(|&port| is_open(port, it)));
        EndpointSlice {
            metadata: slice.metadata.clone(),
            address_type: slice.address_type.clone(),
            endpoints: endpoints.cloned().collect(),
            ports: ports.into_iter().cloned().collect(),
        }
    }
}

fn as_slice(object: &Object) -> Option<&EndpointSlice> {
    match object {
        Object::EndpointSlice(slice) => Some(slice),
        _ => None,
    }
}

fn as_pod(object: &Object) -> Option<&Pod> {
    match object {
        Object::Pod(pod) => Some(pod),
        _ => None,
    }
}

fn as_release_backend(object: &Object) -> Option<&ReleaseBackend> {
    match object {
        Object::ReleaseBackend(backend) => Some(backend),
        _ => None,
    }
}

/// Returns the labels by which an EndpointSlice names the objects whose endpoints it has, and their values.
fn owners(slice: &EndpointSlice) -> impl Iterator<Item = (&str, &str)> {
    let labels = &slice.metadata.labels;
    let owners = OWNER_LABELS.into_iter();
    owners.filter_map(move |label| Some((label, labels.get(label)?.as_str())))
}

fn has_same_owner(one: &EndpointSlice, other: &EndpointSlice) -> bool {
    owners(one).any(|owner| owners(other).any(|it| it == owner))
}

/// Reports whether a pod that labels select gets requests.
fn gets_requests(pod: &Pod) -> bool {
    pod.status.is_ready && has_address(pod)
}

fn has_address(pod: &Pod) -> bool {
    !pod.status.has_ended && (pod.status.pod_ip.is_some() || !pod.status.pod_ips.is_empty())
}

/// Reports whether a version of a pod gets requests, whoever balances them, that the one before does not get.
fn gets_more(before: &Pod, pod: &Pod) -> bool {
    let more = |gets: fn(&Pod) -> bool| gets(pod) && !gets(before);
    more(gets_requests) || more(has_address)
}

/// Returns an earlier version of a pod with what the new one ends: a pod that is not ready gets no requests.
fn part_of_pod(earlier: &Pod, pod: &Pod) -> Pod {
    let mut part = earlier.clone();
    part.metadata.deletion_timestamp = pod.metadata.deletion_timestamp;
    if !gets_more(earlier, pod) {
        part.status = pod.status.clone();
    }
    part
}

/// Reports whether labels, named ports, and the ports that pods serve of a pool select both pods or none.
fn is_alike(one: &Pod, other: &Pod) -> bool {
    let (of_one, of_other) = (&one.metadata, &other.metadata);
    // Pods have no other annotations than that of the ports.
    of_one.labels == of_other.labels
        && of_one.annotations == of_other.annotations
        && one.spec == other.spec
}
