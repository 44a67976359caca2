//! HTTPRoutes: rules from matches, filters, backends and timeouts, and what the route's conditions say of them. Knows not
//! which routes need translating, nor how matches are ordered or tried.

use std::sync::Arc;

use crate::api::http_route::{HttpFilter, HttpRoute, HttpRule, HttpTimeouts};
use crate::api::reference::BackendRef;
use crate::api::{Key, duration};
use crate::ir::route::{Action, Match, PathMatch, Target, Timeouts, WeightedBackend};
use crate::ir::{Backend, BackendId, Filter, Hostname, ObjectRef, Route, Rule, RuleId};
use crate::status::Condition;

use super::attachment::{Attachment, Parents, Place};
use super::backend::Backends;
use super::reason::{ConditionType, Fault, Reason, judge, merge};
use super::{Input, filter, http_match};

/// The largest weight of a backendRef.
const MAX_WEIGHT: u32 = 1_000_000;

/// A route with what is wrong with it, whatever its parents.
pub(super) struct Built {
    pub(super) route: Arc<Route>,
    /// Makes `Accepted` false: no rule is usable.
    pub(super) unusable: Option<Fault>,
    /// Makes `PartiallyInvalid` true: some rules are not usable.
    dropped: Option<Fault>,
    /// Makes `ResolvedRefs` false.
    unresolved: Option<Fault>,
    /// Backends that its rules forward to.
    pub(super) backends: Vec<BackendId>,
    /// Objects that its references name, whether they exist or not: what it is made of beside the route itself.
    pub(super) references: Vec<Key>,
}

impl Built {
    /// The same, with a known route in place of an equal one.
    pub(super) fn like(mut self, known: Option<&Self>) -> Self {
        if let Some(known) = known.filter(|known| known.route == self.route) {
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
        let served = |place: &Place| parents.listeners[*place].is_served;
        if let (None, Ok(places)) = (refused, attachment)
            && !places.iter().any(|(place, _)| served(place))
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
                    .telling(message)
            }));
        }
        conditions.push(resolved);
        conditions
    }
}

/// Translates a route.
pub(super) fn build(
    input: &Input<'_>,
    object: &HttpRoute,
    name: &ObjectRef,
    backends: &mut Backends,
) -> Built {
    let mut found = Findings::default();
    // The API's default is one rule that matches every path and has no backend.
    let default = [HttpRule::default()];
    let specs = if object.spec.rules.is_empty() {
        &default[..]
    } else {
        &object.spec.rules
    };
    let strange = object
        .spec
        .hostnames
        .iter()
        .position(|name| !Hostname::is_valid(name));
    if let Some(index) = strange {
        let name = &object.spec.hostnames[index];
        let message =
            format!("spec.hostnames[{index}]: {name:?} is not a hostname; the route is not served");
        found
            .faults
            .push(Fault::new(Reason::UnsupportedValue, message));
    }
    // Nothing says which hosts such a route would be for.
    let specs = if strange.is_some() { &[] } else { specs };
    let mut rules = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        let builder = RuleBuilder {
            route: name,
            spec,
            index,
            place: format!("spec.rules[{index}]"),
            input,
        };
        rules.extend(builder.build(backends, &mut found).map(Arc::new));
    }
    let created = object.metadata.creation_timestamp;
    let created = created.map(jiff::Timestamp::as_second);
    let faults = merge(&found.faults);
    let (unusable, dropped) = if found.usable == 0 {
        (faults, None)
    } else {
        (None, faults)
    };
    let spoken: Vec<_> = found.backends.iter().map(|one| one.protocol).collect();
    Built {
        route: Arc::new(Route::new(name.clone(), created, rules, &spoken)),
        unusable,
        dropped,
        unresolved: merge(&found.unresolved),
        backends: found.backends.iter().map(|one| one.id.clone()).collect(),
        references: found.references,
    }
}

/// What was found in the rules of a route.
#[derive(Default)]
struct Findings {
    /// Number of rules that do at least a part of what they say.
    usable: usize,
    faults: Vec<Fault>,
    unresolved: Vec<Fault>,
    /// Backends that the rules forward to, in order.
    backends: Vec<Arc<Backend>>,
    /// Objects that references name.
    references: Vec<Key>,
}

struct RuleBuilder<'a> {
    input: &'a Input<'a>,
    route: &'a ObjectRef,
    spec: &'a HttpRule,
    index: usize,
    place: String,
}

