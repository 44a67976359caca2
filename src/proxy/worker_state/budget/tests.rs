//! Shares of clients, and tasks that wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

const LIMIT: usize = 1024 * 1024;

/// Counts how often a task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the waker of a task, and what says how often it was woken.
fn task() -> (Waker, impl Fn() -> usize) {
    let woken = Arc::new(Woken::default());
    let waker = woken.clone().into();
    (waker, move || woken.0.load(Ordering::Relaxed))
}

/// Takes all that a new connection from `address` can get, in small steps.
fn greedy(budget: &Rc<Budget>, address: &str) -> Held {
    let mut held = Held::none(&budget.share(address.parse().unwrap()));
    while held.resize(held.bytes + 16) {}
    held
}

#[test]
fn connection_gets_a_part_of_what_is_free() {
    let budget = Budget::new(LIMIT, CONNECTION);
    let share = budget.share("192.0.2.1".parse().unwrap());
    let (mut first, mut second) = (Held::none(&share), Held::none(&share));
    let most = LIMIT / (CONNECTION + 1) / 2;
    assert!(first.resize(most) && second.resize(most));
    assert!(!first.resize(2 * most) && !Held::none(&share).resize(16));
    assert_eq!(budget.held(), 2 * most);
    assert!(second.resize(0) && first.resize(2 * most));
    drop((first, second));
    assert_eq!((budget.held(), share.held.get()), (0, 0));
}

#[test]
fn greedy_address_leaves_half_to_others() {
    let budget = Budget::new(LIMIT, CONNECTION);
    let networks = ["192.0.2.1", "2001:db8::1", "2001:db8::ffff:1"];
    let hostile: Vec<_> = (0..200).map(|_| greedy(&budget, networks[0])).collect();
    assert!(budget.held() <= LIMIT / 2);
    let polite = greedy(&budget, networks[1]);
    assert!(polite.bytes >= LIMIT / 2 / (CONNECTION + 1) - 16);
    let mut neighbours: Vec<_> = (0..200).map(|_| greedy(&budget, networks[2])).collect();
    neighbours.push(polite);
    let of_network: usize = neighbours.iter().map(|held| held.bytes).sum();
    assert!(of_network <= LIMIT / 4, "{of_network} bytes of one network");
    assert_eq!(budget.addresses.borrow().len(), 2);
    drop((hostile, neighbours));
    assert_eq!((budget.held(), budget.addresses.borrow().len()), (0, 0));
}

#[test]
fn bodies_of_pickers_have_what_their_address_may_hold() {
    let budget = Budget::new(LIMIT, CONNECTION);
    let share = budget.share("192.0.2.1".parse().unwrap());
    let mut picked = Held::none(&share.of_picked());
    assert!(!Held::none(&share).resize(LIMIT / 4) && picked.resize(LIMIT / 4));
    let mut other = Held::none(&share.of_picked());
    assert!(other.resize(LIMIT / 4));
    // Half of the budget is left to others, whatever share it is of.
    assert!(!other.resize(LIMIT / 4 + 16) && !Held::none(&share.of_picked()).resize(16));
    assert!(!Held::none(&share).resize(16));
    drop((picked, other, share));
    assert_eq!((budget.held(), budget.addresses.borrow().len()), (0, 0));
}

#[test]
fn first_bytes_of_a_client_are_permitted() {
    let budget = Budget::new(LIMIT, BEGINNING);
    let held = |address: &str| Held::none(&budget.share(address.parse().unwrap()));
    let (mut first, mut second) = (held("192.0.2.1"), held("192.0.2.1"));
    assert!(first.resize_first(LIMIT) && first.resize_first(2 * LIMIT));
    assert!(!second.resize_first(16));
    let mut other = held("192.0.2.2");
    assert!(!other.resize(16) && other.resize_first(16));
    assert_eq!(budget.held(), 2 * LIMIT + 16);
    drop(first);
    assert!(second.resize_first(16) && budget.held() == 32);
}

