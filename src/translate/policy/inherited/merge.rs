//! The merge of all inherited policies, for one section on one path from a Gateway to a rule (GEP-713). The unit is a
//! section, a top-level field of `spec`. Must not know kinds, sections or objects.

/// What the merge sees of a policy.
pub(super) trait Mergeable {
    /// Reports whether it locks what it sets for everything below.
    fn overrides(&self) -> bool;
}

/// The policies on one target that set the section, the oldest first.
pub(super) type Level<P> = Vec<P>;

/// The policies that have an effect, from general to specific, at most one for each level. The last one wins; a section
/// that accumulates is made of all of them.
pub(super) fn merge<P: Mergeable + Copy>(levels: &[Level<P>]) -> Vec<P> {
    let mut applied = Vec::new();
    for oldest in levels.iter().filter_map(|level| level.first()) {
        applied.push(*oldest);
        if oldest.overrides() {
            break;
        }
    }
    applied
}

/// What prevents the effect of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle<P> {
    /// A policy on the same target that is older, or first by namespace and name.
    Older(P),
    /// A policy above with strategy Overrides.
    Locked(P),
}

/// Returns what prevents the effect of the policy at a place of a level.
pub(super) fn obstacle<P: Mergeable + Copy>(
    levels: &[Level<P>],
    (level, place): (usize, usize),
) -> Option<Obstacle<P>> {
    let above = levels[..level].iter().filter_map(|level| level.first());
    let lock = above.copied().find(Mergeable::overrides);
    let older = levels[level].first().filter(|_| place > 0);
    lock.map(Obstacle::Locked)
        .or(older.copied().map(Obstacle::Older))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Number of levels from a Gateway to a rule, each with a level for targets whose section is missing.
    const LEVELS: usize = 8;

    /// A policy as an API server has it, without order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Policy {
        level: usize,
        created: Option<u8>,
        name: u8,
        overrides: bool,
    }

    impl Mergeable for Policy {
        fn overrides(&self) -> bool {
            self.overrides
        }
    }

    /// Reports whether one of two policies of a level wins.
    fn precedes(one: &Policy, other: &Policy) -> bool {
        match (one.created, other.created) {
            (one_age, other_age) if one_age != other_age => one_age < other_age,
            _ => one.name < other.name,
        }
    }

    /// The statement of the rules without an order of steps: a policy has an effect if no policy of its level precedes it,
    /// and none above it locks. Only a policy that no other one of its level precedes can lock.
    fn has_effect(policy: &Policy, all: &[Policy]) -> bool {
        let is_first = |one: &Policy| {
            let mut rivals = all.iter().filter(|it| it.level == one.level);
            rivals.all(|rival| !precedes(rival, one))
        };
        let mut above = all.iter().filter(|one| one.level < policy.level);
        is_first(policy) && !above.any(|one| one.overrides && is_first(one))
    }

    fn policies() -> impl Strategy<Value = Vec<Policy>> {
        let policy = (0..LEVELS, proptest::option::of(0..3_u8), 0.15..=1.0_f64);
        let policies = proptest::collection::vec((policy, any::<bool>()), 0..12);
        policies.prop_map(|policies| {
            let policies = policies.into_iter().zip(0..);
            let policy = |(((level, created, _), overrides), name)| Policy {
                level,
                created,
                name,
                overrides,
            };
            policies.map(policy).collect()
        })
    }

    fn levels(policies: &[Policy]) -> Vec<Level<Policy>> {
        let mut levels = vec![Vec::new(); LEVELS];
        for policy in policies {
            levels[policy.level].push(*policy);
        }
        for level in &mut levels {
            level.sort_by_key(|policy| (policy.created, policy.name));
        }
        levels
    }

    fn check(policies: &[Policy]) -> Result<(), TestCaseError> {
        let levels = levels(policies);
        let applied = merge(&levels);
        for (at, level) in levels.iter().enumerate() {
            for (place, policy) in level.iter().enumerate() {
                let expected = has_effect(policy, policies);
                prop_assert_eq!(applied.contains(policy), expected, "{:?}", policy);
                prop_assert_eq!(obstacle(&levels, (at, place)).is_none(), expected);
            }
        }
        prop_assert!(applied.is_sorted_by_key(|policy| policy.level));
        let mut shuffled = policies.to_vec();
        shuffled.reverse();
        prop_assert_eq!(merge(&self::levels(&shuffled)), applied);
        Ok(())
    }

    fn run(cases: u32) {
        let config = ProptestConfig {
            cases,
            ..ProptestConfig::default()
        };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        runner
            .run(&policies(), |policies| check(&policies))
            .unwrap();
    }

    #[test]
    fn merge_is_what_the_rules_say() {
        run(1_000);
    }

    #[test]
    #[ignore = "takes longer: cargo test merge -- --ignored"]
    fn merge_is_what_the_rules_say_in_100_000_cases() {
        run(100_000);
    }
}
