//! The two processes: a data plane and a controller. Owns their threads, and the order in which these start and stop.

mod announce;
pub mod controller;
mod controller_settings;
pub mod data_plane;
mod election;
mod objects;
mod readiness;
mod report;
mod session_key;
mod stream;
mod supervised;
mod warnings;
