//! The links of an object to others, as far as translations follow them: one function per kind. A new kind is a
//! function here and a line in [`links`]. Must not know closures.
//!
//! The kinds are in one order: Gateways, ListenerSets, routes, backends, and objects that belong to backends. An object
//! refers only to later kinds and belongs only to earlier ones. A link against this order would create a cycle, whose
//! objects would keep each other in a closure.

use crate::api::gateway::{Gateway, GatewayClass, Listener, ListenerSet, NamespacesFrom};
use crate::api::grpc_route::{GrpcRoute, GrpcRule};
use crate::api::http_route::{HttpFilter, HttpRoute, HttpRule};
use crate::api::parameters::{GROUP, GatewayParameters};
use crate::api::policy::{BackendTlsValidation, TlsPolicy, UnservedRoute};
use crate::api::reference::{BackendObjectRef, BackendRef, ObjectReference, ParentRef, SecretRef};
use crate::api::traffic_policy::BackendTrafficPolicy;
use crate::api::{Object, Resource};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;

use super::super::attachment::{self, parent_name};
use super::super::{Input, backend, selector};

/// The links of an object. Every list is sorted, without duplicates.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Objects that it refers to with permission. They are in every closure that contains it.
    pub(super) refers_to: Vec<ObjectRef>,
    /// Objects that it belongs to. It is in every closure that contains one of them.
    pub(super) belongs_to: Vec<ObjectRef>,
    /// What else these links depend on.
    pub(super) depends_on: Vec<Source>,
    /// Whether it selects objects by the labels of their namespaces.
    pub(super) selects_namespaces: bool,
}

/// A dependency of links.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    /// An object.
    Object(ObjectRef),
    /// All ReferenceGrants of a namespace.
    GrantsOf(String),
    /// The set of Gateways in a namespace.
    GatewaysOf(String),
    /// All objects of a kind in a namespace.
    AllOf(&'static str, String),
}

/// Returns the links of an object.
pub(super) fn links(input: &Input<'_>, name: &ObjectRef, object: &Object) -> Links {
    let mut collector = Collector {
        input,
        name,
        links: Links::default(),
    };
    match object {
        Object::GatewayClass(class) => collector.gateway_class(class),
        Object::Gateway(gateway) => collector.gateway(gateway),
        Object::ListenerSet(set) => collector.listener_set(set),
        Object::HttpRoute(route) => collector.http_route(route),
        Object::GrpcRoute(route) => collector.grpc_route(route),
        Object::UnservedRoute(route) => collector.unserved_route(route),
        Object::BackendTlsPolicy(policy) => collector.tls_policy(&**policy),
        Object::BackendTlsOverride(policy) => collector.tls_policy(&**policy),
        Object::BackendTrafficPolicy(policy) => collector.traffic_policy(policy),
        Object::Service(_)
        | Object::ServiceImport(_)
        | Object::XBackend(_)
        | Object::ReleaseBackend(_) => backend::links(object, &mut collector),
        Object::EndpointSlice(slice) => collector.links.belongs_to.extend(backend::owners(slice)),
        Object::ReferenceGrant(_)
        | Object::GatewayParameters(_)
        | Object::Namespace(_)
        | Object::Pod(_)
        | Object::Secret(_)
        | Object::ConfigMap(_) => {}
    }
    let mut links = collector.links;
    sort(&mut links.refers_to);
    sort(&mut links.belongs_to);
    sort(&mut links.depends_on);
    links
}

/// Returns a node that represents all default Gateways: they refer to it, and routes that request them belong to it. No
/// object has this name.
fn default_gateways() -> ObjectRef {
    ObjectRef::new(GROUP, "DefaultGateways", "", attachment::DEFAULT_SCOPE)
}

fn sort<T: Ord>(list: &mut Vec<T>) {
    list.sort_unstable();
    list.dedup();
    list.shrink_to_fit();
}

/// Collects the links of one object.
pub(in crate::translate) struct Collector<'a> {
    input: &'a Input<'a>,
    name: &'a ObjectRef,
    links: Links,
}

