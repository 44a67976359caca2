//! Status of all objects: conditions and reports as data, leader election, and the writer that
//! stores statuses in a cluster.

pub mod certificates;
pub mod condition;
mod confirmed;
mod data_planes;
mod effect;
mod features;
mod held;
mod late;
pub mod lease;
pub mod merge;
mod placed;
mod problems;
mod release_backend;
mod remedy;
pub mod report;
mod status_map;
pub mod stored;
mod transitions;
mod unreadable;
mod unserved;
mod waiting;
pub mod warnings;
pub mod writer;

pub use condition::{Condition, ConditionStatus, ConditionType, Reason};
pub use confirmed::{Confirmation, ConfirmedReport};
pub use data_planes::DataPlaneState;
pub use features::SUPPORTED_FEATURES;
pub use held::{Held, HeldStatuses};
pub use late::{LateRoutes, Unconfirmed};
pub use merge::merge;
pub use placed::{PlacedConditions, StatusPart};
pub use release_backend::{Percent, ReleaseBackendStatus, ReleaseBackendStatuses, ReleaseStatus};
pub use report::binds::BoundReport;
pub use report::{
    Address, AncestorStatus, GatewayStatus, ListenerSetStatus, ListenerStatus, Note, ParentStatus,
    Released, RouteKind, RouteStatuses, StatusReport, Unattached,
};
pub use status_map::{StatusMap, names_changed_since};
pub use unreadable::Unreadable;
pub use unserved::Unserved;
pub use waiting::Awaited;
