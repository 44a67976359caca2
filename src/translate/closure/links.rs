//! The links of an object to others, as far as translations follow them: one function per kind. A new kind is a
//! function here and a line in [`links`]. Must not know closures.
//!
//! The kinds are in one order: Gateways, ListenerSets, routes, backends, and objects that belong to backends. An object
//! refers only to later kinds and belongs only to earlier ones. A link against this order would create a cycle, whose
//! objects would keep each other in a closure.

use crate::api::gateway::{Gateway, GatewayClass, Listener, ListenerSet, NamespacesFrom};
use crate::api::grpc_route::{GrpcRoute, GrpcRule};
use crate::api::http_route::{HttpFilter, HttpMatch, HttpRoute, HttpRule};
use crate::api::parameters::{GROUP, GatewayParameters};
use crate::api::policy::{BackendTlsValidation, TlsPolicy};
use crate::api::reference::{BackendObjectRef, BackendRef, ObjectReference, ParentRef, SecretRef};
use crate::api::traffic_policy::BackendTrafficPolicy;
use crate::api::{Object, Resource};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;

use super::super::attachment::{self, parent_name};
use super::super::patterns::Demand;
use super::super::route::RouteObject;
use super::super::{Input, backend};
use super::acceptance::Acceptance;
use super::contents::Purpose;

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
    /// The listeners of a Gateway or ListenerSet, and the Secrets that they use.
    ListenersOf(ObjectRef),
    /// The default Gateways.
    DefaultGateways,
    /// All objects of a kind in a namespace.
    AllOf(&'static str, String),
}

/// Returns the links of an object, and what it takes of its Gateways' budgets.
pub(super) fn links(
    input: &Input<'_>,
    acceptance: &Acceptance,
    name: &ObjectRef,
    object: &Object,
) -> (Links, Option<Demand>) {
    let mut collector = Collector {
        input,
        acceptance,
        name,
        links: Links::default(),
        demand: None,
    };
    match object {
        Object::GatewayClass(class) => collector.gateway_class(class),
        Object::Gateway(gateway) => collector.gateway(gateway),
        Object::ListenerSet(set) => collector.listener_set(set),
        Object::HttpRoute(route) => collector.http_route(route),
        Object::GrpcRoute(route) => collector.grpc_route(route),
        Object::BackendTlsPolicy(policy) => collector.tls_policy(&**policy),
        Object::BackendTlsOverride(policy) => collector.tls_policy(&**policy),
        Object::BackendTrafficPolicy(policy) => collector.traffic_policy(policy),
        Object::Service(_)
        | Object::ServiceImport(_)
        | Object::XBackend(_)
        | Object::ReleaseBackend(_) => backend::links(object, &mut collector),
        Object::EndpointSlice(slice) => collector.links.belongs_to.extend(backend::owners(slice)),
        // Always refused: pods need nothing of it.
        Object::UnservedRoute(_)
        | Object::ReferenceGrant(_)
        | Object::GatewayParameters(_)
        | Object::Namespace(_)
        | Object::Pod(_)
        | Object::Secret(_)
        | Object::ConfigMap(_) => {}
    }
    let Collector {
        mut links, demand, ..
    } = collector;
    sort(&mut links.refers_to);
    sort(&mut links.belongs_to);
    sort(&mut links.depends_on);
    (links, demand)
}

fn sort<T: Ord>(list: &mut Vec<T>) {
    list.sort_unstable();
    list.dedup();
    list.shrink_to_fit();
}

