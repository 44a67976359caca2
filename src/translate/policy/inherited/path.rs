//! The policies on a path from a Gateway to a rule, level by level, and what follows for a section. Must not know which
//! paths there are.

use std::ptr;
use std::sync::Arc;

use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};

use super::index::{Index, OnTarget};
use super::merge::{self, Level, Mergeable, Obstacle};
use super::policy::{Content, Policy, Section, Target};
use crate::translate::reason::Fault;

/// A path of requests. The levels are: Gateway, its listener, ListenerSet, its listener, route, rule.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    pub(super) gateway: &'a ObjectRef,
    pub(super) listener: &'a ListenerKey,
    /// The route, with the name of the rule; `None` for all routes of the listener.
    pub(super) route: Option<(&'a ObjectRef, Option<&'a Text>)>,
}

/// Which listeners and rules exist.
pub(super) trait Sections {
    /// Reports whether an object has a listener, or a rule, of this name.
    fn has(&self, object: &ObjectRef, section: &str) -> bool;

    /// Returns the names of the Gateway's own listeners on the port of a listener.
    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text>;
}

/// The oldest policy on a target of a path that counts for a section.
#[derive(Clone, Copy)]
pub(super) struct OnLevel<'a> {
    pub(super) section: Section,
    pub(super) policy: &'a Arc<Policy>,
    pub(super) target: &'a Target,
    /// Whether the listener or rule that it targets does not exist. It is then unknown which requests it protects, so that
    /// it counts for all of the object. Policies that refuse nothing do not count then.
    pub(super) is_missing: bool,
    /// Why the credentials of the section are not there.
    refusal: Option<&'a Fault>,
}

impl Mergeable for OnLevel<'_> {
    fn overrides(&self) -> bool {
        self.policy.overrides
    }
}

impl<'a> OnLevel<'a> {
    /// Returns what it says about the section, if that can be used.
    pub(super) fn usable(&self) -> Option<&'a Content> {
        let content = self.policy.sections.get(&self.section)?.as_ref();
        let is_there = !self.is_missing && self.refusal.is_none();
        content.ok().filter(|_| is_there)
    }

    /// Reports whether it locks another section, if it locks its own.
    fn locks(&self, other: Section) -> bool {
        let content = self.policy.sections.get(&self.section);
        let content = content.and_then(|content| content.as_ref().ok());
        self.section.locks(other, content)
    }

    /// Returns what it says about the section, or why that is unusable.
    pub(super) fn content(&self) -> Result<&Content, String> {
        if self.is_missing {
            return Err(format!(
                "{}: {} does not exist",
                self.policy.name, self.target
            ));
        }
        let content = self.policy.sections.get(&self.section);
        let content = content.map(|content| self.refusal.map_or(content.as_ref(), Err));
        match content {
            Some(Ok(content)) => Ok(content),
            Some(Err(Fault { message, .. })) => Err(format!("{}: {message}", self.policy.name)),
            None => Err(format!("{} is not set", self.section.field())),
        }
    }
}

/// The policies on a path: by level and section, the address of the policy, and those of its target, if the section of that is
/// missing, and of the refusal of its credentials, since what follows for requests names these.
pub(super) type Combination = Vec<(usize, Section, usize, [Option<usize>; 2])>;

/// The policies on a path, by level, from general to specific.
pub(super) struct Levels<'a>(Vec<Level<OnLevel<'a>>>);

impl<'a> Levels<'a> {
    /// Collects the policies on a path.
    pub(super) fn new(index: &'a Index, path: Path<'_>, sections: &dyn Sections) -> Self {
        let Path {
            gateway,
            listener,
            route,
        } = path;
        let mut levels = Self(Vec::with_capacity(8));
        let on = (index, gateway);
        levels.whole(on, gateway, sections);
        if listener.origin != *gateway {
            levels.whole(on, &listener.origin, sections);
        }
        levels.section(on, &listener.origin, Some(&listener.name));
        if let Some((route, rule)) = route {
            levels.whole(on, route, sections);
            if rule.is_some() {
                levels.section(on, route, rule);
            }
        }
        levels
    }

    /// Collects the policies on the port of a listener: those on its Gateway, then those on the Gateway's own listeners
    /// there. Others cannot change the connections of a port, which they may share.
    pub(super) fn of_port(
        index: &'a Index,
        (gateway, listener): (&ObjectRef, &ListenerKey),
        sections: &dyn Sections,
    ) -> Self {
        let mut levels = Self(Vec::with_capacity(3));
        levels.whole((index, gateway), gateway, sections);
        let names = sections.on_port_of(gateway, listener);
        let on_targets = names
            .iter()
            .filter_map(|name| index.on(gateway, Some(name)));
        let level = on_targets.flat_map(|it| on_level((index, gateway), it, false));
        let mut level: Vec<_> = level.collect();
        level.sort_by(|one, other| one.policy.age().cmp(&other.policy.age()));
        levels.0.push(level);
        levels
    }