impl RuleBuilder<'_> {
    /// A rule whose matches are not understood is dropped: nothing says which requests it would be for. A rule that
    /// cannot be served as written matches and answers 500: no other rule may take its requests.
    fn build(&self, backends: &mut Backends, found: &mut Findings) -> Option<Rule> {
        let matches = match http_match::translate(&self.spec.matches, &self.place) {
            Ok(matches) => matches,
            Err(fault) => {
                found.faults.push(fault);
                return None;
            }
        };
        let prefix = only_prefix(&matches).cloned();
        let (targets, forwarded, usable) = self.targets(backends, prefix.as_ref(), found);
        let (filters, timeouts, action) = match self.behaviour(prefix.as_ref()) {
            Ok((filters, timeouts)) => {
                found.backends.extend(forwarded);
                found.usable += usize::from(usable);
                (filters, timeouts, Action::Forward(targets))
            }
            Err(fault) => {
                let why = fault.message.as_str().into();
                let message = format!(
                    "{}; requests of this rule are answered with 500",
                    fault.message
                );
                found.faults.push(Fault::new(fault.reason, message));
                (Vec::new(), Timeouts::default(), Action::Broken(why))
            }
        };
        Some(Rule {
            id: RuleId {
                route: self.route.clone(),
                index: self.index,
                name: self.spec.name.as_deref().map(Arc::from),
            },
            matches,
            filters,
            action,
            timeouts,
        })
    }

    fn behaviour(&self, prefix: Option<&Arc<str>>) -> Result<(Vec<Filter>, Timeouts), Fault> {
        let HttpRule {
            filters,
            timeouts: limits,
            retry,
            session_persistence,
            name: _,
            matches: _,
            backend_refs: _,
        } = self.spec;
        let unserved = |field: &str| {
            let message = format!(
                "{}.{field} is not served by this version; remove it",
                self.place
            );
            Err(Fault::new(Reason::UnsupportedValue, message))
        };
        if retry.is_some() {
            return unserved("retry");
        }
        if session_persistence.is_some() {
            return unserved("sessionPersistence");
        }
        let filters = filter::translate(filters, &self.place, prefix)?;
        let limits = limits
            .as_ref()
            .map(|limits| timeouts(limits, &self.place))
            .transpose()?;
        Ok((filters, limits.unwrap_or_default()))
    }

    /// The weighted targets, the backends among them, and whether they do at least a part of what they say.
    fn targets(
        &self,
        backends: &mut Backends,
        prefix: Option<&Arc<str>>,
        found: &mut Findings,
    ) -> (Vec<WeightedBackend>, Vec<Arc<Backend>>, bool) {
        let mut broken = 0;
        let mut forwarded = Vec::new();
        let mut targets = Vec::with_capacity(self.spec.backend_refs.len());
        for (index, reference) in self.spec.backend_refs.iter().enumerate() {
            let place = format!("{}.backendRefs[{index}]", self.place);
            let (target, backend) = self.target(backends, reference, &place, found);
            let mut share = WeightedBackend {
                weight: reference.weight.min(MAX_WEIGHT),
                target,
                filters: Vec::new(),
            };
            match filter::translate(&reference.filters, &place, prefix) {
                Ok(filters) => {
                    share.filters = filters;
                    forwarded.extend(backend);
                }
                Err(fault) => {
                    broken += 1;
                    share.target = Target::Invalid(fault.message.as_str().into());
                    let message = format!(
                        "{}; requests of this backend are answered with 500",
                        fault.message
                    );
                    found.faults.push(Fault::new(fault.reason, message));
                }
            }
            targets.push(share);
        }
        let usable = targets.is_empty() || broken < targets.len();
        (targets, forwarded, usable)
    }

    fn target(
        &self,
        backends: &mut Backends,
        reference: &BackendRef<HttpFilter>,
        place: &str,
        found: &mut Findings,
    ) -> (Target, Option<Arc<Backend>>) {
        let reference = &reference.backend;
        let namespace = reference.namespace.as_deref();
        let namespace = namespace.unwrap_or(&self.route.namespace);
        found.references.push(Key::new(namespace, &reference.name));
        match backends.resolve(self.input, self.route, reference, place) {
            Ok(backend) => (Target::Backend(backend.id.clone()), Some(backend)),
            Err(fault) => {
                let why = fault.message.as_str().into();
                found.unresolved.push(fault);
                (Target::Invalid(why), None)
            }
        }
    }
}

/// The path prefix of a rule with exactly one match, which is what a prefix can be replaced in.
fn only_prefix(matches: &[Match]) -> Option<&Arc<str>> {
    match matches {
        [
            Match {
                path: PathMatch::Prefix(prefix),
                ..
            },
        ] => Some(prefix),
        _ => None,
    }
}

fn timeouts(limits: &HttpTimeouts, place: &str) -> Result<Timeouts, Fault> {
    let HttpTimeouts {
        request,
        backend_request,
    } = limits;
    let read = |text: &Option<String>, field: &str| {
        match text {
        None => Ok(None),
        Some(text) => duration::parse(text).map(|limit| Some(limit).filter(|limit| !limit.is_zero())).ok_or_else(|| {
            let message = format!("{place}.timeouts.{field}: {text:?} is not a duration such as 1h30m, 10s or 500ms");
            Fault::new(Reason::UnsupportedValue, message)
        }),
    }
    };
    Ok(Timeouts {
        request: read(request, "request")?,
        backend_request: read(backend_request, "backendRequest")?,
    })
}
