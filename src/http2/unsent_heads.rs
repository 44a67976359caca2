//! Heads of responses that wait for a client that does not read its connection. They count as memory of the worker, but no window
//! keeps backends from sending them, and they are read whole: one client has half of the memory for them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::held::{self, Held, Holder, Owner};

thread_local! {
    /// Bytes of each client.
    static HEADS: RefCell<BTreeMap<Owner, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns the maximum bytes of one client.
fn max() -> usize {
    held::max() / 2
}

/// Returns the bytes of a client.
fn held_by(owner: Owner) -> usize {
    HEADS.with_borrow(|heads| heads.get(&owner).copied().unwrap_or_default())
}

/// Counts a head.
pub(super) fn add(owner: Owner, bytes: usize) {
    HEADS.with_borrow_mut(|heads| *heads.entry(owner).or_default() += bytes);
}

/// Stops counting a head.
pub(super) fn remove(owner: Owner, bytes: usize) {
    // Fails only while the thread ends.
    let _ = HEADS.try_with(|heads| {
        let mut heads = heads.borrow_mut();
        let before = heads.get(&owner).copied().unwrap_or_default();
        match before.saturating_sub(bytes) {
            0 => heads.remove(&owner),
            left => heads.insert(owner, left),
        }
    });
}

/// Fails responses if the client holds too much: those of its connection that holds most first, and of these the ones that
/// have waited longest.
pub(super) fn enforce(owner: Owner) {
    if held_by(owner) <= max() {
        return;
    }
    let holders = held::by_size();
    let is_response = |it: &&Holder| it.owner == owner && matches!(it.what, Held::Response(_));
    let responses = holders.iter().filter(is_response);
    held::fail(responses, || held_by(owner) <= max() / 8 * 7);
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::{Context, Waker};

    use super::super::{Bodies, Waiting, Windows};
    use super::*;

    const WINDOWS: Windows = Windows {
        initial: 0,
        full: 0,
        max_unread: usize::MAX,
    };
    /// Bytes of the body of each response.
    const BODY: usize = 1024;

    /// A connection of the client with this number.
    fn connection_of(client: u8) -> Rc<Bodies> {
        Bodies::new(WINDOWS, Some([192, 0, 2, client].into()))
    }

    fn wait(bodies: &Rc<Bodies>, head: usize) -> Waiting {
        let cx = Context::from_waker(Waker::noop());
        Waiting::for_response(bodies, (head, BODY), &cx)
    }

    #[test]
    fn beyond_half_of_the_memory_responses_of_the_client_fail_that_have_waited_longest() {
        let [holder, same, other] = [1, 1, 2].map(connection_of);
        let head = max() / 8;
        let oldest = [wait(&same, head), wait(&other, head)];
        let mut many: Vec<_> = (0..7).map(|_| wait(&holder, head)).collect();
        assert!(!many.iter().any(Waiting::has_failed), "half is allowed");
        many.push(wait(&holder, head));
        let failed: Vec<_> = many.iter().map(Waiting::has_failed).collect();
        let expected = [true, true, false, false, false, false, false, false];
        assert_eq!(failed, expected);
        assert!(!oldest.iter().any(Waiting::has_failed));
        assert_eq!(held_by(holder.owner(None)), 7 * head);
        assert_eq!(held::total(), 8 * (head + BODY));
        drop((oldest, many));
        assert!(HEADS.with_borrow(BTreeMap::is_empty));
        assert_eq!(held::total(), 0);
    }

    #[test]
    fn bodies_do_not_count_as_heads() {
        let connection = connection_of(1);
        let cx = Context::from_waker(Waker::noop());
        let size = held::max() / 8;
        let respond = |_| Waiting::for_response(&connection, (BODY, size), &cx);
        let waiting: Vec<_> = (0..7).map(respond).collect();
        assert!(!waiting.iter().any(Waiting::has_failed));
    }
}
