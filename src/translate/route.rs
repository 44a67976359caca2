//! What a kind of route has to say of its objects, and what is the same for all kinds: hostnames, backendRefs, rules that
//! cannot be served, and the route's conditions.

use std::sync::Arc;

use crate::api::Resource;
use crate::api::reference::{BackendObjectRef, BackendRef, ParentRef};
use crate::ir::route::{Action, Match, Retry, Target, Timeouts, WeightedBackend};
use crate::ir::session::SessionPersistence;
use crate::ir::{BackendId, Filter, Hostname, ObjectRef, Route, RouteKind, Rule, RuleId};
use crate::snapshot::{Objects, Snapshot};
use crate::status::Condition;

use super::attachment::{Attachment, ListenerIndex, Parents};
use super::backend::{Backends, Resolution};
use super::backend_tls::{Consumer, Requests};
use super::listener::Protocol;
use super::reason::{ConditionType, Fault, Reason, judge, merge};
use super::{Input, priority};

/// The largest weight of a backendRef.
const MAX_WEIGHT: u32 = 1_000_000;

/// An object of a kind of route.
pub(super) trait RouteObject: Resource + Eq + Send + Sync + Sized + 'static {
    /// The kind in the IR.
    const ROUTE_KIND: RouteKind;
    /// Protocols of the listeners that it can attach to.
    const PROTOCOLS: &'static [Protocol];

    /// All objects of the kind.
    fn all(snapshot: &Snapshot) -> &Objects<Self>;

    /// `spec.parentRefs`.
    fn parent_refs(&self) -> &[ParentRef];

    /// `spec.useDefaultGateways`, of the kinds that have it.
    fn use_default_gateways(&self) -> Option<&str> {
        None
    }

    /// `spec.hostnames`; empty means the listeners'.
    fn hostnames(&self) -> &[String];

    /// Translates the rules, in order; a rule without matches that are understood is left out.
    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>>;
}

/// A route with what is wrong with it, whatever its parents.
pub(super) struct Built {
    pub(super) route: Arc<Route>,
    /// Makes `Accepted` false: no rule is usable.
    pub(super) unusable: Option<Fault>,
    /// Makes `PartiallyInvalid` true: some rules are not usable.
    dropped: Option<Fault>,
    /// Makes `ResolvedRefs` false.
    pub(super) unresolved: Option<Fault>,
    /// Backends that its rules and their filters send requests to.
    pub(super) backends: Vec<BackendId>,
    /// Backends that it may refer to and refers to, whether they exist or not, each with the name of the rule. Policies may
    /// target them.
    pub(super) targetable: Vec<(ObjectRef, Option<Arc<str>>)>,
    /// Backends with a status that it may refer to and refers to, whether they exist or not.
    pub(super) with_status: Vec<ObjectRef>,
    /// Whether it is another one for another consumer.
    pub(super) depends_on_consumer: bool,
    /// Objects that its references name, whether they exist or not: what it is made of beside the route itself.
    pub(super) references: Vec<ObjectRef>,
}

impl Built {
    /// Translates a route for requests that come through a listener, or for nobody.
    pub(super) fn new<R: RouteObject>(
        input: &Input<'_>,
        object: &R,
        name: &ObjectRef,
        consumer: Option<&Consumer>,
        backends: &mut Backends,
    ) -> Self {
        let mut builder = RouteBuilder {
            input,
            route: name,
            kind: R::ROUTE_KIND,
            consumer,
            backends,
            targetable: Vec::new(),
            with_status: Vec::new(),
            depends_on_consumer: false,
            usable: 0,
            faults: Vec::new(),
            unresolved: Vec::new(),
            used: Vec::new(),
            references: Vec::new(),
        };
        let rules = match invalid_hostname(object.hostnames()) {
            None => object.rules(&mut builder),
            // Nothing says which hosts such a route would be for.
            Some(fault) => {
                builder.faults.push(fault);
                Vec::new()
            }
        };
        let created = object.meta().creation_timestamp;
        let created = created.map(jiff::Timestamp::as_second);
        let priority = priority::read(object.meta()).unwrap_or_default();
        builder.finish(priority, created, rules)
    }

