//! Matches that are shadowed: an earlier match of the same hostname and listener accepts every request that they accept.
//! Those of a whole IR are found here, and those on one listener as routes change in [`index`].

mod index;

use std::fmt;

use crate::ir::{Hostname, Ir, Listener, ListenerKey, RuleId};

pub(in crate::translate) use self::index::{Candidate, MatchIndex};

/// A match that gets no request under a hostname of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// The listener.
    pub listener: ListenerKey,
    /// The hostname.
    pub hostname: Hostname,
    /// The rule.
    pub rule: RuleId,
    /// Index of the match in its rule.
    pub index: usize,
    /// The rule that gets the requests.
    pub winner: RuleId,
}

/// Prints what is wrong with the route of the rule.
impl fmt::Display for Shadowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            listener,
            hostname,
            rule,
            index,
            winner,
        } = self;
        write!(
            f,
            "spec.rules[{}].matches[{index}] gets no request for host {hostname} of {listener}: spec.rules[{}] of {} \
             has the same match or a wider one, and comes first",
            rule.index, winner.index, winner.route
        )
    }
}

/// All such matches, in order of listeners, hostnames and precedence.
pub fn shadowed(ir: &Ir) -> Vec<Shadowed> {
    let mut listeners: Vec<&Listener> = Vec::new();
    for listener in ir.ports.iter().flat_map(|port| &port.listeners) {
        // A Gateway with several addresses has its listeners once for each.
        if !listeners.iter().any(|known| known.key == listener.key) {
            listeners.push(listener);
        }
    }
    listeners.into_iter().flat_map(of_listener).collect()
}

fn of_listener(listener: &Listener) -> Vec<Shadowed> {
    let mut index = MatchIndex::default();
    listener.routes.iter().for_each(|route| index.attach(route));
    let mut found = Vec::new();
    for attached in listener.routes.iter() {
        for candidate in index::candidates(&attached.route) {
            for hostname in attached.hostnames.iter() {
                let winner = index.winner(hostname, &candidate);
                let shadowed = winner.map(|winner| Shadowed {
                    listener: listener.key.clone(),
                    hostname: hostname.clone(),
                    rule: candidate.rule.id.clone(),
                    index: candidate.precedence.r#match,
                    winner: winner.clone(),
                });
                found.extend(shadowed.map(|it| (candidate.precedence.clone(), it)));
            }
        }
    }
    found.sort_by(|one, two| (&one.1.hostname, &one.0).cmp(&(&two.1.hostname, &two.0)));
    found.into_iter().map(|(_, shadowed)| shadowed).collect()
}

#[cfg(test)]
mod tests;
