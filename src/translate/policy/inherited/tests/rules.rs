//! The statement of the rules: which policies decide on a path. Must not know the steps of the merge.

use super::{Decision, Decisions, PATHS, Path, Policy, Says, Target};

/// Returns the level of a target on a path, and whether its section is missing; `None` if it is not on the path.
fn level((listener, route, rule): Path, (kind, name, section): Target) -> Option<(u8, bool)> {
    let is_missing = section.is_some_and(|section| ["nope", "none"].contains(&section));
    match (kind, section) {
        ("Gateway", None) => (name == "web").then_some((0, false)),
        ("Gateway", _) if is_missing => Some((1, true)),
        ("ListenerSet", _) if listener != "c" => None,
        ("ListenerSet", None) => Some((2, false)),
        ("ListenerSet", _) if is_missing => Some((3, true)),
        ("Gateway" | "ListenerSet", section) => (section == Some(listener)).then_some((4, false)),
        _ if name != route => None,
        (_, None) => Some((5, false)),
        _ if is_missing => Some((6, true)),
        (_, section) => (section == rule).then_some((7, false)),
    }
}

/// The policies of one section on a path that are the oldest on their targets, each with its level and whether the section
/// that it targets is missing.
fn on_path<'a>(policies: &[&'a Policy], path: Path) -> Vec<(u8, &'a Policy, bool)> {
    let counting = || policies.iter().copied().filter(|it| it.counts());
    let is_oldest_on = |policy: &Policy, target: &Target| {
        let mut rivals = counting().filter(|it| it.targets.contains(target));
        rivals.all(|rival| rival.age() >= policy.age())
    };
    let mut all: Vec<(u8, &Policy, bool)> = Vec::new();
    for policy in counting() {
        for target in policy.targets.iter().filter(|it| is_oldest_on(policy, it)) {
            match level(path, *target) {
                // What refuses nothing does not count for requests that it may not be for.
                Some((_, true)) if !policy.protects() => {}
                Some((level, is_missing)) => all.push((level, policy, is_missing)),
                None => {}
            }
        }
    }
    all
}

/// The statement of the rules: the policies that have an effect on a path, from general to specific.
fn effective<'a>(policies: &[&'a Policy], path: Path) -> Vec<(u8, &'a Policy, bool)> {
    let all = on_path(policies, path);
    let mut first = all.clone();
    first.retain(|(level, policy, _)| {
        let mut rivals = all.iter().filter(|(of, ..)| of == level);
        rivals.all(|(_, rival, _)| rival.age() >= policy.age())
    });
    first.sort_by_key(|(level, ..)| *level);
    first.dedup_by_key(|(level, ..)| *level);
    let lock = first.iter().position(|(_, policy, _)| policy.overrides);
    first.truncate(lock.map_or(first.len(), |lock| lock + 1));
    first
}

/// Returns what the rules say.
pub(super) fn expected(policies: &[Policy]) -> Decisions {
    let of = |says: &[Says]| -> Vec<&Policy> {
        policies
            .iter()
            .filter(|it| says.contains(&it.says))
            .collect()
    };
    let (rules, limits) = (of(&[Says::Deny]), of(&[Says::Limit, Says::Audit]));
    let (bodies, clients) = (of(&[Says::Body]), of(&[Says::Client]));
    let decision = |effective: &[(u8, &Policy, bool)]| {
        let is_broken = |(_, it, is_missing): &(u8, &Policy, bool)| *is_missing || !it.is_usable();
        if effective.iter().any(is_broken) {
            return Decision::Broken;
        }
        let mut numbers: Vec<_> = effective.iter().map(|(_, it, _)| it.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Decision::Of(numbers)
    };
    let most_specific = |effective: &[(u8, &Policy, bool)]| {
        decision(&effective[effective.len().saturating_sub(1)..])
    };
    let paths = PATHS.into_iter();
    let decisions = paths.map(|path| {
        // What locks rules and limits locks the addresses that these decide by, for what is below.
        let by_address = [&rules, &limits].map(|it| on_path(it, path));
        let locks = by_address.iter().flatten();
        let locks = locks.filter(|(_, it, _)| it.overrides);
        let lock = locks.map(|(level, ..)| *level).min();
        let mut addresses = effective(&clients, path);
        addresses.retain(|(level, ..)| lock.is_none_or(|lock| *level <= lock));
        [
            decision(&effective(&rules, path)),
            most_specific(&effective(&limits, path)),
            most_specific(&effective(&bodies, path)),
            most_specific(&addresses),
        ]
    });
    decisions.collect()
}