/// Collects the links of one object.
pub(in crate::translate) struct Collector<'a> {
    input: &'a Input<'a>,
    acceptance: &'a Acceptance,
    name: &'a ObjectRef,
    links: Links,
    demand: Option<Demand>,
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
            self.certificate(client);
        }
    }

    /// Collects the links of a ListenerSet.
    fn listener_set(&mut self, set: &ListenerSet) {
        let parent = &set.spec.parent_ref;
        if parent.group != GATEWAY_GROUP || parent.kind != Gateway::KIND {
            return;
        }
        let parent = parent_name(parent, &self.name.namespace);
        self.refers_to_own_namespace();
        self.listeners(&set.spec.listeners);
        self.links.belongs_to.push(parent);
    }

    fn http_route(&mut self, route: &HttpRoute) {
        let rules = &route.spec.rules;
        let has_patterns = rules
            .iter()
            .any(|rule| rule.matches.iter().any(has_patterns));
        let references = rules.iter().flat_map(|rule| &rule.backend_refs);
        let filters = rules.iter().flat_map(|rule| &rule.filters);
        let may_need_secrets = self.may_need_secrets(references, filters);
        if !self.accept(route, has_patterns || may_need_secrets) {
            return;
        }
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

    fn grpc_route(&mut self, route: &GrpcRoute) {
        // Some of its conditions become patterns although they are exact.
        if !self.accept(route, true) {
            return;
        }
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

    /// Collects the links of a policy on TLS. A policy for backends of its own namespace belongs to them. A policy for
    /// backends of other namespaces applies only to requests of Gateways in its own namespace, and belongs to these.
    ///
    /// Only ConfigMaps count: a Secret is in a closure only if the Gateway, one of its ListenerSets or an XBackend of its
    /// accepted routes uses it.
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

    /// Collects the links of listeners of a Gateway or ListenerSet: what those use that can be served.
    fn listeners(&mut self, listeners: &[Listener]) {
        for listener in listeners {
            let allowed = listener.allowed_routes.as_ref();
            self.selects(allowed.and_then(|allowed| allowed.namespaces.as_ref()));
        }
        self.depends_on(Source::ListenersOf(self.name.clone()));
        let Some(uses) = self.acceptance.uses(self.name) else {
            return;
        };
        for secret in &uses.certificates {
            self.certificate(secret);
        }
        for authority in &uses.authorities {
            self.authority(authority);
        }
    }

    /// Collects the parents that accept a route. Returns whether it sends requests to the backends that it names; if not,
    /// nobody needs these.
    fn accept<R: RouteObject>(&mut self, route: &R, needs_rules: bool) -> bool {
        let acceptance = self.acceptance;
        let mut references = route.parent_refs().to_vec();
        if route.use_default_gateways() == Some(attachment::DEFAULT_SCOPE) {
            self.depends_on(Source::DefaultGateways);
            let defaults = acceptance.parents.defaults_beside(self.name, &references);
            references.extend(defaults);
        }
        for reference in &references {
            if is_our_kind(reference) {
                let parent = parent_name(reference, &self.name.namespace);
                if acceptance.parents.select_by_label(&parent) {
                    let own = ObjectRef::core("Namespace", "", &self.name.namespace);
                    self.depends_on(Source::Object(own));
                }
                self.depends_on(Source::ListenersOf(parent));
            }
        }
        let verdict = acceptance.of_route(self.input, self.name, route, &references, needs_rules);
        self.demand = verdict.demand;
        self.links.belongs_to.extend(verdict.parents);
        self.refers_to_own_namespace();
        verdict.is_usable
    }

    /// Reports whether one of these references names a backend that may have a Secret.
    fn may_need_secrets<'b>(
        &self,
        references: impl Iterator<Item = &'b BackendRef<HttpFilter>>,
        filters: impl Iterator<Item = &'b HttpFilter>,
    ) -> bool {
        let kinds = &self.input.options.permissions.backend_kinds;
        let reads_secrets = |reference: &BackendObjectRef| {
            let kind = backend::find_enabled(kinds, &reference.group, &reference.kind);
            kind.is_some_and(|kind| kind.reads_secrets())
        };
        let mut of_filters = filters.collect::<Vec<_>>();
        let mut found = false;
        for reference in references {
            found |= reads_secrets(&reference.backend);
            of_filters.extend(&reference.filters);
        }
        found
            || of_filters.into_iter().any(|filter| {
                let mirror = filter.request_mirror.as_ref().map(|it| &it.backend_ref);
                let auth = filter.external_auth.as_ref().map(|it| &it.backend_ref);
                mirror.into_iter().chain(auth).any(reads_secrets)
            })
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

    /// Collects a Secret with a certificate and its key. In another namespace it needs a ReferenceGrant.
    pub(in crate::translate) fn certificate(&mut self, reference: &SecretRef) {
        let SecretRef {
            group,
            kind,
            name,
            namespace,
        } = reference;
        if group.is_empty() && kind == "Secret" {
            self.refers_to_secret(namespace.as_deref(), name, Purpose::Certificate);
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
        match (group.as_str(), kind.as_str()) {
            ("", "ConfigMap") => self.refers_to_granted(group, kind, namespace.as_deref(), name),
            ("", "Secret") => {
                self.refers_to_secret(namespace.as_deref(), name, Purpose::Authority);
            }
            _ => {}
        }
    }

    /// Collects a Secret, and what it is used for.
    fn refers_to_secret(&mut self, namespace: Option<&str>, name: &str, purpose: Purpose) {
        self.refers_to_granted("", "Secret", namespace, name);
        let namespace = namespace.unwrap_or(&self.name.namespace);
        let secret = ObjectRef::core("Secret", namespace, name);
        if self.links.refers_to.contains(&secret) {
            self.refers_to(purpose.node(&secret));
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

fn is_our_kind(parent: &ParentRef) -> bool {
    parent.group == GATEWAY_GROUP
        && [Gateway::KIND, ListenerSet::KIND].contains(&parent.kind.as_str())
}

/// Reports whether a match has a condition that is a pattern.
fn has_patterns(condition: &HttpMatch) -> bool {
    let path = condition
        .path
        .as_ref()
        .and_then(|path| path.kind.as_deref());
    let values = condition.headers.iter().chain(&condition.query_params);
    let mut kinds = values.map(|value| value.kind.as_deref()).chain([path]);
    kinds.any(|kind| kind == Some("RegularExpression"))
}
