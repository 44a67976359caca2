//! Status of all objects: conditions and reports as data, leader election, and the writer that
//! stores statuses in a cluster.

pub mod condition;
mod data_planes;
mod features;
pub mod lease;
pub mod merge;
mod placed;
mod queue;
mod release_backend;
pub mod report;
pub mod stored;
mod unreadable;
pub mod writer;

pub use condition::{Condition, ConditionStatus, ConditionType, Reason};
pub use data_planes::DataPlaneState;
pub use features::SUPPORTED_FEATURES;
pub use merge::merge;
pub use placed::PlacedConditions;
pub use release_backend::{Percent, ReleaseBackendStatus, ReleaseBackendStatuses, ReleaseStatus};
pub use report::{
    Address, AncestorStatus, GatewayStatus, ListenerSetStatus, ListenerStatus, Note, ParentRef,
    ParentStatus, Released, RouteKind, RouteStatuses, StatusReport,
};