impl<'a> Collector<'a> {
    /// Collects the links of a class. It may name parameters in any namespace, because only cluster administrators
    /// create classes.
    fn gateway_class(&mut self, class: &GatewayClass) {
        if let Some(ObjectReference {
            group,
            kind,
            name,
            namespace: Some(namespace),
        }) = &class.spec.parameters_ref
        {
            self.refers_to_parameters(group, kind, namespace, name);
        }
    }

    fn gateway(&mut self, gateway: &Gateway) {
        let spec = &gateway.spec;
        if attachment::is_default(gateway) {
            self.refers_to(default_gateways());
        }
        let namespace = &gateway.metadata.namespace;
        let class = &spec.gateway_class_name;
        self.refers_to(ObjectRef::gateway_api(GatewayClass::KIND, "", class));
        let infrastructure = spec.infrastructure.as_ref();
        if let Some(parameters) = infrastructure.and_then(|it| it.parameters_ref.as_ref()) {
            let (group, kind) = (&parameters.group, &parameters.kind);
            self.refers_to_parameters(group, kind, namespace, &parameters.name);
        }
        let allowed = spec.allowed_listeners.as_ref();
        self.selects(allowed.and_then(|allowed| allowed.namespaces.as_ref()));
        self.listeners(&spec.listeners);
        let tls = spec.tls.as_ref();
        let backend = tls.and_then(|tls| tls.backend.as_ref());
        if let Some(client) = backend.and_then(|tls| tls.client_certificate_ref.as_ref()) {
            self.secret(client);
        }
        if let Some(frontend) = tls.and_then(|tls| tls.frontend.as_ref()) {
            let ports = frontend.per_port.iter().map(|port| &port.tls);
            let validations = ports
                .chain([&frontend.default])
                .filter_map(|tls| tls.validation.as_ref());
            for authority in validations.flat_map(|validation| &validation.ca_certificate_refs) {
                self.authority(authority);
            }
        }
    }

    /// Collects the links of a ListenerSet. Its certificates count only while its Gateway accepts it, because nothing
    /// else uses them.
    fn listener_set(&mut self, set: &ListenerSet) {
        let parent = &set.spec.parent_ref;
        if parent.group != GATEWAY_GROUP || parent.kind != Gateway::KIND {
            return;
        }
        let parent = parent_name(parent, &self.name.namespace);
        self.refers_to_own_namespace();
        self.depends_on(Source::Object(parent.clone()));
        let own = ObjectRef::core("Namespace", "", &self.name.namespace);
        self.depends_on(Source::Object(own));
        let gateways = &self.input.snapshot.gateways;
        let gateway = gateways.get(&parent.namespace, &parent.name);
        let allowed = gateway.and_then(|gateway| gateway.spec.allowed_listeners.as_ref());
        let from = allowed.and_then(|allowed| allowed.namespaces.as_ref());
        let namespace = &self.name.namespace;
        if selector::allows(self.input, from, "None", &parent.namespace, namespace) {
            self.listeners(&set.spec.listeners);
        }
        self.links.belongs_to.push(parent);
    }

    fn http_route(&mut self, route: &HttpRoute) {
        self.parents(&route.spec.parent_refs);
        self.default_gateways(route.spec.use_default_gateways.as_deref());
        for rule in &route.spec.rules {
            // Destructured, so that a new field with a reference fails to compile until it is handled here.
            let HttpRule {
                name: _,
                matches: _,
                filters,
                backend_refs,
                timeouts: _,
                retry: _,
                session_persistence: _,
            } = rule;
            self.rule(filters, backend_refs);
        }
    }

    /// Collects the link for `useDefaultGateways` of a route.
    fn default_gateways(&mut self, scope: Option<&str>) {
        if scope == Some(attachment::DEFAULT_SCOPE) {
            self.links.belongs_to.push(default_gateways());
        }
    }

    fn grpc_route(&mut self, route: &GrpcRoute) {
        self.parents(&route.spec.parent_refs);
        self.default_gateways(route.spec.use_default_gateways.as_deref());
        for rule in &route.spec.rules {
            // Destructured, as above.
            let GrpcRule {
                name: _,
                matches: _,
                filters,
                backend_refs,
                session_persistence: _,
            } = rule;
            self.rule(filters, backend_refs);
        }
    }