    /// Adds the level of an object, and one for policies on sections that it does not have.
    fn whole(&mut self, on: (&'a Index, &ObjectRef), object: &ObjectRef, sections: &dyn Sections) {
        self.section(on, object, None);
        let within = on.0.within(object);
        let is_missing = |(target, _): &(&Target, _)| {
            let section = target.section.as_deref();
            section.is_some_and(|section| !sections.has(object, section))
        };
        let missing = within.filter(is_missing);
        let missing = missing.flat_map(|on_target| on_level(on, on_target, true));
        let mut missing: Vec<_> = missing.filter(|it| it.policy.fails_closed()).collect();
        missing.sort_by(|one, other| one.policy.age().cmp(&other.policy.age()));
        self.0.push(missing);
    }

    /// Adds the level of a target.
    fn section(&mut self, on: (&'a Index, &ObjectRef), object: &ObjectRef, section: Option<&Text>) {
        let on_target = on.0.on(object, section).into_iter();
        let level = on_target.flat_map(|on_target| on_level(on, on_target, false));
        self.0.push(level.collect());
    }

    /// Returns the levels above that of a target.
    pub(super) fn above(&self, target: &Target) -> Self {
        Self(self.0[..self.place_of(target)].to_vec())
    }

    /// Returns the levels from the first one to that of a target.
    pub(super) fn through(&self, target: &Target) -> Self {
        let levels = self.0.iter().take(self.place_of(target) + 1);
        Self(levels.cloned().collect())
    }

    /// Returns the place of the level of a target, or the end if no policy on it is here.
    fn place_of(&self, target: &Target) -> usize {
        let has = |level: &Level<OnLevel<'_>>| level.iter().any(|it| it.target == target);
        let mut levels = self.0.iter();
        levels.position(has).unwrap_or(self.0.len())
    }

    /// Returns what distinguishes these policies from all others: all that the merge looks at.
    pub(super) fn combination(&self) -> Combination {
        let named = |it: &OnLevel<'_>| {
            let target = it.is_missing.then(|| ptr::from_ref(it.target).addr());
            [
                target,
                it.refusal.map(|refusal| ptr::from_ref(refusal).addr()),
            ]
        };
        let levels = self.0.iter().enumerate();
        let all = levels.flat_map(|(level, policies)| policies.iter().map(move |it| (level, it)));
        all.map(|(level, it)| {
            let policy = Arc::as_ptr(it.policy).addr();
            (level, it.section, policy, named(it))
        })
        .collect()
    }

    /// Returns the policies that set a section, by level.
    fn of(&self, section: Section) -> Vec<Level<OnLevel<'a>>> {
        let sets = |one: &OnLevel<'a>| one.section == section;
        let guards = |one: &OnLevel<'a>| one.overrides() && one.locks(section);
        let select = |level: &Level<OnLevel<'a>>, which: &dyn Fn(&OnLevel<'a>) -> bool| {
            level.iter().copied().filter(which).collect()
        };
        let levels = self.0.iter();
        levels
            .flat_map(|level| [select(level, &sets), select(level, &guards)])
            .collect()
    }

    /// Returns the policies that have an effect on a section, from general to specific.
    pub(super) fn applied(&self, section: Section) -> Vec<OnLevel<'a>> {
        let mut applied = merge::merge(&self.of(section));
        applied.retain(|one| one.section == section);
        applied
    }

    /// Returns what prevents the effect of a policy that sets a section for a target.
    pub(super) fn obstacle(
        &self,
        section: Section,
        policy: &Policy,
        target: &Target,
    ) -> Option<Obstacle<OnLevel<'a>>> {
        let levels = self.of(section);
        let of_level = |(level, policies): (usize, &Level<OnLevel<'_>>)| {
            let of_target = policies.iter().find(|it| it.target == target)?;
            let is_oldest = of_target.policy.name == policy.name;
            let is_first = is_oldest && policies.first()?.policy.name == policy.name;
            Some((level, usize::from(!is_first)))
        };
        let place = levels.iter().enumerate().find_map(of_level)?;
        merge::obstacle(&levels, place)
    }
}

/// Returns the policies on a target that count on a Gateway.
fn on_level<'a>(
    (index, gateway): (&'a Index, &ObjectRef),
    (target, policies): (&'a Target, &'a OnTarget),
    is_missing: bool,
) -> impl Iterator<Item = OnLevel<'a>> {
    policies.oldest().map(move |(section, policy)| {
        let reads = section.reads_credentials();
        let refusal = reads.then(|| index.refusal(policy, gateway));
        OnLevel {
            section,
            policy,
            target,
            is_missing,
            refusal: refusal.flatten(),
        }
    })
}
