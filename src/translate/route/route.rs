//! The interface of route kinds, and the steps that all kinds share: hostnames, backendRefs, rules that cannot be
//! served, and the route's conditions.

use std::collections::BTreeMap;
use std::sync::Arc;

use thin_vec::ThinVec;

use crate::api::reference::{BackendObjectRef, BackendRef};
use crate::api::route::RouteResource;
use crate::ir::Time;
use crate::ir::route::{Action, BackendTarget, Match, RuleOptions, WeightedBackend};
use crate::ir::sharing::Text;
use crate::ir::{BackendId, Filter, Hostname, ObjectRef, Route, RouteKind, Rule, RuleId};
use crate::snapshot::Listed;
use crate::status::Condition;

use crate::translate::backend::{Backends, Resolution};
use crate::translate::budgets::Demand;
use crate::translate::consumer::{Consumer, Requests};
use crate::translate::gateway::attachment::{Attachment, ListenerIndex, Parents};
use crate::translate::gateway::priority;
use crate::translate::input::Input;
use crate::translate::patterns::RoutePatterns;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{ConditionType, Fault, Reason, judge, merge};
use crate::translate::source::Source;
use crate::translate::unknown_field;

/// Maximum weight of a backendRef.
const MAX_WEIGHT: u32 = 1_000_000;

/// A route object of any kind.
pub(in crate::translate) trait RouteObject:
    Listed + RouteResource + Send + Sync
{
    /// The kind in the IR.
    const ROUTE_KIND: RouteKind;
    /// Protocols of the listeners that it can attach to.
    const PROTOCOLS: &'static [Protocol];

    /// Translates the rules, in order. Omits a rule whose matches are invalid.
    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>>;
}

/// A translated route with its faults, independent of its parents.
pub(in crate::translate) struct Built {
    pub(in crate::translate) route: Arc<Route>,
    /// Permitted backend references, whether or not the backends exist, each with the name of the rule. Policies may
    /// target these backends.
    pub(super) targetable: Box<[(ObjectRef, Option<Text>)]>,
    /// Behind a pointer, since a process may hold many thousands of routes.
    remarkable: Option<Box<Remarkable>>,
}

/// What few routes have.
#[derive(Default, PartialEq, Eq)]
struct Remarkable {
    /// Makes `Accepted` false: no rule is usable.
    unusable: Option<Fault>,
    /// Makes `PartiallyInvalid` true: some rules are not usable.
    dropped: Option<Fault>,
    /// Makes `ResolvedRefs` false.
    unresolved: Option<Fault>,
    /// Permitted references to backends with a status, whether or not the backends exist.
    with_status: Vec<ObjectRef>,
    /// Upper bound for the memory of its compiled patterns, in bytes.
    pattern_cost: usize,
    /// Why its priority is ignored, if it is.
    ignored_priority: Option<String>,
    /// Whether the translation differs between consumers.
    depends_on_consumer: bool,
}

impl Built {
    fn fault(&self, of: impl Fn(&Remarkable) -> &Option<Fault>) -> Option<&Fault> {
        of(self.remarkable.as_ref()?).as_ref()
    }

    /// Returns why `Accepted` is false, if no rule is usable.
    pub(in crate::translate) fn unusable(&self) -> Option<&Fault> {
        self.fault(|it| &it.unusable)
    }

    /// Returns why `PartiallyInvalid` is true, if some rules are not usable.
    fn dropped(&self) -> Option<&Fault> {
        self.fault(|it| &it.dropped)
    }

    /// Returns why `ResolvedRefs` is false, if it is.
    pub(in crate::translate) fn unresolved(&self) -> Option<&Fault> {
        self.fault(|it| &it.unresolved)
    }

    /// Returns the permitted references to backends with a status, whether or not the backends exist.
    pub(super) fn with_status(&self) -> &[ObjectRef] {
        let remarkable = self.remarkable.as_ref();
        remarkable.map_or(&[], |it| &it.with_status)
    }

    /// Reports whether the translation differs between consumers.
    pub(super) fn depends_on_consumer(&self) -> bool {
        let mut remarkable = self.remarkable.iter();
        remarkable.any(|it| it.depends_on_consumer)
    }

