//! The links of an object to others, as far as translations follow them: one function per kind. A new kind is a
//! function here and a line in [`links`]. Must not know closures.
//!
//! The kinds are in one order: Gateways, ListenerSets, routes, backends, and objects that belong to backends. An object
//! refers only to later kinds and belongs only to earlier ones. A link against this order would create a cycle, whose
//! objects would keep each other in a closure.

use crate::api::access_policy::{AccessPolicy, AccessSpec};
use crate::api::backend_policy::BackendPolicy;
use crate::api::filter::HttpFilter;
use crate::api::gateway::{Gateway, GatewayClass, Listener, ListenerSet};
use crate::api::inherited_policy::InheritedPolicy;
use crate::api::key_set::KeySet;
use crate::api::parameters::GROUP;
use crate::api::policy::TlsPolicy;
use crate::api::reference::{BackendObjectRef, ObjectReference, ParentRef};
use crate::api::route::RouteRule;
use crate::api::route_filter::RouteFilter;
use crate::api::route_policy::RoutePolicy;
use crate::api::telemetry_policy::TelemetryPolicy;
use crate::api::traffic_policy::BackendTrafficPolicy;
use crate::api::{Object, Resource};
use crate::ir::object_ref::{GATEWAY_GROUP, released};
use crate::ir::{ObjectRef, RouteKind};

use super::super::backend;
use super::super::gateway::attachment;
use super::super::gateway::attachment::parent_name;
use super::super::input::Input;
use super::super::policy::inherited::access::key_backend::references as key_backends;
use super::super::policy::inherited::access::named::named;
use super::super::policy::inherited::credential::Named;
use super::super::route::route::RouteObject;
use super::acceptance::{Acceptance, Taken};
use crate::translate::links::{Collector, Links, Source};

/// Returns the links of an object, and what it takes if it is a route.
pub(super) fn links(
    input: &Input<'_>,
    acceptance: &Acceptance,
    name: &ObjectRef,
    object: &Object,
) -> (Links, Taken) {
    let mut by_kind = ByKind {
        collector: Collector::new(input, name),
        acceptance,
        taken: Taken::default(),
    };
    match object {
        Object::GatewayClass(class) => by_kind.gateway_class(class),
        Object::Gateway(gateway) => by_kind.gateway(gateway),
        Object::ListenerSet(set) => by_kind.listener_set(set),
        Object::HttpRoute(route) => by_kind.route(&**route),
        Object::GrpcRoute(route) => by_kind.route(&**route),
        Object::TlsRoute(route) => by_kind.route(&**route),
        Object::TcpRoute(route) => by_kind.route(&**route),
        Object::UdpRoute(route) => by_kind.route(&**route),
        Object::BackendTlsPolicy(policy) => by_kind.tls_policy(&**policy),
        Object::BackendTlsOverride(policy) => by_kind.tls_policy(&**policy),
        Object::BackendTrafficPolicy(policy) => by_kind.traffic_policy(policy),
        Object::BackendPolicy(policy) => by_kind.backend_policy(policy),
        Object::AccessPolicy(policy) => by_kind.access_policy(policy),
        Object::ClientPolicy(policy) => by_kind.inherited_policy(&**policy),
        Object::RateLimitPolicy(policy) => by_kind.inherited_policy(&**policy),
        Object::RoutePolicy(policy) => by_kind.route_policy(policy),
        Object::TelemetryPolicy(policy) => by_kind.telemetry_policy(policy),
        Object::RouteFilter(filter) => by_kind.route_filter(filter),
        Object::Service(_)
        | Object::ServiceImport(_)
        | Object::XBackend(_)
        | Object::ReleaseBackend(_) => backend::links(object, &mut by_kind.collector),
        Object::EndpointSlice(slice) => by_kind
            .collector
            .links
            .belongs_to
            .extend(backend::owners(slice)),
        Object::ReferenceGrant(_)
        | Object::GatewayParameters(_)
        | Object::Namespace(_)
        | Object::Pod(_)
        | Object::Secret(_)
        | Object::ConfigMap(_)
        | Object::KeySet(_) => {}
    }
    let ByKind {
        collector, taken, ..
    } = by_kind;
    let mut links = collector.links;
    sort(&mut links.refers_to);
    sort(&mut links.belongs_to);
    sort(&mut links.depends_on);
    (links, taken)
}

fn sort<T: Ord>(list: &mut Vec<T>) {
    list.sort_unstable();
    list.dedup();
    list.shrink_to_fit();
}

