//! The current table as one worker sees it. Loading costs a comparison while the table stays the
//! same, and no write to memory that workers share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use crate::table::Table;

/// A worker's reference to the current table.
pub(crate) struct CurrentTable {
    published: RefCell<Cache<Arc<ArcSwap<Table>>, Arc<Table>>>,
    /// The table that was current at the last load.
    loaded: RefCell<Loaded>,
}

/// A table that the requests of one worker share. Only that worker writes the counter of the `Rc`; the `Arc` is shared by
/// all workers.
pub(crate) type Loaded = Rc<Arc<Table>>;

impl CurrentTable {
    /// Follows the tables that are published in `published`.
    pub(crate) fn new(published: Arc<ArcSwap<Table>>) -> Self {
        let loaded = Rc::new(published.load_full());
        Self {
            published: RefCell::new(Cache::new(published)),
            loaded: RefCell::new(loaded),
        }
    }

    /// Returns the table that is current now. Keeps it alive until the next call, so that an idle
    /// worker has to call this too when another table is published.
    pub(crate) fn load(&self) -> Loaded {
        let mut published = self.published.borrow_mut();
        let current = published.load();
        let mut loaded = self.loaded.borrow_mut();
        if !Arc::ptr_eq(&loaded, current) {
            *loaded = Rc::new(current.clone());
        }
        loaded.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_what_is_published_and_drops_the_former() {
        let first = Arc::new(Table::empty());
        let previous = Arc::downgrade(&first);
        let published = Arc::new(ArcSwap::new(first));
        let current = CurrentTable::new(published.clone());
        let held = current.load();
        assert!(Rc::ptr_eq(&held, &current.load()));
        let second = Arc::new(Table::empty());
        published.store(second.clone());
        assert!(Arc::ptr_eq(&current.load(), &second));
        assert!(previous.upgrade().is_some(), "a request still uses it");
        drop(held);
        assert!(previous.upgrade().is_none());
    }
}
