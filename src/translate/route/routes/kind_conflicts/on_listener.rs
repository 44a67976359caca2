//! One listener: which of its routes are accepted there. Decides only about routes that a change affects, the first in
//! rank first. Must not know other listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::hosts::HostIndex;
use super::rank::Rank;
use crate::ir::{Hostname, ObjectRef, RouteKind};

/// A route of the other kind that is accepted instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    winner: Arc<Rank>,
    /// The widest hostname that both routes serve.
    pub(super) hostname: Hostname,
}

/// The routes of a listener.
#[derive(Default)]
pub(super) struct OnListener {
    claims: BTreeMap<Arc<Rank>, OfRoute>,
    accepted: ByKind<Arc<Rank>>,
    lost: ByKind<Lost>,
    /// Why routes are not accepted.
    losses: FxHashMap<ObjectRef, Loss>,
    /// Routes for which the decision may be another one.
    undecided: BTreeSet<Arc<Rank>>,
}

/// A route that is not accepted, after the first one in rank that is accepted instead. So the routes that lost to one, or
/// to one after it, follow each other.
type Lost = (Arc<Rank>, Arc<Rank>);

/// What a route claims.
struct OfRoute {
    hostnames: Arc<[Hostname]>,
    /// The last decision; `None` before the first one.
    decision: Option<Decision>,
    /// Whether it is among the accepted routes or the lost ones. An undecided route is not, so that it is found once.
    is_indexed: bool,
}

#[derive(Clone, PartialEq, Eq)]
enum Decision {
    Accepted,
    LostTo(Arc<Rank>),
}

/// Entries for the routes of each kind by hostname.
struct ByKind<T> {
    http: HostIndex<T>,
    grpc: HostIndex<T>,
}

impl Loss {
    /// Returns the route that is accepted.
    pub(super) fn winner(&self) -> &ObjectRef {
        &self.winner.route
    }
}

impl OnListener {
    /// Reports whether there are no routes.
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Returns why a route is not accepted, if it is not.
    pub(super) fn loss(&self, route: &ObjectRef) -> Option<&Loss> {
        self.losses.get(route)
    }

    /// Forgets why a route without a claim was not accepted. Returns whether it was not.
    pub(super) fn forget(&mut self, route: &ObjectRef) -> bool {
        self.losses.remove(route).is_some()
    }

    /// Adds a route.
    pub(super) fn insert(&mut self, rank: Arc<Rank>, hostnames: Arc<[Hostname]>) {
        self.undecided.insert(rank.clone());
        let claim = OfRoute {
            hostnames,
            decision: None,
            is_indexed: false,
        };
        self.claims.insert(rank, claim);
    }

    /// Removes a route.
    pub(super) fn remove(&mut self, rank: &Rank) {
        self.take_out(rank);
        if let Some((rank, claim)) = self.claims.remove_entry(rank) {
            self.undecided.remove(&rank);
            if claim.decision == Some(Decision::Accepted) {
                self.reconsider_losers_to(&rank, &claim.hostnames);
            }
        }
    }

    /// Decides about the routes that changes affect. Adds those with another result to `differ`.
    pub(super) fn decide(&mut self, differ: &mut BTreeSet<ObjectRef>) {
        // What a decision affects comes later in rank, so each route is decided about once.
        while let Some(rank) = self.undecided.pop_first() {
            let Some(hostnames) = self.claims.get(&rank).map(|it| it.hostnames.clone()) else {
                continue;
            };
            let winner = self.first_before(&rank, &hostnames);
            let loss = winner.clone().and_then(|winner| {
                let of_winner = &self.claims.get(&winner)?.hostnames;
                let hostname = widest(&hostnames, of_winner)?;
                Some(Loss { winner, hostname })
            });
            self.apply(
                &rank,
                &hostnames,
                winner.map_or(Decision::Accepted, Decision::LostTo),
            );
            if self.losses.get(&rank.route) != loss.as_ref() {
                differ.insert(rank.route.clone());
                match loss {
                    Some(loss) => self.losses.insert(rank.route.clone(), loss),
                    None => self.losses.remove(&rank.route),
                };
            }
        }
    }

