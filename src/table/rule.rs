//! Rules at run time: their counters and the weighted choice among their backends. Knows nothing of how a request comes
//! to a rule.

use std::sync::Arc;

use rand::RngExt;

use super::backend::Backend;
use super::build::Backends;
use super::stats::RuleStats;
use crate::ir;
use crate::ir::Precedence;
use crate::ir::route::{Action, WeightedBackend};

/// A rule of a route, shared by all listeners that the route is attached to.
#[derive(Debug)]
pub struct Rule {
    /// What the rule says.
    pub ir: Arc<ir::Rule>,
    /// Its counters; they outlive changes of the rule as long as its name stays.
    pub stats: Arc<RuleStats>,
    shares: Shares,
    /// When its route was created, which decides between rules.
    created: Option<i64>,
}

/// The shares of weight 1 and above. Most rules have one, which is picked without a look elsewhere.
#[derive(Debug)]
enum Shares {
    One(Share),
    Many {
        shares: Box<[Share]>,
        /// Sums of the weights up to and including each share.
        sums: Box<[u64]>,
    },
}

/// A share of a rule's traffic.
#[derive(Debug)]
pub struct Share {
    /// Filters of this share only, after the rule's.
    pub filters: Arc<[ir::Filter]>,
    /// Where it goes.
    pub target: Target,
}

/// Where a share goes.
#[derive(Clone, Debug)]
pub enum Target {
    /// To a backend.
    Backend(Arc<Backend>),
    /// Nowhere: answered with 500, for this reason.
    Invalid(Arc<str>),
}

/// What [`Rule::pick`] came to.
#[derive(Clone, Copy, Debug)]
pub enum Pick<'a> {
    /// This share.
    Share(&'a Share),
    /// The rule has no backends, or none with a weight.
    None,
}

impl Rule {
    pub(super) fn new(
        ir: Arc<ir::Rule>,
        created: Option<i64>,
        stats: Arc<RuleStats>,
        backends: &Backends,
    ) -> Self {
        let (mut shares, mut sums, mut sum) = (Vec::new(), Vec::new(), 0);
        for share in weighted(&ir) {
            sum += u64::from(share.weight);
            sums.push(sum);
            shares.push(Share {
                filters: share.filters.as_slice().into(),
                target: resolve(share, backends),
            });
        }
        let shares = match shares.pop() {
            Some(only) if shares.is_empty() => Shares::One(only),
            last => Shares::Many {
                shares: shares.into_iter().chain(last).collect(),
                sums: sums.into(),
            },
        };
        Self {
            ir,
            stats,
            shares,
            created,
        }
    }

    /// Whether this node, of the previous table or this one, would be built from `ir` and `created` again.
    pub(super) fn is_current(
        &self,
        ir: &Arc<ir::Rule>,
        created: Option<i64>,
        backends: &Backends,
    ) -> bool {
        self.created == created && self.ir == *ir && self.keeps_its(backends)
    }

    /// Whether this node, of the previous table or this one, would get the same backends again.
    pub(super) fn keeps_its(&self, backends: &Backends) -> bool {
        let is_kept = |(index, share): (usize, &Share)| match &share.target {
            Target::Backend(node) => !backends.is_gone(node),
            Target::Invalid(_) => match weighted(&self.ir).nth(index).map(|share| &share.target) {
                Some(ir::route::Target::Backend(id)) => backends.get(id).is_none(),
                _ => true,
            },
        };
        self.shares().iter().enumerate().all(is_kept)
    }

    /// The place of its `index`-th match among all matches.
    pub(super) fn precedence(&self, index: usize) -> Precedence {
        Precedence::http(self.created, &self.ir, index)
    }

    /// Chooses a share at random, by weight.
    #[inline]
    pub fn pick(&self) -> Pick<'_> {
        match &self.shares {
            Shares::One(share) => Pick::Share(share),
            Shares::Many { shares, sums } => draw(shares, sums),
        }
    }

    /// The shares that can be picked.
    pub fn shares(&self) -> &[Share] {
        match &self.shares {
            Shares::One(share) => std::slice::from_ref(share),
            Shares::Many { shares, .. } => shares,
        }
    }
}

fn draw<'a>(shares: &'a [Share], sums: &[u64]) -> Pick<'a> {
    let Some(total) = sums.last() else {
        return Pick::None;
    };
    let drawn = rand::rng().random_range(0..*total);
    let at = sums.partition_point(|sum| *sum <= drawn);
    shares.get(at).map_or(Pick::None, Pick::Share)
}

fn weighted(ir: &ir::Rule) -> impl Iterator<Item = &WeightedBackend> {
    let all: &[WeightedBackend] = match &ir.action {
        Action::Forward(backends) => backends,
        Action::Broken(_) => &[],
    };
    all.iter().filter(|share| share.weight > 0)
}

fn resolve(share: &WeightedBackend, backends: &Backends) -> Target {
    match &share.target {
        ir::route::Target::Backend(id) => backends.get(id).cloned().map_or_else(
            || Target::Invalid("the backend is not part of the configuration".into()),
            Target::Backend,
        ),
        ir::route::Target::Invalid(reason) => Target::Invalid(reason.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{ObjectRef, RuleId};

    fn rule(weights: &[u32]) -> Rule {
        let share = |(index, weight): (usize, &u32)| WeightedBackend {
            weight: *weight,
            target: ir::route::Target::Invalid(index.to_string().into()),
            filters: Vec::new(),
        };
        let ir = ir::Rule {
            id: RuleId {
                route: ObjectRef::gateway_api("HTTPRoute", "ns", "route"),
                index: 0,
                name: None,
            },
            matches: Vec::new(),
            filters: Vec::new(),
            action: Action::Forward(weights.iter().enumerate().map(share).collect()),
            timeouts: ir::route::Timeouts::default(),
        };
        Rule::new(Arc::new(ir), None, Arc::default(), &Backends::default())
    }

    fn picked(rule: &Rule) -> Option<usize> {
        match rule.pick() {
            Pick::Share(Share {
                target: Target::Invalid(name),
                ..
            }) => Some(name.parse().unwrap()),
            _ => None,
        }
    }

    #[test]
    fn without_weight_there_is_nothing_to_pick() {
        assert_eq!(picked(&rule(&[])), None);
        assert_eq!(picked(&rule(&[0, 0])), None);
    }

    #[test]
    fn shares_of_weight_zero_are_never_picked() {
        let rule = rule(&[0, 1, 0]);
        assert!((0..100).all(|_| picked(&rule) == Some(1)));
    }

    #[test]
    fn picks_in_proportion_to_weight() {
        let rule = rule(&[1, 0, 3]);
        let mut counts = [0; 3];
        for _ in 0..20_000 {
            counts[picked(&rule).unwrap()] += 1;
        }
        assert_eq!(counts[1], 0);
        // Ten standard deviations of a binomial with n = 20,000 and p = 1/4.
        assert!((4_380..=5_620).contains(&counts[0]), "{counts:?}");
    }
}