/// Collects the links of one object by its kind.
struct ByKind<'a> {
    collector: Collector<'a>,
    acceptance: &'a Acceptance,
    taken: Taken,
}

impl ByKind<'_> {
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
            self.collector
                .refers_to_parameters(group, kind, namespace, name);
        }
    }

    fn gateway(&mut self, gateway: &Gateway) {
        let spec = &gateway.spec;
        let namespace = &gateway.metadata.namespace;
        let class = &spec.gateway_class_name;
        self.collector
            .refers_to(ObjectRef::gateway_api(GatewayClass::KIND, "", class));
        let infrastructure = spec.infrastructure.as_ref();
        if let Some(parameters) = infrastructure.and_then(|it| it.parameters_ref.as_ref()) {
            let (group, kind) = (&parameters.group, &parameters.kind);
            self.collector
                .refers_to_parameters(group, kind, namespace, &parameters.name);
        }
        let allowed = spec.allowed_listeners.as_ref();
        self.collector
            .selects(allowed.and_then(|allowed| allowed.namespaces.as_ref()));
        self.listeners(&spec.listeners);
        let tls = spec.tls.as_ref();
        let backend = tls.and_then(|tls| tls.backend.as_ref());
        if let Some(client) = backend.and_then(|tls| tls.client_certificate_ref.as_ref()) {
            self.collector.certificate(client);
        }
    }

    /// Collects the links of a ListenerSet: it belongs to its Gateway if that admits it.
    fn listener_set(&mut self, set: &ListenerSet) {
        let parent = &set.spec.parent_ref;
        if parent.group != GATEWAY_GROUP || parent.kind != Gateway::KIND {
            return;
        }
        let parent = parent_name(parent, &self.collector.name.namespace);
        self.collector.refers_to_own_namespace();
        self.listeners(&set.spec.listeners);
        if self.acceptance.uses(self.collector.name).is_some() {
            self.collector.links.belongs_to.push(parent);
        }
    }

    fn route<R: RouteObject>(&mut self, route: &R) {
        self.route_filters(route);
        if !self.accept(route) {
            return;
        }
        for rule in &route.spec().rules {
            let (filters, backend_refs) = rule.references();
            self.http_filters(filters);
            for reference in backend_refs {
                let backend = reference.backend();
                if self.may_forward(R::ROUTE_KIND, &backend) {
                    self.backend(&backend);
                }
                self.http_filters(&reference.filters);
            }
        }
    }

    /// Collects the RouteFilters of a route, on which it depends whether it is usable, as on the ConfigMaps that they name.
    fn route_filters<R: RouteObject>(&mut self, route: &R) {
        for rule in &route.spec().rules {
            let (filters, backend_refs) = rule.references();
            let of_backends = backend_refs.iter().flat_map(|it| it.filters.iter());
            let extensions = filters.iter().chain(of_backends);
            for extension in extensions.filter_map(|filter| filter.extension_ref.as_ref()) {
                if (&*extension.group, &*extension.kind) == (GROUP, RouteFilter::KIND) {
                    let namespace = &self.collector.name.namespace;
                    let name = ObjectRef::new(GROUP, RouteFilter::KIND, namespace, &extension.name);
                    self.collector.depends_on_object(&name);
                    let filter = self.collector.input.find::<RouteFilter>(&name);
                    if let Some(map) = filter.and_then(|filter| body_of(filter)) {
                        self.collector.depends_on_object(&map);
                    }
                    self.collector.refers_to(name);
                }
            }
        }
    }

    /// Collects the links of a RouteFilter: it refers to the ConfigMap with its body.
    fn route_filter(&mut self, filter: &RouteFilter) {
        if let Some(map) = body_of(filter) {
            self.collector.texts(&map.name);
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
    /// backends of other namespaces applies only to requests of Gateways in its own namespace and to fetches of keys for
    /// policies there, and belongs to these.
    ///
    /// Only ConfigMaps count: a Secret is in a closure only if the Gateway, one of its ListenerSets or an XBackend of its
    /// accepted routes uses it.
    fn tls_policy<P: TlsPolicy>(&mut self, policy: &P) {
        let namespace = &*self.collector.name.namespace;
        let kinds = &self.collector.input.options.permissions.backend_kinds;
        let targets = policy.targets().map(|(target, _)| target);
        for target in targets.filter(|it| {
            self.collector
                .input
                .kinds
                .is_target(kinds, &it.group, &it.kind)
        }) {
            let target = target.object_ref(namespace);
            if *target.namespace == *namespace {
                self.collector.links.belongs_to.push(target);
                continue;
            }
            self.collector
                .depends_on(Source::all_of(Gateway::KIND, namespace));
            let gateways = self.collector.input.in_namespace::<Gateway>(namespace);
            let gateways = gateways.map(|gateway| gateway.object_ref());
            self.collector.links.belongs_to.extend(gateways);
            self.collector
                .depends_on(Source::all_of(AccessPolicy::KIND, namespace));
            let policies = self.collector.input.in_namespace::<AccessPolicy>(namespace);
            let fetching = policies.filter(|policy| {
                let mut servers = key_backends(policy);
                servers.any(|server| server.object_ref(namespace) == target)
            });
            let fetching = fetching.map(|policy| policy.object_ref());
            self.collector.links.belongs_to.extend(fetching);
        }
        self.collector.config_maps(&policy.spec().validation);
    }

    /// Collects the links of a policy on traffic: it belongs to the backends that it targets.
    fn traffic_policy(&mut self, policy: &BackendTrafficPolicy) {
        let targets = policy.spec.target_refs.iter();
        self.belongs_to_backends(targets.map(|it| (&*it.group, &*it.kind, &*it.name)));
    }

    /// Collects the links of a policy on backends: it belongs to those that it targets.
    fn backend_policy(&mut self, policy: &BackendPolicy) {
        let targets = policy.spec.target_refs.iter();
        self.belongs_to_backends(targets.map(|it| (&*it.group, &*it.kind, &*it.name)));
    }

    /// Collects backends of the own namespace that the object belongs to.
    fn belongs_to_backends<'t>(
        &mut self,
        targets: impl Iterator<Item = (&'t str, &'t str, &'t str)>,
    ) {
        let namespace = &*self.collector.name.namespace;
        let kinds = &self.collector.input.options.permissions.backend_kinds;
        let targets =
            targets.filter(|(group, kind, _)| backend::find_enabled(kinds, group, kind).is_some());
        let targets =
            targets.map(|(group, kind, name)| ObjectRef::new(group, kind, namespace, name));
        self.collector.links.belongs_to.extend(targets);
    }

    /// Collects the links of a policy on access: it refers to the objects with credentials, of which a Gateway gets values only
    /// if the policy has an effect there, to the keys of issuers, and to servers.
    fn access_policy(&mut self, policy: &AccessPolicy) {
        self.inherited_policy(policy);
        for Named { object, .. } in named(policy) {
            let (namespace, name) = (Some(&*object.namespace), &object.name);
            self.collector
                .refers_to_granted(&object.group, &object.kind, namespace, name, None);
        }
        let AccessSpec {
            jwt,
            oidc,
            external,
            ..
        } = &policy.spec;
        if let Some(external) = external {
            self.backend(&external.auth.backend_ref);
        }
        let namespace = self.collector.name.namespace.clone();
        let key_set = |name: &str| ObjectRef::new(GROUP, KeySet::KIND, &namespace, name);
        let providers = jwt.iter().flat_map(|it| &it.providers);
        for remote in providers.filter_map(|provider| provider.jwks.remote.as_ref()) {
            self.collector.refers_to(key_set(&KeySet::name_of(remote)));
            if let Some(backend) = &remote.backend_ref {
                self.backend(backend);
            }
        }
        if let Some(oidc) = oidc {
            let name = KeySet::name_of_provider(oidc);
            self.collector.refers_to(key_set(&name));
        }
    }

    /// Collects the links of a policy on routes: it refers to the ConfigMaps with error pages, and to the servers of these.
    fn route_policy(&mut self, policy: &RoutePolicy) {
        self.inherited_policy(policy);
        for page in policy.spec.error_pages.iter().flatten() {
            if let Some(map) = &page.config_map_ref {
                self.collector.texts(&map.name);
            }
            if let Some(server) = &page.backend_ref {
                self.backend(server);
            }
        }
    }

    /// Collects the links of an inherited policy: it belongs to its targets. A ListenerSet that is refused brings nothing.
    fn inherited_policy<P: InheritedPolicy>(&mut self, policy: &P) {
        let namespace = &*self.collector.name.namespace;
        let targets = policy.target_refs().iter();
        let targets = targets.map(|it| ObjectRef::new(&it.group, &it.kind, namespace, &it.name));
        self.collector.links.belongs_to.extend(targets);
    }

    /// Collects the links of a policy on telemetry: it belongs to the Gateways that it targets, and refers to its collector.
    fn telemetry_policy(&mut self, policy: &TelemetryPolicy) {
        let namespace = &*self.collector.name.namespace;
        let targets = policy.spec.target_refs.iter();
        let targets = targets.filter(|it| it.group == GATEWAY_GROUP && it.kind == Gateway::KIND);
        let targets = targets.map(|it| ObjectRef::gateway_api(&it.kind, namespace, &it.name));
        self.collector.links.belongs_to.extend(targets);
        let tracing = policy.spec.tracing.as_ref();
        if let Some(provider) = tracing.and_then(|tracing| tracing.provider.as_ref()) {
            self.backend(&provider.backend_ref);
        }
    }

    /// Collects the links of listeners of a Gateway or ListenerSet: what those use that can be served.
    fn listeners(&mut self, listeners: &[Listener]) {
        for listener in listeners {
            let allowed = listener.allowed_routes.as_ref();
            self.collector
                .selects(allowed.and_then(|allowed| allowed.namespaces.as_ref()));
        }
        self.collector
            .depends_on(Source::ListenersOf(self.collector.name.clone()));
        let Some(uses) = self.acceptance.uses(self.collector.name) else {
            return;
        };
        let used = uses.listeners.iter().filter_map(|at| listeners.get(*at));
        for secret in used
            .filter_map(|it| it.tls.as_ref())
            .flat_map(|tls| &tls.certificate_refs)
        {
            self.collector.certificate(secret);
        }
        for authority in &uses.authorities {
            self.collector.authority(authority);
        }
    }

    /// Collects the parents that accept a route. Returns whether it sends requests to the backends that it names; if not,
    /// nobody needs these.
    fn accept<R: RouteObject>(&mut self, route: &R) -> bool {
        let acceptance = self.acceptance;
        let mut references = route.spec().parent_refs.to_vec();
        if route.spec().default_gateways() == Some(attachment::DEFAULT_SCOPE) {
            self.collector.depends_on(Source::DefaultGateways);
            let defaults = acceptance
                .parents
                .defaults_beside(self.collector.name, &references);
            references.extend(defaults);
        }
        for reference in &references {
            if is_our_kind(reference) {
                let parent = parent_name(reference, &self.collector.name.namespace);
                if acceptance.parents.select_by_label(&parent) {
                    let own = ObjectRef::core("Namespace", "", &self.collector.name.namespace);
                    self.collector.depends_on(Source::Object(own));
                }
                self.collector.depends_on(Source::ListenersOf(parent));
            }
        }
        let verdict = acceptance.of_route(
            self.collector.input,
            self.collector.name,
            route,
            &references,
        );
        self.taken = verdict.taken;
        self.collector.links.belongs_to.extend(verdict.parents);
        self.collector.refers_to_own_namespace();
        verdict.is_usable
    }

    /// Reports whether routes of a kind may refer to a backend. If not, the Gateway needs neither it nor its certificate.
    fn may_forward(&self, requests: RouteKind, reference: &BackendObjectRef) -> bool {
        let kinds = &self.collector.input.options.permissions.backend_kinds;
        let kind = backend::find_enabled(kinds, &reference.group, &reference.kind);
        kind.is_some_and(|kind| kind.forwards(requests))
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
            .is_some_and(|it| it != &*self.collector.name.namespace);
        let kinds = &self.collector.input.options.permissions.backend_kinds;
        let known = backend::find_enabled(kinds, group, kind);
        if known.is_some_and(|it| !(is_foreign && it.is_local)) {
            self.collector
                .refers_to_granted(group, kind, namespace.as_deref(), name, None);
        }
    }
}

/// Returns the ConfigMap with the body of a RouteFilter.
fn body_of(filter: &RouteFilter) -> Option<ObjectRef> {
    let response = filter.spec.direct_response.as_ref()?;
    let map = response.config_map_ref.as_ref()?;
    let namespace = &filter.metadata.namespace;
    Some(ObjectRef::core("ConfigMap", namespace, &map.name))
}

fn is_our_kind(parent: &ParentRef) -> bool {
    let (group, kind) = released(&parent.group, &parent.kind);
    group == GATEWAY_GROUP && [Gateway::KIND, ListenerSet::KIND].contains(&kind)
}
