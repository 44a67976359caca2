//! What became of every object: conditions and the report that holds them as data, and the writer that stores them in a
//! cluster.

pub mod condition;
mod data_planes;
mod features;
pub mod lease;
pub mod merge;
mod queue;
pub mod report;
pub mod stored;
mod unreadable;
pub mod writer;

pub use condition::{Condition, ConditionStatus, ConditionType, Reason};
pub use data_planes::DataPlaneState;
pub use features::SUPPORTED_FEATURES;
pub use merge::{Outdated, Wanted, merge};
pub use report::{
    Address, AncestorStatus, GatewayStatus, ListenerSetStatus, ListenerStatus, Note, ParentRef,
    ParentStatus, RouteKind, RouteStatuses, StatusReport,
};