    /// Returns why its priority is ignored, if it is.
    pub(super) fn ignored_priority(&self) -> Option<&str> {
        self.remarkable.as_ref()?.ignored_priority.as_deref()
    }

    /// Returns what its patterns take on these Gateways, if anything.
    pub(in crate::translate) fn demand(&self, gateways: Vec<ObjectRef>) -> Option<Demand> {
        let cost = self.remarkable.as_ref()?.pattern_cost;
        let is_needed = cost > 0 && !gateways.is_empty();
        is_needed.then_some(Demand {
            created: self.route.created,
            cost,
            gateways,
        })
    }

    /// Translates a route for requests through the listener of `consumer`, or for none.
    pub(in crate::translate) fn new<R: RouteObject>(
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
            refused: refused(object),
            backends,
            targetable: Vec::new(),
            with_status: Vec::new(),
            depends_on_consumer: false,
            patterns: RoutePatterns::default(),
            usable: 0,
            faults: Vec::new(),
            unresolved: Vec::new(),
        };
        let rules = match invalid_hostname(&object.spec().hostnames) {
            None => object.rules(&mut builder),
            // Without valid hostnames, it is unknown which hosts the route is for.
            Some(fault) => {
                builder.faults.push(fault);
                Vec::new()
            }
        };
        let created = object.meta().creation_timestamp;
        let priority = consumer.map_or(Ok(0), |consumer| {
            let (gateway, is_permitted) = (&consumer.gateway, consumer.permits_priorities);
            priority::on_gateway(object.meta(), gateway, is_permitted)
        });
        builder.depends_on_consumer |= priority::is_set(object.meta());
        builder.finish(priority, created, rules)
    }

    /// Returns the backends that its rules and their filters send requests to, in order.
    pub(super) fn backends(&self) -> impl Iterator<Item = &BackendId> {
        self.route.rules.iter().flat_map(|rule| rule.backends())
    }

    /// Returns the names of the rules that are served, in order.
    pub(in crate::translate) fn rule_names(&self) -> impl Iterator<Item = Option<Text>> {
        self.route.rules.iter().map(|rule| rule.id.name.clone())
    }

    /// Reuses the route of a known translation that is equal.
    pub(super) fn like<'a>(mut self, mut known: impl Iterator<Item = &'a Self>) -> Self {
        if let Some(known) = known.find(|known| known.route == self.route) {
            self.route = known.route.clone();
        }
        self
    }

    /// Returns the route's conditions for one parent. `lost` says to which of its listeners the route is not attached.
    pub(in crate::translate) fn conditions(
        &self,
        attachment: &Attachment,
        lost: Option<&str>,
        parents: &Parents,
        generation: i64,
    ) -> Vec<Condition> {
        let unusable = self.unusable();
        let refused = match attachment {
            // An unusable route loses to every other one: repair it first.
            Err(fault) if fault.reason == Reason::HostnameConflict => unusable.or(Some(fault)),
            _ => attachment.as_ref().err().or(unusable),
        };
        let mut accepted = judge(
            ConditionType::Accepted,
            Reason::Accepted,
            refused,
            generation,
        );
        let served = |index: &ListenerIndex| parents[*index].is_served;
        if let (None, Ok(listeners)) = (refused, attachment)
            && !listeners.iter().any(|(index, _)| served(index))
        {
            accepted.message =
                "attached, but none of its listeners is served: see the Gateway's conditions"
                    .into();
        }
        if refused.is_none() {
            let remarks = self.ignored_priority().into_iter().chain(lost);
            for remark in remarks {
                let separator = if accepted.message.is_empty() {
                    ""
                } else {
                    "; "
                };
                accepted.message.push_str(separator);
                accepted.message.push_str(remark);
            }
        }
        let unresolved = self.unresolved();
        let resolved = judge(
            ConditionType::ResolvedRefs,
            Reason::ResolvedRefs,
            unresolved,
            generation,
        );
        let mut conditions = Vec::with_capacity(2);
        conditions.push(accepted);
        if refused.is_none() {
            conditions.extend(self.dropped().map(|fault| {
                let message = format!("Dropped Rule: {}", fault.message);
                Condition::holds(ConditionType::PartiallyInvalid, fault.reason, generation)
                    .with_message(message)
            }));
        }
        conditions.push(resolved);
        conditions
    }
}

