//! The links of an object to others, as far as translations follow them. Its fields name the others; here is which of them
//! count, where more than the field decides. A new kind is a line in [`links`]. Must not know closures.
//!
//! The kinds are in one order: Gateways, ListenerSets, routes, backends, and objects that belong to backends. An object
//! refers only to later kinds and belongs only to earlier ones. A link against this order would create a cycle, whose
//! objects would keep each other in a closure.

use crate::api::access_policy::{AccessPolicy, AccessSpec};
use crate::api::backend_tls_policy::TlsPolicy;
use crate::api::gateway::{Gateway, GatewayClass, Listener, ListenerSet};
use crate::api::key_set::KeySet;
use crate::api::parameters::{GROUP, GatewayParameters};
use crate::api::reference::{ParentRef, Purpose, ReferenceField, Role};
use crate::api::route_filter::RouteFilter;
use crate::api::{Object, Resource};
use crate::ir::object_ref::{GATEWAY_GROUP, released};
use crate::ir::{ObjectRef, RouteKind};

use super::super::backend::{self, BackendKind};
use super::super::gateway::attachment;
use super::super::input::Input;
use super::super::policy::inherited::access::key_backend::key_servers;
use super::super::policy::inherited::credential::{Named, named};
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
        Object::Gateway(gateway) => by_kind.gateway(gateway),
        Object::ListenerSet(set) => by_kind.listener_set(set),
        Object::HttpRoute(route) => by_kind.route(&**route),
        Object::GrpcRoute(route) => by_kind.route(&**route),
        Object::TlsRoute(route) => by_kind.route(&**route),
        Object::TcpRoute(route) => by_kind.route(&**route),
        Object::UdpRoute(route) => by_kind.route(&**route),
        Object::BackendTlsPolicy(policy) => by_kind.tls_policy(&**policy),
        Object::BackendTlsOverride(policy) => by_kind.tls_policy(&**policy),
        Object::AccessPolicy(policy) => by_kind.access_policy(policy),
        Object::BackendTrafficPolicy(_) | Object::BackendPolicy(_) => {
            by_kind.policy(object, |this, target| this.backend_kind(target).is_some());
        }
        Object::ClientPolicy(_) | Object::RateLimitPolicy(_) | Object::RoutePolicy(_) => {
            by_kind.policy(object, |_, _| true);
        }
        Object::TelemetryPolicy(_) => by_kind.policy(object, |_, target| {
            (target.group, target.kind) == (GATEWAY_GROUP, Gateway::KIND)
        }),
        Object::GatewayClass(_) | Object::RouteFilter(_) => {
            object.references(&mut |field| by_kind.field(field));
        }
        Object::Service(_)
        | Object::ServiceImport(_)
        | Object::XBackend(_)
        | Object::ReleaseBackend(_)
        | Object::InferencePool(_) => backend::links(object, &mut by_kind.collector),
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
    /// Collects a reference whose field alone decides.
    fn field(&mut self, field: ReferenceField<'_>) {
        match field.role {
            Role::Parameters => self.parameters(field),
            Role::Target => {
                let target = field.object_ref(&self.collector.name.namespace);
                self.collector.links.belongs_to.push(target);
            }
            Role::Server | Role::KeyServer => self.backend(field),
            Role::Contents(Purpose::Texts) => self.collector.contents(field, &["ConfigMap"]),
            // Others decide about these, such as the listeners of a Gateway about certificates.
            Role::Parent
            | Role::Sender
            | Role::Backend
            | Role::Filter
            | Role::Contents(Purpose::Certificate | Purpose::Authority)
            | Role::Credential(_) => {}
        }
    }

    /// Collects parameters. A class may name them in any namespace, because only cluster administrators create classes.
    fn parameters(&mut self, field: ReferenceField<'_>) {
        let name = field.object_ref(&self.collector.name.namespace);
        if (field.group, field.kind) == (GROUP, GatewayParameters::KIND)
            && !name.namespace.is_empty()
        {
            self.collector.refers_to(name);
        }
    }

    /// Collects the links of a policy: it belongs to those of its targets that count. A ListenerSet that is refused brings
    /// nothing.
    fn policy(&mut self, object: &Object, counts: fn(&Self, ReferenceField<'_>) -> bool) {
        object.references(&mut |field| match field.role {
            Role::Target if !counts(self, field) => {}
            _ => self.field(field),
        });
    }

    fn gateway(&mut self, gateway: &Gateway) {
        let spec = &gateway.spec;
        let class = &spec.gateway_class_name;
        self.collector
            .refers_to(ObjectRef::gateway_api(GatewayClass::KIND, "", class));
        spec.references(&mut |field| self.field(field));
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
        let parent = parent.object_ref(&self.collector.name.namespace);
        self.collector.refers_to_own_namespace();
        self.listeners(&set.spec.listeners);
        if self.acceptance.uses(self.collector.name).is_some() {
            self.collector.links.belongs_to.push(parent);
        }
    }

    fn route<R: RouteObject>(&mut self, route: &R) {
        let is_usable = self.accept(route);
        route.spec().references(&mut |field| match field.role {
            Role::Filter => self.route_filter(field),
            Role::Backend if is_usable && self.may_forward(R::ROUTE_KIND, field) => {
                self.backend(field);
            }
            Role::Server if is_usable => self.backend(field),
            _ => {}
        });
    }

    /// Collects a RouteFilter of a route, on which it depends whether the route is usable, as on the ConfigMap that it names.
    fn route_filter(&mut self, field: ReferenceField<'_>) {
        if (field.group, field.kind) != (GROUP, RouteFilter::KIND) {
            return;
        }
        let collector = &mut self.collector;
        let name = field.object_ref(&collector.name.namespace);
        collector.depends_on_object(&name);
        if let Some(filter) = collector.input.find::<RouteFilter>(&name) {
            filter.spec.references(&mut |field| {
                collector.depends_on_object(&field.object_ref(&name.namespace));
            });
        }
        collector.refers_to(name);
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
            let fetching = policies.filter(|policy| key_servers(policy).contains(&target));
            let fetching = fetching.map(|policy| policy.object_ref());
            self.collector.links.belongs_to.extend(fetching);
        }
        self.collector.config_maps(&policy.spec().validation);
    }

    /// Collects the links of a policy on access: it refers to the objects with credentials, of which a Gateway gets values only
    /// if the policy has an effect there, to the keys of issuers, and to servers.
    fn access_policy(&mut self, policy: &AccessPolicy) {
        let AccessSpec { jwt, oidc, .. } = &policy.spec;
        policy.spec.references(&mut |field| self.field(field));
        for Named { object, .. } in named(policy) {
            self.collector.refers_to_granted(object, None);
        }
        let namespace = &self.collector.name.namespace;
        let key_set = |name: &str| ObjectRef::new(GROUP, KeySet::KIND, namespace, name);
        let providers = jwt.iter().flat_map(|it| &it.providers);
        let remotes = providers.filter_map(|provider| provider.jwks.remote.as_ref());
        let remotes = remotes.map(|remote| key_set(&KeySet::name_of(remote)));
        let providers = oidc
            .iter()
            .map(|oidc| key_set(&KeySet::name_of_provider(oidc)));
        self.collector.refers_to_all(remotes.chain(providers));
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
            let field = authority.in_role(Role::Contents(Purpose::Authority));
            self.collector.contents(field, &["ConfigMap", "Secret"]);
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
                let parent = reference.object_ref(&self.collector.name.namespace);
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
    fn may_forward(&self, requests: RouteKind, field: ReferenceField<'_>) -> bool {
        let kind = self.backend_kind(field);
        kind.is_some_and(|kind| kind.forwards(requests))
    }

    fn backend(&mut self, field: ReferenceField<'_>) {
        let own = &*self.collector.name.namespace;
        let is_foreign = field.namespace.is_some_and(|it| it != own);
        let known = self.backend_kind(field);
        if known.is_some_and(|it| !(is_foreign && it.is_local)) {
            self.collector
                .refers_to_granted(field.object_ref(own), None);
        }
    }

    /// Returns the kind of a backend, if it is enabled.
    fn backend_kind(&self, field: ReferenceField<'_>) -> Option<&'static BackendKind> {
        let kinds = &self.collector.input.options.permissions.backend_kinds;
        backend::find_enabled(kinds, field.group, field.kind)
    }
}

fn is_our_kind(parent: &ParentRef) -> bool {
    let (group, kind) = released(&parent.group, &parent.kind);
    group == GATEWAY_GROUP && [Gateway::KIND, ListenerSet::KIND].contains(&kind)
}
