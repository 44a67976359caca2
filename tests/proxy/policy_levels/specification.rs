//! What the specification says of two policies that set the same section: which of them requests meet, and the conditions
//! of both and of their targets. Must not know the code: it is a second statement of the rules.

use std::collections::BTreeSet;

/// Where a policy is, from general to specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Gateway,
    Listener,
    ListenerSet,
    ListenerOfSet,
    Route,
    Rule,
}

impl Level {
    pub(super) const ALL: [Self; 6] = [
        Self::Gateway,
        Self::Listener,
        Self::ListenerSet,
        Self::ListenerOfSet,
        Self::Route,
        Self::Rule,
    ];

    /// Reports whether policies may have `strategy: Overrides`: those on Gateways and ListenerSets.
    pub(super) fn may_override(self) -> bool {
        self < Self::Route
    }

    /// Returns the kind of the object that it belongs to.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Gateway | Self::Listener => "Gateway",
            Self::ListenerSet | Self::ListenerOfSet => "ListenerSet",
            Self::Route | Self::Rule => "HTTPRoute",
        }
    }
}

/// A listener: the Gateway and the ListenerSet have two each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    One,
    Two,
    OneOfSet,
    TwoOfSet,
}

/// What a request selects: a rule with a name, another rule of the route, or another route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    Rule,
    OtherRule,
    OtherRoute,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) entry: Entry,
    pub(super) selected: Selected,
}

impl Probe {
    pub(super) const ENTRIES: [Entry; 4] =
        [Entry::One, Entry::Two, Entry::OneOfSet, Entry::TwoOfSet];
    const SELECTED: [Selected; 3] = [Selected::Rule, Selected::OtherRule, Selected::OtherRoute];

    /// Returns all of them.
    pub(super) fn all() -> Vec<Self> {
        let of_entry = |entry| Self::SELECTED.map(|selected| Self { entry, selected });
        Self::ENTRIES.into_iter().flat_map(of_entry).collect()
    }

    /// Reports whether policies at a level apply to it.
    fn is_below(self, level: Level) -> bool {
        match level {
            Level::Gateway => true,
            Level::Listener => self.entry == Entry::One,
            Level::ListenerSet => matches!(self.entry, Entry::OneOfSet | Entry::TwoOfSet),
            Level::ListenerOfSet => self.entry == Entry::OneOfSet,
            Level::Route => self.selected != Selected::OtherRoute,
            Level::Rule => self.selected == Selected::Rule,
        }
    }
}

/// A policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// Its name, by which policies of the same age are ordered.
    pub(super) letter: char,
    pub(super) level: Level,
    pub(super) overrides: bool,
    /// The day of its creation.
    pub(super) day: u8,
}

impl Placed {
    fn precedes(&self, other: &Self) -> bool {
        (self.day, self.letter) < (other.day, other.letter)
    }

    /// Reports whether another policy keeps it from a request that both apply to: an older one of the same level, or one
    /// above that locks.
    fn is_kept_from(&self, probe: Probe, other: &Self) -> bool {
        let is_rival = other.level == self.level && other.precedes(self);
        let is_locked = other.level < self.level && other.overrides;
        probe.is_below(self.level) && probe.is_below(other.level) && (is_rival || is_locked)
    }

    /// Reports whether a more specific policy replaces what it says for a request.
    fn is_replaced(&self, probe: Probe, other: &Self) -> bool {
        let is_below = other.level > self.level && probe.is_below(other.level);
        is_below && !other.is_kept_from(probe, self)
    }
}

/// What a section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The most specific policy counts.
    Replaces,
    /// The same. The policies of the test permit different clients, so that each loosens what it replaces.
    ReplacesAndLoosens,
    /// All policies count.
    Accumulates,
    /// Like `Replaces`. The policy with the letter says that one of the credentials is enough, and the other one that all
    /// are needed, which is also so without a policy.
    Requires(char),
}

/// A policy of the same kind beside each pair: a method to authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// `basic`, on the Gateway.
    Basic,
    /// `apiKey`, on the route.
    ApiKey,
}

impl Method {
    pub(super) const ALL: [Self; 2] = [Self::Basic, Self::ApiKey];

    pub(super) fn level(self) -> Level {
        match self {
            Self::Basic => Level::Gateway,
            Self::ApiKey => Level::Route,
        }
    }

    /// Reports whether requests have to do with it. A policy above that locks `require` locks the methods below, since a
    /// further one would make the others needless.
    pub(super) fn applies(self, pair: [&Placed; 2], probe: Probe) -> bool {
        probe.is_below(self.level()) && !self.is_locked(pair, probe)
    }

