//! What became of every object, as data: conditions and the report that holds them. Knows not how a report is written
//! to a cluster or a log.

pub mod condition;
pub mod report;

pub use condition::{Condition, ConditionStatus, ConditionType, Reason};
pub use report::{
    GatewayStatus, ListenerSetStatus, ListenerStatus, Note, ParentRef, ParentStatus, RouteKind,
    StatusReport,
};
