//! Where objects come from. A provider publishes snapshots of validated objects and the problems it met; it knows
//! nothing of what the objects mean.

pub mod file;
pub mod kubernetes;
pub mod problem;
pub mod stream;

use std::sync::Arc;

pub use file::FileProvider;
pub use kubernetes::bundle::follow_bundle_version;
pub use kubernetes::observer::{Observed, Observer};
pub use kubernetes::{KubernetesProvider, Timing};
pub use problem::Problem;
pub use stream::{StreamEvent, StreamProvider, StreamSettings};

use crate::snapshot::Snapshot;
use crate::stream::message::Position;

/// What a provider has at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The valid objects.
    pub snapshot: Arc<Snapshot>,
    /// What is wrong with the rest, in an order of the provider's.
    pub problems: Vec<Problem>,
    /// Which state of the Gateway's objects this is, when they came from a controller.
    pub position: Option<Position>,
}
