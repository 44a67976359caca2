//! How many error pages a worker fetches at the same time: so many for each policy, and a part of these for each address of
//! clients. Must not know how pages are fetched.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use rustc_hash::FxHashMap;

use super::budget::{Budget, Held};
use crate::ir::ObjectRef;

/// The pages that a worker fetches, by policy.
#[derive(Default)]
pub(in crate::proxy) struct PageSlots(RefCell<FxHashMap<ObjectRef, Weak<Budget>>>);

impl PageSlots {
    /// Admits a page of a policy for a client until the result is dropped. `None` if there are too many.
    pub(in crate::proxy) fn admit(&self, policy: &ObjectRef, client: IpAddr) -> Option<Held> {
        let budget = self.budget(policy);
        let mut slot = Held::none(&budget.share(client));
        slot.resize(1).then_some(slot)
    }

    fn budget(&self, policy: &ObjectRef) -> Rc<Budget> {
        let mut budgets = self.0.borrow_mut();
        if let Some(budget) = budgets.get(policy).and_then(Weak::upgrade) {
            return budget;
        }
        budgets.retain(|_, budget| budget.strong_count() > 0);
        let budget = Budget::of_pages();
        budgets.insert(policy.clone(), Rc::downgrade(&budget));
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_has_slots_of_its_own_and_an_address_has_a_part_of_them() {
        let slots = PageSlots::default();
        let policy = |name: &str| ObjectRef::new("portcullis.dev", "RoutePolicy", "web", name);
        let take = |name: &str, client: &str| {
            let client = client.parse().unwrap();
            std::iter::from_fn(|| slots.admit(&policy(name), client)).collect::<Vec<_>>()
        };
        let hostile = take("one", "192.0.2.1");
        assert_eq!(hostile.len(), 32);
        assert_eq!(take("one", "192.0.2.2").len(), 16);
        assert_eq!(take("two", "192.0.2.1").len(), 32);
        drop(hostile);
        assert!(
            slots
                .admit(&policy("one"), "192.0.2.1".parse().unwrap())
                .is_some()
        );
        let _other = slots.admit(&policy("three"), "192.0.2.1".parse().unwrap());
        assert_eq!(slots.0.borrow().len(), 1);
    }
}
