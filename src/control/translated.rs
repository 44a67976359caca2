//! What the leader keeps of a translation, and how two of them differ. Clones are cheap.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::ir::ObjectRef;
use crate::provision::data_plane::DataPlane;
use crate::snapshot::Snapshot;
use crate::status::{StatusReport, names_changed_since};

/// A translated snapshot.
#[derive(Clone, Debug, Default)]
pub(super) struct Translated {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) report: StatusReport,
    pub(super) data_planes: OrdMap<ObjectRef, Arc<DataPlane>>,
}

impl Translated {
    /// Returns the Gateways that are new, removed or changed, or whose data planes need something else. Changes of their
    /// status alone do not count.
    pub(super) fn gateways_changed_since(&self, previous: &Self) -> BTreeSet<ObjectRef> {
        let objects = &self.snapshot.gateways;
        let mut names: BTreeSet<_> = objects
            .names_changed_since(&previous.snapshot.gateways)
            .collect();
        names.extend(names_changed_since(
            &self.data_planes,
            &previous.data_planes,
        ));
        for item in previous.report.gateways.diff(&self.report.gateways) {
            if let DiffItem::Add(name, _) | DiffItem::Remove(name, _) = item {
                names.insert(name.clone());
            }
        }
        names
    }
}