#[test]
fn task_is_woken_once_its_client_may_hold_more() {
    let budget = Budget::new(LIMIT, CONNECTION);
    let share = budget.share("192.0.2.1".parse().unwrap());
    let (waker, times) = task();
    let cx = Context::from_waker(&waker);
    let most = LIMIT / (CONNECTION + 1);
    let (mut first, mut second) = (Held::none(&share), Held::none(&share));
    assert!(first.resize(most) && !second.resize_or_wait(16, &cx));
    // What others free is not enough.
    let mut other = Held::none(&budget.share("192.0.2.2".parse().unwrap()));
    assert!(other.resize(16));
    drop(other);
    assert_eq!(times(), 0);
    assert!(first.resize(most / 2) && first.resize(0));
    assert_eq!(times(), 1);
    assert!(second.resize_or_wait(16, &cx) && budget.waiting.borrow().is_empty());
    // One that has left is not woken.
    assert!(first.resize(most - 16) && !second.resize_or_wait(most, &cx));
    drop(second);
    drop(first);
    assert_eq!((times(), budget.held()), (1, 0));
    assert!(budget.waiting.borrow().is_empty());
}

#[test]
fn freed_bytes_wake_only_as_many_tasks_as_they_suffice_for() {
    let budget = Budget::new(LIMIT, CONNECTION);
    let mut first = greedy(&budget, "192.0.2.1");
    let (waker, times) = task();
    let cx = Context::from_waker(&waker);
    let mut waiting: Vec<_> = (0..1000).map(|_| Held::none(&first.share)).collect();
    for held in &mut waiting {
        assert!(!held.resize_or_wait(16, &cx));
    }
    let all = budget.held();
    assert!(first.resize(first.bytes - 16));
    assert_eq!((times(), budget.held()), (1, all));
    // The one that has waited longest leaves what it has got to the next one, and another one has got nothing.
    drop(waiting.remove(0));
    assert_eq!((times(), budget.held()), (2, all));
    drop(waiting.pop());
    assert_eq!((times(), budget.held()), (2, all));
    assert!(!waiting[1].resize_or_wait(16, &cx) && waiting[0].resize_or_wait(16, &cx));
    assert!(waiting[0].resize(0) && times() == 3);
    assert!(waiting[1].resize(16), "it keeps its place");
    drop((first, waiting));
    assert_eq!(budget.held(), 0);
    assert!(budget.waiting.borrow().is_empty());
}

#[test]
fn task_that_stops_waiting_holds_up_no_other() {
    let budget = Budget::new(LIMIT, CONNECTION);
    let mut first = greedy(&budget, "192.0.2.1");
    let (waker, times) = task();
    let cx = Context::from_waker(&waker);
    // Another connection of the client, whose task comes first and asks for too much.
    let other = budget.share("192.0.2.1".parse().unwrap());
    let (mut large, mut small) = (Held::none(&other), Held::none(&first.share));
    assert!(!large.resize_or_wait(LIMIT / 2, &cx) && !small.resize_or_wait(16, &cx));
    assert!(first.resize(first.bytes - 16));
    assert_eq!(times(), 1);
    assert!(small.resize(16) && !small.resize_or_wait(32, &cx));
    drop(large);
    assert_eq!(times(), 1);
    assert!(first.resize(first.bytes - 16));
    assert_eq!(times(), 2);
    assert!(small.resize(32));
}

#[test]
fn tasks_that_wait_hold_up_none_of_another_client() {
    let budget = Budget::new(LIMIT, CONNECTION);
    let ((of_hostile, hostile_times), (of_polite, polite_times)) = (task(), task());
    let wait = |held: &Held, task: &Waker| {
        let mut more = Held::none(&held.share);
        assert!(!more.resize_or_wait(16, &Context::from_waker(task)));
        more
    };
    let hostile: Vec<_> = (0..200).map(|_| greedy(&budget, "192.0.2.1")).collect();
    let mut polite = greedy(&budget, "192.0.2.2");
    let waiting: Vec<_> = hostile.iter().map(|it| wait(it, &of_hostile)).collect();
    let mut next = wait(&polite, &of_polite);
    assert!(polite.resize(polite.bytes - 16));
    assert_eq!((polite_times(), hostile_times()), (1, 0));
    assert!(next.resize(16));
    drop(hostile);
    assert_eq!(hostile_times(), waiting.len());
    drop((polite, next, waiting));
    assert_eq!((budget.held(), budget.addresses.borrow().len()), (0, 0));
    assert!(budget.waiting.borrow().is_empty());
}

#[test]
fn every_worker_has_room_for_some_replays() {
    assert_eq!(Budget::of_worker(1).limit, PROCESS);
    assert_eq!(Budget::of_worker(4).limit, PROCESS / 4);
    assert_eq!(Budget::of_worker(128).limit, MIN);
}