    /// The same, with a known route in place of an equal one.
    pub(super) fn like<'a>(mut self, mut known: impl Iterator<Item = &'a Self>) -> Self {
        if let Some(known) = known.find(|known| known.route == self.route) {
            self.route = known.route.clone();
        }
        self
    }

    /// The route's conditions under a parent.
    pub(super) fn conditions(
        &self,
        attachment: &Attachment,
        parents: &Parents,
        generation: i64,
    ) -> Vec<Condition> {
        let refused = attachment.as_ref().err().or(self.unusable.as_ref());
        let mut accepted = judge(
            ConditionType::Accepted,
            Reason::Accepted,
            refused,
            generation,
        );
        let served = |index: &ListenerIndex| parents.listeners[*index].is_served;
        if let (None, Ok(listeners)) = (refused, attachment)
            && !listeners.iter().any(|(index, _)| served(index))
        {
            accepted.message =
                "attached, but none of its listeners is served: see the Gateway's conditions"
                    .into();
        }
        let unresolved = self.unresolved.as_ref();
        let resolved = judge(
            ConditionType::ResolvedRefs,
            Reason::ResolvedRefs,
            unresolved,
            generation,
        );
        let mut conditions = Vec::with_capacity(2);
        conditions.push(accepted);
        if refused.is_none() {
            conditions.extend(self.dropped.as_ref().map(|fault| {
                let message = format!("Dropped Rule: {}", fault.message);
                Condition::holds(ConditionType::PartiallyInvalid, fault.reason, generation)
                    .with_message(message)
            }));
        }
        conditions.push(resolved);
        conditions
    }
}

fn invalid_hostname(hostnames: &[String]) -> Option<Fault> {
    let index = hostnames
        .iter()
        .position(|name| !Hostname::is_valid(name))?;
    let name = &hostnames[index];
    let message =
        format!("spec.hostnames[{index}]: {name:?} is not a hostname; the route is not served");
    Some(Fault::new(Reason::UnsupportedValue, message))
}

/// A route under translation: what its references resolve to, and what was found in its rules.
pub(super) struct RouteBuilder<'a> {
    input: &'a Input<'a>,
    pub(super) route: &'a ObjectRef,
    kind: RouteKind,
    consumer: Option<&'a Consumer>,
    backends: &'a mut Backends,
    /// Backends that it may refer to and refers to, each with the name of the rule.
    targetable: Vec<(ObjectRef, Option<Arc<str>>)>,
    /// Backends with a status that it may refer to and refers to.
    with_status: Vec<ObjectRef>,
    depends_on_consumer: bool,
    /// Number of rules that do at least a part of what they say.
    usable: usize,
    faults: Vec<Fault>,
    unresolved: Vec<Fault>,
    /// Backends that the rules and their filters send requests to, in order.
    used: Vec<BackendId>,
    /// Objects that references name.
    references: Vec<ObjectRef>,
}

/// A rule in its parts.
pub(super) struct RuleParts<'a> {
    /// Index in `spec.rules`.
    pub(super) index: usize,
    pub(super) name: Option<&'a str>,
    pub(super) matches: Vec<Match>,
    pub(super) forward: Forward,
    /// How requests are handled, or why they cannot be.
    pub(super) behaviour: Result<Behaviour, Fault>,
}

/// How a rule handles requests before and beside the choice of a backend.
#[derive(Default)]
pub(super) struct Behaviour {
    pub(super) filters: Vec<Filter>,
    pub(super) timeouts: Timeouts,
    pub(super) retry: Option<Retry>,
    pub(super) session: Option<SessionPersistence>,
}

/// The backendRefs of a rule.
pub(super) struct Forward {
    targets: Vec<WeightedBackend>,
    /// Whether they do at least a part of what they say.
    is_usable: bool,
}

