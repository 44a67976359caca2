//! Which client connections of a worker are idle, so that a new client can have the place of one when
//! there is no other. Those of the address with the most connections go first, and of these the one
//! that has been idle for longest.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use slab::Slab;

use crate::ir::keyed::KeyedMap;
use crate::proxy::activity::{Activity, Registration, Registry};

/// Maximum number of connections that one search finds: at the limit, a new connection must not cost
/// a look at all of them.
const BATCH: usize = 64;
/// Number of connections from which on a search that finds none is not repeated at the same clock time.
const MANY: usize = 1024;

/// The connections of one worker.
#[derive(Default)]
pub(crate) struct Connections {
    open: RefCell<Slab<Entry>>,
    /// The result of the last search, the next one to close at its end.
    found: RefCell<Vec<Found>>,
    /// Clock time of the last search that found none among many connections.
    found_none: Cell<Option<u64>>,
    registrations: Cell<u64>,
}

/// An idle connection.
struct Found {
    activity: Weak<Activity>,
    since: u64,
}

struct Entry {
    peer: IpAddr,
    /// Number of earlier connections: times are too coarse to order those of a burst.
    number: u64,
    activity: Weak<Activity>,
}

impl Connections {
    /// Adds a connection.
    pub(crate) fn register(self: &Rc<Self>, peer: IpAddr, activity: &Rc<Activity>) {
        let number = self.registrations.replace(self.registrations.get() + 1);
        let entry = Entry {
            peer,
            number,
            activity: Rc::downgrade(activity),
        };
        let key = self.open.borrow_mut().insert(entry);
        activity.set_registration(Registration {
            registry: self.clone(),
            key,
        });
    }

    /// Makes an idle connection close. Returns false if there is none. `now` is the clock time.
    pub(crate) fn evict(&self, now: u64) -> bool {
        let mut found = self.found.borrow_mut();
        for has_searched in [false, true] {
            if has_searched {
                if self.found_none.get() == Some(now) {
                    return false;
                }
                *found = self.search();
            }
            while let Some(Found { activity, since }) = found.pop() {
                let activity = activity.upgrade();
                // One that was used since the search is no longer the oldest.
                let unused = activity.filter(|it| it.idle_since() == Some(since));
                if unused.is_some_and(|activity| activity.evict()) {
                    return true;
                }
            }
        }
        // Clients that get no place must not keep the worker busy with searches.
        let are_many = self.open.borrow().len() >= MANY;
        self.found_none.set(are_many.then_some(now));
        false
    }

    /// Returns at most half of the idle connections, so that those which were idle for a moment only
    /// are not among them.
    fn search(&self) -> Vec<Found> {
        let open = self.open.borrow();
        let mut by_peer: KeyedMap<IpAddr, u32> = KeyedMap::default();
        for (_, entry) in open.iter() {
            *by_peer.entry(entry.peer).or_default() += 1;
        }
        let idle = open.iter().filter_map(|(_, entry)| {
            let since = entry.activity.upgrade()?.idle_since()?;
            Some((Reverse(by_peer[&entry.peer]), since, entry))
        });
        let mut idle: Vec<_> = idle.collect();
        let order = |(connections, since, entry): &(Reverse<u32>, u64, &Entry)| {
            (*connections, *since, entry.number)
        };
        let count = idle.len().div_ceil(2).min(BATCH);
        if count < idle.len() {
            idle.select_nth_unstable_by_key(count, order);
            idle.truncate(count);
        }
        idle.sort_unstable_by_key(|it| Reverse(order(it)));
        let found = |(_, since, entry): (_, u64, &Entry)| Found {
            activity: entry.activity.clone(),
            since,
        };
        idle.into_iter().map(found).collect()
    }
}

impl Registry for Connections {
    fn remove(&self, key: usize) {
        self.open.borrow_mut().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::Clock;

    fn peer(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    struct Fixture {
        clock: Rc<Clock>,
        connections: Rc<Connections>,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                clock: Clock::new(),
                connections: Rc::default(),
            }
        }

        /// A connection that is idle since `time`.
        fn connection(&self, number: u8, time: u64) -> Rc<Activity> {
            self.clock.advance(time);
            let activity = Activity::connection(&self.clock, &Rc::default(), false);
            self.connections.register(peer(number), &activity);
            activity
        }

        fn evict(&self) -> bool {
            self.connections.evict(self.clock.now())
        }
    }

    #[test]
    fn evicts_the_connection_that_is_idle_for_longest() {
        let fixture = Fixture::new();
        let first = fixture.connection(1, 100);
        let second = fixture.connection(2, 200);
        let busy = fixture.connection(3, 0);
        busy.on_request();
        assert!(fixture.evict() && first.is_evicted());
        assert!(!second.is_evicted());
        assert!(fixture.evict() && second.is_evicted());
        assert!(!fixture.evict() && !busy.is_evicted());
        busy.on_request_end();
        assert!(fixture.evict() && busy.is_evicted());
    }

    #[test]
    fn evicts_connections_of_the_address_with_the_most_first() {
        let fixture = Fixture::new();
        let polite = fixture.connection(1, 100);
        let many: Vec<_> = (2..150)
            .map(|time| fixture.connection(2, time * 100))
            .collect();
        for _ in 0..147 {
            assert!(fixture.evict());
        }
        assert!(!polite.is_evicted());
        assert_eq!(many.iter().filter(|it| it.is_evicted()).count(), 147);
    }

    #[test]
    fn many_busy_connections_are_searched_once_at_a_time() {
        for (count, is_repeated) in [(MANY - 1, true), (MANY, false)] {
            let fixture = Fixture::new();
            let busy: Vec<_> = (0..count).map(|_| fixture.connection(1, 0)).collect();
            busy.iter().for_each(|it| it.on_request());
            assert!(!fixture.evict());
            busy[0].on_request_end();
            busy[1].on_request_end();
            assert_eq!(fixture.evict(), is_repeated, "{count}");
            fixture.clock.advance(100);
            assert!(fixture.evict());
        }
    }

    #[test]
    fn closed_connections_leave_no_entry() {
        let fixture = Fixture::new();
        drop(fixture.connection(1, 100));
        assert!(fixture.connections.open.borrow().is_empty());
        assert!(!fixture.evict());
    }
}
