//! Sources of objects. A provider publishes snapshots of valid objects and the problems that it
//! found. It does not interpret the objects.

pub mod file;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod kubernetes;
pub mod problem;
mod progress;
pub mod stream;

use std::sync::Arc;

pub use file::FileProvider;
pub use kubernetes::bundle::watch_bundle_version;
pub use kubernetes::observer::{Observed, Observer};
pub use kubernetes::{KubernetesProvider, Listing, Timing, verbs_to_follow};
pub use problem::Problem;
pub use progress::Progress;
pub use stream::{StreamEvent, StreamProvider, StreamSettings};

use crate::api::Object;
use crate::snapshot::Snapshot;
use crate::wire::Position;

/// State published by a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The valid objects.
    pub snapshot: Arc<Snapshot>,
    /// Problems of invalid objects, in the provider's order.
    pub problems: Vec<Problem>,
    /// Objects of a cluster whose last version has waited for policies for too long: this version. The snapshot has an earlier
    /// one or none, and a problem says which kinds of policies it waits for.
    pub waiting: Vec<Object>,
    /// Position in the controller's stream, if the objects come from a controller.
    pub position: Option<Position>,
}