    fn rule(&mut self, filters: &[HttpFilter], backend_refs: &[BackendRef<HttpFilter>]) {
        self.http_filters(filters);
        for reference in backend_refs {
            self.backend(&reference.backend);
            self.http_filters(&reference.filters);
        }
    }

    fn http_filters(&mut self, filters: &[HttpFilter]) {
        for filter in filters {
            let HttpFilter {
                kind: _,
                request_header_modifier: _,
                response_header_modifier: _,
                request_mirror,
                request_redirect: _,
                url_rewrite: _,
                cors: _,
                external_auth,
                extension_ref: _,
            } = filter;
            if let Some(mirror) = request_mirror {
                self.backend(&mirror.backend_ref);
            }
            if let Some(auth) = external_auth {
                self.backend(&auth.backend_ref);
            }
        }
    }

    fn unserved_route(&mut self, route: &UnservedRoute) {
        self.parents(&route.spec.parent_refs);
    }

    /// Collects the links of a policy on TLS. A policy for backends of its own namespace belongs to them. A policy for
    /// backends of other namespaces applies only to requests of Gateways in its own namespace, and belongs to these.
    ///
    /// Only ConfigMaps count: a Secret is in a closure only if the Gateway, one of its ListenerSets or an XBackend of
    /// its routes refers to it.
    fn tls_policy<P: TlsPolicy>(&mut self, policy: &P) {
        let namespace = &*self.name.namespace;
        let spec = policy.spec();
        let kinds = &self.input.options.permissions.backend_kinds;
        let targets = spec.target_refs.iter();
        for target in targets.filter(|it| backend::is_target(kinds, &it.group, &it.kind)) {
            let target = target.object_ref(namespace);
            if *target.namespace == *namespace {
                self.links.belongs_to.push(target);
                continue;
            }
            self.depends_on(Source::GatewaysOf(namespace.to_owned()));
            let gateways = self.input.snapshot.gateways.in_namespace(namespace);
            let gateways = gateways.map(|gateway| gateway.object_ref());
            self.links.belongs_to.extend(gateways);
        }
        self.config_maps(&spec.validation);
    }

    /// Collects the links of a policy on traffic: it belongs to the backends that it targets.
    fn traffic_policy(&mut self, policy: &BackendTrafficPolicy) {
        let namespace = &*self.name.namespace;
        let kinds = &self.input.options.permissions.backend_kinds;
        let targets = policy.spec.target_refs.iter();
        let targets =
            targets.filter(|it| backend::find_enabled(kinds, &it.group, &it.kind).is_some());
        let targets = targets.map(|it| ObjectRef::new(&it.group, &it.kind, namespace, &it.name));
        self.links.belongs_to.extend(targets);
    }

    /// Collects the ConfigMaps with the authorities of a validation.
    pub(in crate::translate) fn config_maps(&mut self, validation: &BackendTlsValidation) {
        for authority in &validation.ca_certificate_refs {
            if authority.group.is_empty() && authority.kind == "ConfigMap" {
                let namespace = &self.name.namespace;
                self.refers_to(ObjectRef::core("ConfigMap", namespace, &authority.name));
            }
        }
    }

    /// Collects the links of listeners of a Gateway or ListenerSet.
    fn listeners(&mut self, listeners: &[Listener]) {
        for listener in listeners {
            let allowed = listener.allowed_routes.as_ref();
            self.selects(allowed.and_then(|allowed| allowed.namespaces.as_ref()));
            let tls = listener.tls.iter();
            for secret in tls.flat_map(|tls| &tls.certificate_refs) {
                self.secret(secret);
            }
        }
    }