/// Returns the rules that are refused because of fields that this version does not know. A route without rules may have one.
fn refused<R: RouteObject>(object: &R) -> BTreeMap<usize, Fault> {
    let rules = 0..object.spec().rules.len().max(1);
    let faults = rules.filter_map(|index| {
        let fault = unknown_field::of_item(object, "spec.rules", index)?;
        Some((index, fault))
    });
    faults.collect()
}

/// Returns the fault of the first hostname that is none.
pub(in crate::translate) fn invalid_hostname(hostnames: &[Text]) -> Option<Fault> {
    let index = hostnames
        .iter()
        .position(|name| !Hostname::is_valid(name))?;
    let name = &hostnames[index];
    let message =
        format!("spec.hostnames[{index}]: {name:?} is not a hostname; the route is not served");
    Some(Fault::new(Reason::UnsupportedValue, message))
}

/// A route while it is translated: resolves references and collects faults.
pub(in crate::translate) struct RouteBuilder<'a> {
    pub(super) input: &'a Input<'a>,
    pub(in crate::translate) route: &'a ObjectRef,
    kind: RouteKind,
    consumer: Option<&'a Consumer>,
    /// The rules with fields that this version does not know.
    refused: BTreeMap<usize, Fault>,
    backends: &'a mut Backends,
    /// Permitted backend references, each with the name of the rule.
    targetable: Vec<(ObjectRef, Option<Text>)>,
    /// Permitted references to backends with a status.
    with_status: Vec<ObjectRef>,
    depends_on_consumer: bool,
    /// The patterns of all matches.
    pub(in crate::translate) patterns: RoutePatterns,
    /// Number of rules that can be served at least in part.
    usable: usize,
    faults: Vec<Fault>,
    unresolved: Vec<Fault>,
}

/// The parts of a rule.
pub(in crate::translate) struct RuleParts {
    pub(in crate::translate) id: RuleId,
    pub(in crate::translate) matches: Vec<Match>,
    pub(super) forward: Forward,
    /// How requests are handled, or why they cannot be.
    pub(in crate::translate) settings: Result<RuleSettings, Fault>,
}

/// How a rule handles requests, apart from the choice of a backend.
#[derive(Default)]
pub(in crate::translate) struct RuleSettings {
    pub(in crate::translate) filters: Vec<Filter>,
    pub(in crate::translate) options: RuleOptions,
}

/// The backendRefs of a rule.
pub(in crate::translate) struct Forward {
    targets: Vec<WeightedBackend>,
    /// Whether at least one backendRef can be served.
    is_usable: bool,
}