    /// Applies the decision about a route, and has those routes decided about that it affects.
    fn apply(&mut self, rank: &Arc<Rank>, hostnames: &[Hostname], decision: Decision) {
        for hostname in hostnames {
            match &decision {
                Decision::Accepted => self.accepted.of(rank.kind).insert(hostname, rank),
                Decision::LostTo(winner) => {
                    let lost = (winner.clone(), rank.clone());
                    self.lost.of(rank.kind).insert(hostname, &lost);
                }
            }
        }
        let is_accepted = decision == Decision::Accepted;
        let claim = self.claims.get_mut(rank);
        let previous = claim.and_then(|claim| {
            claim.is_indexed = true;
            claim.decision.replace(decision)
        });
        let was_accepted = previous == Some(Decision::Accepted);
        if is_accepted && !was_accepted {
            self.reconsider_rivals_of(rank, hostnames);
        } else if was_accepted && !is_accepted {
            self.reconsider_losers_to(rank, hostnames);
        }
    }

    /// Has the routes decided about that come after one that is accepted now: those that were accepted, and those that
    /// lost to a later one.
    fn reconsider_rivals_of(&mut self, rank: &Arc<Rank>, hostnames: &[Hostname]) {
        let accepted = self.accepted.rivals(rank.kind, hostnames);
        let accepted = accepted.flat_map(|set| set.range(rank.clone()..));
        let lost = self.lost.rivals(rank.kind, hostnames);
        let lost = lost.flat_map(|set| set.range((rank.clone(), rank.clone())..));
        let affected = accepted.chain(lost.map(|(_, loser)| loser));
        let affected: Vec<_> = affected.cloned().collect();
        self.reconsider(affected);
    }

    /// Has the routes decided about that lost to one that is no longer accepted.
    fn reconsider_losers_to(&mut self, rank: &Arc<Rank>, hostnames: &[Hostname]) {
        let lost = self.lost.rivals(rank.kind, hostnames);
        let lost = lost.flat_map(|set| {
            let lost = set.range((rank.clone(), rank.clone())..);
            lost.take_while(|(winner, _)| winner == rank)
        });
        let affected: Vec<_> = lost.map(|(_, loser)| loser.clone()).collect();
        self.reconsider(affected);
    }

    fn reconsider(&mut self, affected: Vec<Arc<Rank>>) {
        for rank in affected {
            self.take_out(&rank);
            self.undecided.insert(rank);
        }
    }

    /// Removes a route from the accepted or the lost ones.
    fn take_out(&mut self, rank: &Rank) {
        let Some((rank, _)) = self.claims.get_key_value(rank) else {
            return;
        };
        let rank = rank.clone();
        let Some(claim) = self.claims.get_mut(&rank).filter(|it| it.is_indexed) else {
            return;
        };
        claim.is_indexed = false;
        for hostname in &*claim.hostnames {
            match &claim.decision {
                Some(Decision::Accepted) => self.accepted.of(rank.kind).remove(hostname, &rank),
                Some(Decision::LostTo(winner)) => {
                    let lost = (winner.clone(), rank.clone());
                    self.lost.of(rank.kind).remove(hostname, &lost);
                }
                None => {}
            }
        }
    }

    /// Returns the first accepted route of the other kind that comes before a route and has one of its hostnames.
    fn first_before(&self, rank: &Arc<Rank>, hostnames: &[Hostname]) -> Option<Arc<Rank>> {
        let sets = self.accepted.rivals(rank.kind, hostnames);
        let first = sets.filter_map(BTreeSet::first).min()?;
        (first < rank).then(|| first.clone())
    }
}

impl<T> Default for ByKind<T> {
    fn default() -> Self {
        Self {
            http: HostIndex::default(),
            grpc: HostIndex::default(),
        }
    }
}

impl<T: Ord + Clone> ByKind<T> {
    fn of(&mut self, kind: RouteKind) -> &mut HostIndex<T> {
        match kind {
            RouteKind::Grpc => &mut self.grpc,
            _ => &mut self.http,
        }
    }

    /// Returns the entries of the other kind with intersecting hostnames, as sets that may have entries in common.
    fn rivals(
        &self,
        kind: RouteKind,
        hostnames: &[Hostname],
    ) -> impl Iterator<Item = &BTreeSet<T>> {
        let others = match kind {
            RouteKind::Grpc => &self.http,
            _ => &self.grpc,
        };
        hostnames
            .iter()
            .flat_map(|hostname| others.intersecting(hostname))
    }
}

/// Returns the widest hostname that is in both lists.
fn widest(one: &[Hostname], other: &[Hostname]) -> Option<Hostname> {
    let pairs = one
        .iter()
        .flat_map(|one| other.iter().map(move |other| (one, other)));
    pairs
        .filter_map(|(one, other)| one.intersection(other))
        .max()
}
