//! The current table as one worker sees it. Loading costs a comparison while the table stays the
//! same, and no write to memory that workers share.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use rustc_hash::FxHashMap;

use crate::table::{ClassCounts, Listener, Rule, Table};

/// A worker's reference to the current table.
pub(crate) struct CurrentTable {
    published: RefCell<Cache<Arc<ArcSwap<Table>>, Arc<Table>>>,
    /// The table that was current at the last load.
    loaded: RefCell<Rc<LoadedTable>>,
}

/// A table that the requests of one worker share. Only that worker writes the counters of its references; those of an
/// `Arc` are shared by all workers.
pub(crate) struct LoadedTable {
    table: Arc<Table>,
    /// The rules that requests have matched, by the addresses of their listener and of themselves.
    rules: RefCell<FxHashMap<(*const Listener, *const Rule), LoadedRule>>,
}

/// A rule that the requests of one worker to a listener share.
pub(crate) type LoadedRule = Rc<RuleOfListener>;

/// A rule and the listener that its requests arrive at.
pub(crate) struct RuleOfListener {
    rule: Arc<Rule>,
    /// Counts the responses of the listener.
    pub(crate) responses: Arc<ClassCounts>,
}

impl Deref for RuleOfListener {
    type Target = Arc<Rule>;

    fn deref(&self) -> &Arc<Rule> {
        &self.rule
    }
}

impl CurrentTable {
    /// Follows the tables that are published in `published`.
    pub(crate) fn new(published: Arc<ArcSwap<Table>>) -> Self {
        let loaded = LoadedTable::new(published.load_full());
        Self {
            published: RefCell::new(Cache::new(published)),
            loaded: RefCell::new(loaded),
        }
    }

    /// Returns the table that is current now. Keeps it alive until the next call, so that an idle
    /// worker has to call this too when another table is published.
    pub(crate) fn load(&self) -> Rc<LoadedTable> {
        let mut published = self.published.borrow_mut();
        let current = published.load();
        let mut loaded = self.loaded.borrow_mut();
        if !Arc::ptr_eq(&loaded.table, current) {
            *loaded = LoadedTable::new(current.clone());
        }
        loaded.clone()
    }
}

impl LoadedTable {
    fn new(table: Arc<Table>) -> Rc<Self> {
        Rc::new(Self {
            table,
            rules: RefCell::default(),
        })
    }

    /// Returns the worker's reference to a rule of a listener of this table.
    pub(crate) fn rule(&self, listener: &Arc<Listener>, rule: &Arc<Rule>) -> LoadedRule {
        let mut rules = self.rules.borrow_mut();
        let known = rules.entry((Arc::as_ptr(listener), Arc::as_ptr(rule)));
        let load = || {
            Rc::new(RuleOfListener {
                rule: rule.clone(),
                responses: listener.responses.clone(),
            })
        };
        known.or_insert_with(load).clone()
    }
}

impl Deref for LoadedTable {
    type Target = Arc<Table>;

    fn deref(&self) -> &Arc<Table> {
        &self.table
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
