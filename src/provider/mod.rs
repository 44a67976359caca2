//! Where objects come from. A provider publishes snapshots of validated objects and the problems it met; it knows
//! nothing of what the objects mean.

pub mod file;
pub mod problem;

pub use file::{FileProvider, Load};
pub use problem::Problem;