    fn is_locked(self, [a, b]: [&Placed; 2], probe: Probe) -> bool {
        let locks = |it: &Placed, other: &Placed| {
            let is_above = it.level < self.level() && probe.is_below(it.level);
            it.overrides && is_above && !it.is_kept_from(probe, other)
        };
        locks(a, b) || locks(b, a)
    }

    /// Returns the conditions of its policy beside a pair, of which the one with the letter `any` says that one method is
    /// enough.
    pub(super) fn conditions(self, any: char, pair: [&Placed; 2]) -> BTreeSet<String> {
        let paths = Probe::all().into_iter();
        let paths = paths.filter(|probe| probe.selected == Selected::OtherRule);
        let paths: Vec<_> = paths.collect();
        let locked = paths.iter().filter(|probe| self.is_locked(pair, **probe));
        let programmed = programmed(locked.count(), paths.len());
        // The other method is above, so that it may be needless.
        let loosens = |probe: &Probe| {
            let is_enough = met(Rule::Replaces, pair, *probe) == any.to_string();
            self == Self::ApiKey && self.applies(pair, *probe) && is_enough
        };
        with_loosens(programmed, paths.iter().any(loosens))
    }
}

/// Returns the letters of the policies that a request meets.
pub(super) fn met(rule: Rule, pair: [&Placed; 2], probe: Probe) -> String {
    let [a, b] = pair;
    let meets = |it: &Placed, other: &Placed| {
        probe.is_below(it.level)
            && !it.is_kept_from(probe, other)
            && (rule == Rule::Accumulates || !it.is_replaced(probe, other))
    };
    let both = [(a, b), (b, a)].into_iter();
    let met = both.filter(|(it, other)| meets(it, other));
    met.map(|(it, _)| it.letter).collect()
}

/// Returns the conditions of a policy beside another one, each as `type status reason`.
pub(super) fn conditions(rule: Rule, it: &Placed, other: &Placed) -> BTreeSet<String> {
    let probes = Probe::all();
    let own: Vec<_> = probes
        .into_iter()
        .filter(|probe| probe.is_below(it.level))
        .collect();
    let kept = own.iter().filter(|probe| it.is_kept_from(**probe, other));
    let programmed = programmed(kept.count(), own.len());
    let loosens = |probe: &Probe| {
        let is_above = other.level < it.level && probe.is_below(other.level);
        match rule {
            Rule::ReplacesAndLoosens => is_above && !other.overrides,
            // Above a route there is one method only, which is needed in any case.
            Rule::Requires(any) => {
                let has_methods = it.level >= Method::ApiKey.level();
                it.letter == any && has_methods && !it.is_kept_from(*probe, other)
            }
            Rule::Replaces | Rule::Accumulates => false,
        }
    };
    with_loosens(programmed, own.iter().any(loosens))
}

/// Returns the condition of a policy that another one keeps from some of all requests.
fn programmed(kept: usize, all: usize) -> &'static str {
    match kept {
        0 => "Programmed True Programmed",
        _ if kept == all => "Programmed False Overridden",
        _ => "Programmed True PartiallyProgrammed",
    }
}

fn with_loosens(programmed: &str, loosens: bool) -> BTreeSet<String> {
    let mut conditions = BTreeSet::from([
        "Accepted True Accepted".to_owned(),
        "ResolvedRefs True ResolvedRefs".to_owned(),
        programmed.to_owned(),
    ]);
    if loosens {
        let condition = "portcullis.dev/LoosensInherited True LoosensInherited";
        conditions.insert(condition.to_owned());
    }
    conditions
}

/// Returns all pairs of policies at these levels: each pair of levels with each strategy, and in each order of creation. Of
/// two on one target, they also have the same age.
pub(super) fn pairs(levels: &[Level]) -> Vec<[Placed; 2]> {
    let places = |level: &Level| {
        let strategies = [false, true].into_iter();
        let permitted = strategies.filter(|overrides| !overrides || level.may_override());
        permitted
            .map(|overrides| (*level, overrides))
            .collect::<Vec<_>>()
    };
    let places: Vec<_> = levels.iter().flat_map(places).collect();
    let mut pairs = Vec::new();
    for upper in &places {
        for lower in places.iter().filter(|lower| lower.0 >= upper.0) {
            let days: &[_] = match upper.0 == lower.0 {
                true => &[(1, 2), (2, 1), (1, 1)],
                false => &[(1, 2), (2, 1)],
            };
            let pair = |days: &(u8, u8)| [placed('a', upper, days.0), placed('b', lower, days.1)];
            pairs.extend(days.iter().map(pair));
        }
    }
    pairs
}

fn placed(letter: char, (level, overrides): &(Level, bool), day: u8) -> Placed {
    Placed {
        letter,
        level: *level,
        overrides: *overrides,
        day,
    }
}