impl RouteBuilder<'_> {
    /// Returns the identity of the rule at `index` of `spec.rules`.
    pub(super) fn rule_id(&self, index: usize, name: Option<&str>) -> RuleId {
        RuleId {
            route: self.route.clone(),
            index,
            name: name.map(Text::from),
        }
    }

    /// Fails if the rule at `index` has a field that this version does not know, and that may be what refuses its requests.
    pub(super) fn check_fields(&self, index: usize) -> Result<(), Fault> {
        self.refused.get(&index).cloned().map_or(Ok(()), Err)
    }

    /// Drops a rule with invalid matches: it is unknown which requests it is for.
    pub(super) fn drop_rule(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Resolves the backendRefs of the rule at `field`. `rule` is its name; `filters` translates the filters of one
    /// backendRef.
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
            let target = self.resolve(&reference.backend(), &field, rule, None);
            let mut weighted = WeightedBackend {
                weight: reference.weight.min(MAX_WEIGHT),
                target,
                filters: ThinVec::new(),
            };
            match filters(self, &reference.filters, &field) {
                Ok(filters) => weighted.filters = filters.into(),
                Err(fault) => {
                    broken += 1;
                    weighted.target = BackendTarget::Invalid(fault.message.as_str().into());
                    let message = format!(
                        "{}; requests for this backend get {}",
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

    /// Builds a rule. A rule that cannot be served as written still matches and responds with 500, so that no other
    /// rule serves its requests.
    pub(in crate::translate) fn rule(&mut self, parts: RuleParts) -> Rule {
        let (settings, action) = match parts.settings {
            Ok(mut settings) => {
                let is_usable = parts.forward.is_usable;
                self.usable += usize::from(is_usable);
                // A rule that forwards no request sends none to others either.
                let is_kept = |filter: &Filter| is_usable || filter.target().is_none();
                settings.filters.retain(is_kept);
                (settings, Action::Forward(parts.forward.targets.into()))
            }
            Err(fault) => {
                let why = fault.message.as_str().into();
                let message = format!(
                    "{}; requests that match this rule get {}",
                    fault.message,
                    self.refusal()
                );
                self.faults.push(Fault::new(fault.reason, message));
                (RuleSettings::default(), Action::Invalid(why))
            }
        };
        Rule {
            id: parts.id,
            matches: parts.matches.into(),
            filters: settings.filters.into(),
            action,
            options: (settings.options != RuleOptions::default())
                .then(|| Box::new(settings.options)),
        }
    }

    /// Resolves the reference at `field` to a backend, for requests of the rule with this name. `requests` says whether
    /// they are HTTP or gRPC; `None` means the kind of the route.
    pub(in crate::translate) fn resolve(
        &mut self,
        reference: &BackendObjectRef,
        field: &str,
        rule: Option<&str>,
        requests: Option<RouteKind>,
    ) -> BackendTarget {
        let name = reference.object_ref(&self.route.namespace);
        self.input.read(|| Source::Backend(name.clone()));
        let requests = Requests {
            route: self.route,
            rule,
            kind: requests.unwrap_or(self.kind),
            consumer: self.consumer,
            of_all_listeners: None,
        };
        let resolution = self
            .backends
            .resolve(self.input, &requests, &name, reference.port, field);
        let is_permitted =
            !matches!(&resolution, Err(fault) if fault.reason == Reason::RefNotPermitted);
        if let Some(kind) = self.backends.kind_of(&name).filter(|_| is_permitted) {
            if kind.has_status && kind.forwards(requests.kind) {
                self.with_status.push(name.clone());
            }
            self.depends_on_consumer |= kind.may_be_target() && self.backends.tls.target(&name);
            self.targetable.push((name, rule.map(Text::from)));
        }
        match resolution {
            Ok(Resolution::Backend(backend)) => BackendTarget::Backend(backend.id.clone()),
            Ok(Resolution::Refused(why)) => BackendTarget::Invalid(why.into()),
            Err(fault) => {
                let why = fault.message.as_str().into();
                self.unresolved.push(fault);
                BackendTarget::Invalid(why)
            }
        }
    }

    /// Returns the response to requests that cannot be served as configured.
    fn refusal(&self) -> &'static str {
        match self.kind {
            RouteKind::Http => "500",
            RouteKind::Grpc => "gRPC status UNAVAILABLE",
            RouteKind::Tls | RouteKind::Tcp | RouteKind::Udp => "no answer",
        }
    }

    fn finish(
        self,
        priority: Result<i16, String>,
        created: Option<Time>,
        rules: Vec<Arc<Rule>>,
    ) -> Built {
        let (priority, ignored_priority) = match priority {
            Ok(priority) => (priority, None),
            Err(why) => (0, Some(why)),
        };
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
            rules: rules.into(),
            policies: None,
        };
        let remarkable = Remarkable {
            unusable,
            dropped,
            unresolved: merge(&self.unresolved),
            with_status: self.with_status,
            pattern_cost: self.patterns.cost(),
            ignored_priority,
            depends_on_consumer: self.depends_on_consumer,
        };
        let is_remarkable = remarkable != Remarkable::default();
        Built {
            route: Arc::new(route),
            targetable: self.targetable.into(),
            remarkable: is_remarkable.then(|| Box::new(remarkable)),
        }
    }
}