    /// Collects the parents of a route. The labels of its namespace decide whether it may attach.
    fn parents(&mut self, parents: &[ParentRef]) {
        let may_be_ours = |parent: &&ParentRef| {
            parent.group == GATEWAY_GROUP
                && [Gateway::KIND, ListenerSet::KIND].contains(&parent.kind.as_str())
        };
        for parent in parents.iter().filter(may_be_ours) {
            let parent = parent_name(parent, &self.name.namespace);
            self.links.belongs_to.push(parent);
        }
        self.refers_to_own_namespace();
    }

    fn backend(&mut self, reference: &BackendObjectRef) {
        let BackendObjectRef {
            group,
            kind,
            name,
            namespace,
            port: _,
        } = reference;
        let is_foreign = namespace
            .as_deref()
            .is_some_and(|it| it != &*self.name.namespace);
        let kinds = &self.input.options.permissions.backend_kinds;
        let known = backend::find_enabled(kinds, group, kind);
        if known.is_some_and(|it| !(is_foreign && it.is_local)) {
            self.refers_to_granted(group, kind, namespace.as_deref(), name);
        }
    }

    /// Collects a Secret. In another namespace it needs a ReferenceGrant.
    pub(in crate::translate) fn secret(&mut self, reference: &SecretRef) {
        let SecretRef {
            group,
            kind,
            name,
            namespace,
        } = reference;
        if group.is_empty() && kind == "Secret" {
            self.refers_to_granted(group, kind, namespace.as_deref(), name);
        }
    }

    /// Collects an object with certificate authorities for client certificates.
    fn authority(&mut self, reference: &ObjectReference) {
        let ObjectReference {
            group,
            kind,
            name,
            namespace,
        } = reference;
        if group.is_empty() && ["ConfigMap", "Secret"].contains(&kind.as_str()) {
            self.refers_to_granted(group, kind, namespace.as_deref(), name);
        }
    }

    fn refers_to_parameters(&mut self, group: &str, kind: &str, namespace: &str, name: &str) {
        if (group, kind) == (GROUP, GatewayParameters::KIND) {
            self.refers_to(ObjectRef::new(group, kind, namespace, name));
        }
    }

    /// Collects an object. In another namespace it counts only with the ReferenceGrants that permit the reference.
    fn refers_to_granted(&mut self, group: &str, kind: &str, namespace: Option<&str>, name: &str) {
        let namespace = namespace.unwrap_or(&self.name.namespace);
        let target = ObjectRef::new(group, kind, namespace, name);
        if namespace == &*self.name.namespace {
            self.refers_to(target);
            return;
        }
        self.depends_on(Source::GrantsOf(namespace.to_owned()));
        let grants = self.input.grants.permitting(self.name, &target);
        let grants: Vec<_> = grants.map(Resource::object_ref).collect();
        if !grants.is_empty() {
            self.links.refers_to.extend(grants);
            self.refers_to(target);
        }
    }

    /// Returns the inputs of the translation.
    pub(in crate::translate) fn input(&self) -> &'a Input<'a> {
        self.input
    }

    /// Collects objects of the own namespace.
    pub(in crate::translate) fn refers_to_all(
        &mut self,
        targets: impl IntoIterator<Item = ObjectRef>,
    ) {
        self.links.refers_to.extend(targets);
    }

    /// Declares that the links depend on an object.
    pub(in crate::translate) fn depends_on_object(&mut self, name: &ObjectRef) {
        self.depends_on(Source::Object(name.clone()));
    }

    /// Declares that the links depend on all Services, EndpointSlices or Pods of the own namespace.
    pub(in crate::translate) fn depends_on_all(&mut self, kind: &'static str) {
        let namespace = self.name.namespace.to_string();
        self.depends_on(Source::AllOf(kind, namespace));
    }

    fn refers_to_own_namespace(&mut self) {
        self.refers_to(ObjectRef::core("Namespace", "", &self.name.namespace));
    }

    fn refers_to(&mut self, target: ObjectRef) {
        self.links.refers_to.push(target);
    }

    fn depends_on(&mut self, source: Source) {
        self.links.depends_on.push(source);
    }

    fn selects(&mut self, from: Option<&NamespacesFrom>) {
        let kind = from.and_then(|from| from.from.as_deref());
        self.links.selects_namespaces |= kind == Some("Selector");
    }
}
