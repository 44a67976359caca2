//! One listener: which of its routes are accepted there. Decides only about routes that a change affects, the first in
//! rank first. Must not know other listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::hosts::HostIndex;
use super::rank::Rank;
use crate::ir::{Hostname, Hostnames, ObjectRef, RouteKind};
use crate::translate::keys::Keys;

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
    routes: Keys<ObjectRef>,
    /// Number of HTTPRoutes among them.
    http: usize,
    /// The decisions. `None` while all routes are of one kind, as on most listeners: then all of them are accepted.
    decisions: Option<Box<Decisions>>,
}

/// Which routes of a listener are accepted.
#[derive(Default)]
struct Decisions {
    claims: BTreeMap<Arc<Rank>, Hostnames>,
    /// The decided routes.
    decided: BTreeMap<Arc<Rank>, Decided>,
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

/// The last decision about a route.
struct Decided {
    decision: Decision,
    hostnames: Hostnames,
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
        self.routes.is_empty()
    }

    /// Returns why a route is not accepted, if it is not.
    pub(super) fn loss(&self, route: &ObjectRef) -> Option<&Loss> {
        self.decisions.as_ref()?.losses.get(route)
    }

    /// Forgets why a route without a claim was not accepted. Returns whether it was not.
    pub(super) fn forget(&mut self, route: &ObjectRef) -> bool {
        let decisions = self.decisions.as_mut();
        decisions.is_some_and(|it| it.losses.remove(route).is_some())
    }

    /// Adds a route with its rank and hostnames.
    pub(super) fn insert(
        &mut self,
        route: &ObjectRef,
        kind: RouteKind,
        claim: impl FnOnce() -> (Rank, Hostnames),
    ) {
        if self.routes.insert(route) {
            self.http += usize::from(kind == RouteKind::Http);
        }
        if let Some(decisions) = &mut self.decisions {
            let (rank, hostnames) = claim();
            decisions.insert(Arc::new(rank), hostnames);
        }
    }

    /// Removes a route, which had this rank.
    pub(super) fn remove(&mut self, route: &ObjectRef, rank: impl FnOnce() -> Rank) {
        if self.routes.remove(route) {
            let rank = rank();
            self.http -= usize::from(rank.kind == RouteKind::Http);
            if let Some(decisions) = &mut self.decisions {
                decisions.remove(&Arc::new(rank));
            }
        }
    }

    /// Decides about the routes that changes affect. Adds those with another result to `differ`. `claim_of` returns rank
    /// and hostnames of a route.
    pub(super) fn decide(
        &mut self,
        claim_of: impl Fn(&ObjectRef) -> Option<(Rank, Hostnames)>,
        differ: &mut BTreeSet<ObjectRef>,
    ) {
        let is_mixed = self.http > 0 && self.http < self.routes.len();
        if !is_mixed {
            let previous = self.decisions.take();
            let lost = previous.into_iter().flat_map(|it| it.losses.into_keys());
            differ.extend(lost);
            return;
        }
        let all = || {
            let mut decisions = Box::<Decisions>::default();
            for (rank, hostnames) in self.routes.iter().filter_map(claim_of) {
                decisions.insert(Arc::new(rank), hostnames);
            }
            decisions
        };
        self.decisions.get_or_insert_with(all).decide(differ);
    }
}

impl Decisions {
    fn insert(&mut self, rank: Arc<Rank>, hostnames: Hostnames) {
        self.undecided.insert(rank.clone());
        self.claims.insert(rank, hostnames);
    }

    fn remove(&mut self, rank: &Arc<Rank>) {
        self.claims.remove(rank);
        self.take_out(rank);
        self.undecided.remove(rank);
        if let Some(decided) = self.decided.remove(rank)
            && decided.decision == Decision::Accepted
        {
            self.reconsider_losers_to(rank, &decided.hostnames);
        }
    }

    fn decide(&mut self, differ: &mut BTreeSet<ObjectRef>) {
        // What a decision affects comes later in rank, so each route is decided about once.
        while let Some(rank) = self.undecided.pop_first() {
            let Some(hostnames) = self.claims.get(&rank).cloned() else {
                continue;
            };
            let winner = self.first_before(&rank, &hostnames);
            let loss = winner.clone().and_then(|winner| {
                let hostname = widest(&hostnames, self.claims.get(&winner)?)?;
                Some(Loss { winner, hostname })
            });
            let decision = winner.map_or(Decision::Accepted, Decision::LostTo);
            self.apply(&rank, &hostnames, decision);
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
    fn apply(&mut self, rank: &Arc<Rank>, hostnames: &Hostnames, decision: Decision) {
        for hostname in hostnames.iter() {
            match &decision {
                Decision::Accepted => self.accepted.of(rank.kind).insert(hostname, rank),
                Decision::LostTo(winner) => {
                    let lost = (winner.clone(), rank.clone());
                    self.lost.of(rank.kind).insert(hostname, &lost);
                }
            }
        }
        let is_accepted = decision == Decision::Accepted;
        let decided = Decided {
            decision,
            hostnames: hostnames.clone(),
            is_indexed: true,
        };
        let previous = self.decided.insert(rank.clone(), decided);
        let was_accepted = previous.is_some_and(|it| it.decision == Decision::Accepted);
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
    fn take_out(&mut self, rank: &Arc<Rank>) {
        let Some(decided) = self.decided.get_mut(rank).filter(|it| it.is_indexed) else {
            return;
        };
        decided.is_indexed = false;
        for hostname in decided.hostnames.iter() {
            match &decided.decision {
                Decision::Accepted => self.accepted.of(rank.kind).remove(hostname, rank),
                Decision::LostTo(winner) => {
                    let lost = (winner.clone(), rank.clone());
                    self.lost.of(rank.kind).remove(hostname, &lost);
                }
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
