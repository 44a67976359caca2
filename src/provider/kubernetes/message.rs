//! Messages to the store: watch events, results of fetches, the newest versions at a moment, and what the API server refuses.

use std::collections::BTreeSet;

use super::moments::{Moment, Requester};
use super::parsed::ParsedObject;
use crate::api::{Key, ObjectRef};

/// A message to the store.
#[derive(Debug)]
pub(super) enum Message {
    /// A change in the scope with this index.
    Watched(usize, Change),
    /// Result of a fetch: the object, or `None` if it does not exist.
    Fetched(ObjectRef, Option<ParsedObject>),
    /// At a version of the cluster, these objects of the scope with this index existed. What follows is the newest version of
    /// these.
    Existed(usize, u64, BTreeSet<Key>),
    /// The newest version of the objects of the scope with this index at a moment; `None` if there were none.
    Newest(usize, Moment, Option<u64>),
    /// Why the API server refuses requests for the scope with this index; `None` when it no longer does.
    Refused(usize, Requester, Option<String>),
    /// The first list of the scope with this index is late: publication no longer waits for it.
    ListLate(usize),
}

/// A watch event of a scope.
#[derive(Debug)]
pub(super) enum Change {
    /// A list begins.
    Listing,
    /// The cluster serves the kind as released, or as the experimental kind that it was before.
    Served { is_experimental: bool },
    /// One object of the list.
    Listed(ParsedObject),
    /// The list is complete: objects that it did not contain no longer exist.
    Complete,
    /// An object was created or changed.
    Applied(ParsedObject),
    /// An object was deleted at a version.
    Deleted(Key, Option<u64>),
    /// The cluster does not have the kind.
    Absent,
}
