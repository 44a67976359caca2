//! What all clients of the API server of Kubernetes share: requests, the Events that are written there, and a work queue of
//! objects.

pub mod api_server;
pub mod events;
pub mod work_queue;
