//! Routes at run time, with their rules. Reuses routes and rules of the previous table that are still valid. Must not
//! know listeners or how a request finds a rule.

use std::ops::Deref;
use std::sync::Arc;

use imbl::OrdMap;
use thin_vec::ThinVec;

use super::backends::Backends;
use super::policies::PolicyStates;
use super::rule::{Rule, RuleState};
use crate::ir;
use crate::ir::object_map::OfObject;
use crate::ir::packed::packed;
use crate::ir::{ObjectRef, Pattern, RuleId};

/// Number of former rules of a route from which on new rules take over the state of the oldest one, so that the memory of a
/// route whose rules get new names has a bound.
const MAX_FORMER: usize = 16;

/// A route, shared by all listeners that it is attached to.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) ir: Arc<ir::Route>,
    pub(super) rules: Box<[Arc<Rule>]>,
    /// The rules that it had before, those that are gone for the longest time first.
    former: ThinVec<FormerRule>,
}

/// A rule that its route no longer has, whose requests stay part of the sums of the route.
#[derive(Debug)]
struct FormerRule {
    id: RuleId,
    state: Arc<RuleState>,
}

/// The counters of a rule.
#[derive(Clone, Copy, Debug)]
pub struct CountedRule<'a> {
    /// The rule.
    pub id: &'a RuleId,
    /// Its counters.
    pub state: &'a RuleState,
    /// Whether its route no longer has it.
    pub is_former: bool,
}

/// A route that listeners share. Without a count of weak references, which saves a sixth of its memory.
pub(super) type RouteNode = triomphe::Arc<Route>;

impl OfObject for RouteNode {
    fn object(&self) -> &ObjectRef {
        &self.ir.object
    }
}

impl Route {
    /// Reports whether its rules would get the same backends again.
    fn is_current(&self, backends: &Backends) -> bool {
        backends.are_those_before()
            || self
                .rules
                .iter()
                .all(|rule| rule.has_same_targets(backends))
    }
}

/// The routes of a table by object, each with the number of listeners that it is attached to. Backed by a persistent
/// map: a clone is cheap, and an update costs only what it changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    by_object: OrdMap<ObjectRef, Versions>,
    /// Patterns of new rules that are not compiled.
    new_patterns: Vec<Pattern>,
    /// The state of the policies of rules and listeners.
    pub(super) policies: PolicyStates,
    /// Whether a rule may refer to a backend that its table did not have.
    may_lack_backends: bool,
}

/// The versions of a route.
#[derive(Clone, Debug)]
enum Versions {
    One(Counted),
    Many(Arc<Vec<Counted>>),
}

/// A route and its number of listeners. An object has several versions where listeners differ, such as in what policies
/// require there, and while a table is built: listeners move to the new version one after the other.
#[derive(Clone, Debug)]
struct Counted {
    node: RouteNode,
    listeners: u32,
}

impl Deref for Versions {
    type Target = [Counted];

    fn deref(&self) -> &[Counted] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(all) => all,
        }
    }
}

impl Versions {
    /// Returns the rules, each once.
    fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let all: &[Counted] = self;
        all.iter().enumerate().flat_map(move |(number, one)| {
            let earlier = &all[..number];
            let rules = one.node.rules.iter();
            rules.filter(move |rule| !have(earlier, &rule.state))
        })
    }

    /// Returns the rules, and those that the route had before, each once.
    fn counted_rules(&self) -> impl Iterator<Item = CountedRule<'_>> {
        let all: &[Counted] = self;
        let former = all.iter().enumerate().flat_map(move |(number, one)| {
            let earlier = &all[..number];
            let former = one.node.former.iter();
            former.filter(move |it| !have(all, &it.state) && !had(earlier, &it.state))
        });
        let former = former.map(|it| CountedRule {
            id: &it.id,
            state: &it.state,
            is_former: true,
        });
        let rules = self.rules().map(|rule| CountedRule {
            id: &rule.ir.id,
            state: &rule.state,
            is_former: false,
        });
        rules.chain(former)
    }
}

/// Reports whether a version has the rule with this state, which all versions of the rule share.
fn have(versions: &[Counted], state: &Arc<RuleState>) -> bool {
    let mut rules = versions.iter().flat_map(|one| &one.node.rules);
    rules.any(|rule| Arc::ptr_eq(&rule.state, state))
}

/// Reports whether the rule with this state is a former one of a version.
fn had(versions: &[Counted], state: &Arc<RuleState>) -> bool {
    let mut former = versions.iter().flat_map(|one| &one.node.former);
    former.any(|it| Arc::ptr_eq(&it.state, state))
}

impl From<Vec<Counted>> for Versions {
    fn from(mut versions: Vec<Counted>) -> Self {
        match versions.pop() {
            Some(only) if versions.is_empty() => Self::One(only),
            last => Self::Many(Arc::new(versions.into_iter().chain(last).collect())),
        }
    }
}

