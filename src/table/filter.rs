//! Filters at run time: those of a rule or backendRef, with the nodes of the backends that they refer to.

use rand::{Rng, RngExt};

use super::backends::Backends;
use super::target::BackendTarget;
use crate::ir;
use crate::ir::filter::Fraction;

/// The filters of a rule or backendRef.
#[derive(Clone, Copy, Debug)]
pub struct Filters<'a> {
    /// All of them, in order.
    pub all: &'a [ir::Filter],
    targets: &'a Targets,
}

/// The targets of the filters that have one, in their order. As small as a pointer, since most rules have none.
#[derive(Debug, Default)]
pub(super) struct Targets(Option<Box<TargetList>>);

#[derive(Debug)]
struct TargetList(Box<[BackendTarget]>);

impl<'a> Filters<'a> {
    pub(super) fn new(all: &'a [ir::Filter], targets: &'a Targets) -> Self {
        Self { all, targets }
    }

    /// Returns the targets of the filters that have one, in their order.
    pub fn targets(&self) -> impl Iterator<Item = &'a BackendTarget> + use<'a> {
        self.targets.all().iter()
    }
}

impl Targets {
    pub(super) fn new(filters: &[ir::Filter], backends: &Backends) -> Self {
        let targets = filters.iter().filter_map(ir::Filter::target);
        let targets = targets.map(|one| BackendTarget::new(one, backends));
        let targets: Box<[_]> = targets.collect();
        Self((!targets.is_empty()).then(|| Box::new(TargetList(targets))))
    }

    fn all(&self) -> &[BackendTarget] {
        self.0.as_ref().map_or(&[], |list| &list.0)
    }

    /// Reports whether one of the targets is a backend that the table does not have.
    pub(super) fn lack_backends(&self, filters: &[ir::Filter]) -> bool {
        let targets = filters.iter().filter_map(ir::Filter::target);
        let mut all = self.all().iter().zip(targets);
        all.any(|(node, ir)| node.is_missing(ir))
    }

    /// Reports whether building these targets again would yield the same nodes.
    pub(super) fn are_current(&self, filters: &[ir::Filter], backends: &Backends) -> bool {
        let mut all = self
            .all()
            .iter()
            .zip(filters.iter().filter_map(ir::Filter::target));
        all.all(|(node, ir)| node.is_current(ir, backends))
    }
}

/// Draws whether a request is in the fraction.
pub fn draw(fraction: Fraction, random: &mut impl Rng) -> bool {
    let Fraction {
        numerator,
        denominator,
    } = fraction;
    match numerator {
        0 => false,
        all if all >= denominator.get() => true,
        numerator => random.random_range(0..denominator.get()) < numerator,
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn fraction_of_requests_is_exact() {
        let mut random = StdRng::seed_from_u64(1);
        for (numerator, denominator, of_20_000) in [
            (0, 1, 0..=0),
            (1, 1, 20_000..=20_000),
            (100, 100, 20_000..=20_000),
            // Ten standard deviations of a binomial with n = 20,000.
            (1, 100, 60..=340),
            (25, 50, 9_293..=10_707),
            (2, 3, 12_667..=14_000),
            (2_147_483_646, 2_147_483_647, 19_999..=20_000),
        ] {
            let fraction = Fraction {
                numerator,
                denominator: denominator.try_into().unwrap(),
            };
            let count = (0..20_000).filter(|_| draw(fraction, &mut random)).count();
            assert!(
                of_20_000.contains(&count),
                "{numerator}/{denominator}: {count}"
            );
        }
    }
}