impl RouteBuilder<'_> {
    /// Takes note of a rule whose matches are not understood. It is dropped: nothing says which requests it would be for.
    pub(super) fn drop_rule(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Resolves the backendRefs of the rule at `field`, of this name. `filters` translates those of one backendRef.
    pub(super) fn forward<F>(
        &mut self,
        references: &[BackendRef<F>],
        field: &str,
        rule: Option<&str>,
        filters: impl Fn(&mut Self, &[F], &str) -> Result<Vec<Filter>, Fault>,
    ) -> Forward {
        let mut broken = 0;
        let mut targets = Vec::with_capacity(references.len());
        for (index, reference) in references.iter().enumerate() {
            let field = format!("{field}.backendRefs[{index}]");
            let target = self.resolve(&reference.backend, &field, rule, None);
            let mut weighted = WeightedBackend {
                weight: reference.weight.min(MAX_WEIGHT),
                target,
                filters: Vec::new(),
            };
            match filters(self, &reference.filters, &field) {
                Ok(filters) => weighted.filters = filters,
                Err(fault) => {
                    broken += 1;
                    weighted.target = Target::Invalid(fault.message.as_str().into());
                    let message = format!(
                        "{}; requests of this backend are answered with {}",
                        fault.message,
                        self.refusal()
                    );
                    self.faults.push(Fault::new(fault.reason, message));
                }
            }
            targets.push(weighted);
        }
        Forward {
            is_usable: targets.is_empty() || broken < targets.len(),
            targets,
        }
    }

    /// A rule. One that cannot be served as written matches and answers 500: no other rule may take its requests.
    pub(super) fn rule(&mut self, parts: RuleParts<'_>) -> Rule {
        let (behaviour, action) = match parts.behaviour {
            Ok(behaviour) => {
                self.usable += usize::from(parts.forward.is_usable);
                (behaviour, Action::Forward(parts.forward.targets))
            }
            Err(fault) => {
                let why = fault.message.as_str().into();
                let message = format!(
                    "{}; requests of this rule are answered with {}",
                    fault.message,
                    self.refusal()
                );
                self.faults.push(Fault::new(fault.reason, message));
                (Behaviour::default(), Action::Broken(why))
            }
        };
        let rule = Rule {
            id: RuleId {
                route: self.route.clone(),
                index: parts.index,
                name: parts.name.map(Arc::from),
            },
            matches: parts.matches,
            filters: behaviour.filters,
            action,
            timeouts: behaviour.timeouts,
            retry: behaviour.retry,
            session: behaviour.session,
        };
        self.used.extend(rule.backends().cloned());
        rule
    }

    /// Resolves the reference at `field` to a backend, for requests of the rule of this name. They are HTTP or gRPC as
    /// `requests` says, by default as those of the route.
    pub(super) fn resolve(
        &mut self,
        reference: &BackendObjectRef,
        field: &str,
        rule: Option<&str>,
        requests: Option<RouteKind>,
    ) -> Target {
        let name = reference.object_ref(&self.route.namespace);
        self.references.push(name.clone());
        let requests = Requests {
            route: self.route,
            rule,
            are_grpc: requests.unwrap_or(self.kind) == RouteKind::Grpc,
            consumer: self.consumer,
        };
        let resolution = self
            .backends
            .resolve(self.input, &requests, &name, reference.port, field);
        let is_permitted =
            !matches!(&resolution, Err(fault) if fault.reason == Reason::RefNotPermitted);
        if let Some(kind) = self.backends.kind_of(&name).filter(|_| is_permitted) {
            if kind.has_status {
                self.with_status.push(name.clone());
            }
            self.depends_on_consumer |= kind.may_be_target() && self.backends.tls.target(&name);
            self.targetable.push((name, rule.map(Arc::from)));
        }
        match resolution {
            Ok(Resolution::Backend(backend)) => Target::Backend(backend.id.clone()),
            Ok(Resolution::Refused(why)) => Target::Invalid(why.into()),
            Err(fault) => {
                let why = fault.message.as_str().into();
                self.unresolved.push(fault);
                Target::Invalid(why)
            }
        }
    }

    /// The response to requests that cannot be served as configured.
    fn refusal(&self) -> &'static str {
        match self.kind {
            RouteKind::Http => "500",
            RouteKind::Grpc => "gRPC status UNAVAILABLE",
        }
    }

    fn finish(self, priority: i16, created: Option<i64>, rules: Vec<Arc<Rule>>) -> Built {
        let faults = merge(&self.faults);
        let (unusable, dropped) = if self.usable == 0 {
            (faults, None)
        } else {
            (None, faults)
        };
        let route = Route {
            kind: self.kind,
            object: self.route.clone(),
            created,
            priority,
            rules,
        };
        Built {
            route: Arc::new(route),
            unusable,
            dropped,
            unresolved: merge(&self.unresolved),
            backends: self.used,
            references: self.references,
            targetable: self.targetable,
            with_status: self.with_status,
            depends_on_consumer: self.depends_on_consumer,
        }
    }
}
