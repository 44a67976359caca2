//! The edge of Kubernetes: slim types of the watched kinds, with only the fields that Portcullis reads, the defaults
//! that an API server adds, and the validation that it applies. Knows no client, no file and no meaning of an object.

pub mod admission;
pub mod backend_tls_override;
pub mod core;
pub mod duration;
pub mod gateway;
pub mod grpc_route;
pub mod http_route;
mod legacy;
pub mod meta;
pub mod object;
pub mod parameters;
pub mod pod;
pub mod policy;
pub mod reference;
pub mod release_backend;
mod schema;
pub mod service_import;
pub mod session_persistence;
pub mod traffic_policy;
pub mod xbackend;

#[cfg(test)]
mod tests;

pub use admission::{Admission, Finding, Severity, admit, admit_at};
pub use meta::{Key, ObjectMeta, Resource};
pub use object::{Kind, Object};

pub use crate::ir::ObjectRef;