impl Routes {
    /// Returns each rule once, in order of their routes' objects: any version of it.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let routes = self.by_object.values();
        routes.flat_map(|versions| versions.rules())
    }

    /// Returns all versions of each rule, in order of their routes' objects.
    pub(super) fn rule_versions(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let all = self.by_object.values().flat_map(|versions| versions.iter());
        all.flat_map(|one| &one.node.rules)
    }

    /// Returns each rule once, and those that routes had before, in order of their routes' objects.
    pub(super) fn counted_rules(&self) -> impl Iterator<Item = CountedRule<'_>> {
        let routes = self.by_object.values();
        routes.flat_map(|versions| versions.counted_rules())
    }

    /// Reports whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_object.is_empty()
    }

    /// Rebuilds the map, in less memory. Worth it after the first ones, which come one by one.
    pub(super) fn pack(&mut self) {
        self.by_object = packed(&self.by_object);
    }

    /// Takes the patterns of new rules that are not compiled.
    pub(super) fn take_new_patterns(&mut self) -> Vec<Pattern> {
        std::mem::take(&mut self.new_patterns)
    }

    /// Returns the objects whose routes would get other backends.
    pub(super) fn outdated(&self, backends: &Backends) -> Vec<ObjectRef> {
        // New backends change nothing for rules that have all of theirs.
        if backends.have_all_before() && !self.may_lack_backends {
            return Vec::new();
        }
        let is_outdated = |one: &Counted| !one.node.is_current(backends);
        let outdated = self
            .by_object
            .iter()
            .filter(|(_, versions)| versions.iter().any(is_outdated));
        outdated.map(|(object, _)| object.clone()).collect()
    }

    /// Attaches a route to one more listener and returns its node. Reuses a node with equal IR and the same backends,
    /// or else the rules of the known versions.
    pub(super) fn attach(&mut self, ir: &Arc<ir::Route>, backends: &Backends) -> RouteNode {
        let known = self
            .by_object
            .get(&ir.object)
            .map_or(&[][..], |known| known);
        let mut versions = known.to_vec();
        let is_same = |one: &&mut Counted| {
            (Arc::ptr_eq(&one.node.ir, ir) || one.node.ir == *ir) && one.node.is_current(backends)
        };
        let node = match versions.iter_mut().find(is_same) {
            Some(same) => {
                same.listeners += 1;
                same.node.clone()
            }
            None => {
                let node = renew(ir, known, backends, &self.policies);
                let patterns = ir.patterns().filter(|it| !it.is_compiled());
                self.new_patterns.extend(patterns.cloned());
                self.may_lack_backends |= node.rules.iter().any(|rule| rule.lacks_backends());
                versions.push(Counted {
                    node: node.clone(),
                    listeners: 1,
                });
                node
            }
        };
        self.by_object.insert(ir.object.clone(), versions.into());
        node
    }

    /// Detaches a route from one listener.
    pub(super) fn detach(&mut self, node: &RouteNode) {
        let object = &node.ir.object;
        let Some(known) = self.by_object.get(object) else {
            return;
        };
        let mut versions = known.to_vec();
        if let Some(at) = versions
            .iter()
            .position(|it| RouteNode::ptr_eq(&it.node, node))
        {
            versions[at].listeners -= 1;
            if versions[at].listeners == 0 {
                versions.remove(at);
            }
        }
        if versions.is_empty() {
            self.by_object.remove(object);
        } else {
            self.by_object.insert(object.clone(), versions.into());
        }
    }
}

/// Returns a node for `ir`. Reuses valid rules, and the state of others, from the versions of its object.
fn renew(
    ir: &Arc<ir::Route>,
    versions: &[Counted],
    backends: &Backends,
    states: &PolicyStates,
) -> RouteNode {
    let known = versions.iter().flat_map(|one| &one.node.rules);
    let mut former = former_rules(ir, versions);
    let rule = |(index, ir_rule): (usize, &Arc<ir::Rule>)| {
        let place = (&**ir, index);
        let same_id: Vec<_> = known
            .clone()
            .filter(|rule| rule.ir.id == ir_rule.id)
            .collect();
        let mut current = same_id
            .iter()
            .filter(|rule| rule.is_current(ir_rule, place, backends));
        if let Some(rule) = current.next() {
            return Arc::clone(rule);
        }
        let state = match same_id.first() {
            Some(rule) => rule.state.clone(),
            None => take_state(&mut former, versions, &ir_rule.id),
        };
        Arc::new(Rule::new(ir_rule.clone(), place, state, (backends, states)))
    };
    let rules = ir.rules.iter().enumerate().map(rule).collect();
    RouteNode::new(Route {
        ir: ir.clone(),
        rules,
        former,
    })
}

/// Returns the rules that versions of a route have or had, and that `ir` has not, each once.
fn former_rules(ir: &ir::Route, versions: &[Counted]) -> ThinVec<FormerRule> {
    let rules = || versions.iter().flat_map(|one| &one.node.rules);
    let is_kept = |rule: &&Arc<Rule>| ir.rules.iter().any(|it| it.id == rule.ir.id);
    let kept: Vec<&Arc<RuleState>> = rules().filter(is_kept).map(|rule| &rule.state).collect();
    let before = versions.iter().flat_map(|one| &one.node.former);
    let before = before.map(|it| (&it.id, &it.state));
    let mut former = ThinVec::<FormerRule>::new();
    for (id, state) in before.chain(rules().map(|rule| (&rule.ir.id, &rule.state))) {
        let is_known = kept.iter().any(|it| Arc::ptr_eq(it, state))
            || former.iter().any(|it| Arc::ptr_eq(&it.state, state));
        if !is_known {
            former.push(FormerRule {
                id: id.clone(),
                state: state.clone(),
            });
        }
    }
    former
}

/// Returns the state of a rule that no version has: that of the former rule of this identity, or else, of too many, of the
/// oldest one.
fn take_state(
    former: &mut ThinVec<FormerRule>,
    versions: &[Counted],
    id: &RuleId,
) -> Arc<RuleState> {
    // Another version may have a rule that this one has no longer, or one that has taken over its state.
    let is_free = |it: &FormerRule| !have(versions, &it.state);
    let same = former.iter().position(|it| it.id == *id && is_free(it));
    let too_many = former.len() >= MAX_FORMER;
    let oldest = || former.iter().position(is_free).filter(|_| too_many);
    match same.or_else(oldest) {
        Some(at) => former.remove(at).state,
        None => Arc::default(),
    }
}
