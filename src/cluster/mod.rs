//! What all clients of the API server of Kubernetes share: credentials, requests, the Events that are written there, and a work
//! queue of objects.

pub mod api_server;
pub mod client;
pub mod events;
mod exec_plugin;
pub mod work_queue;
