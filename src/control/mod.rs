//! The two control loops: that of a data plane, which serves a snapshot, and that of the controller, which writes statuses
//! and provisions.

mod addresses;
pub mod cluster;
mod cluster_state;
mod confirmation;
pub mod data_plane;
mod desired;
mod expiry;
pub mod leader;
mod progress;
mod services;
mod translated;
