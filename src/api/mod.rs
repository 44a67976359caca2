//! The boundary to Kubernetes: slim types of the watched kinds, with only the fields that Portcullis reads, and the
//! defaults and validation of an API server. Must not know clients, files or the meaning of objects.

pub mod access_policy;
pub mod admission;
pub(crate) mod annotation;
pub mod backend_policy;
pub mod backend_tls_policy;
mod canonical;
pub mod client_policy;
pub mod core;
pub mod duration;
pub mod filter;
pub mod gateway;
pub mod grpc_route;
pub mod http_route;
pub mod inference_pool;
pub mod inherited_policy;
pub mod key_set;
pub mod kind;
pub mod l4_route;
mod legacy;
pub mod load_balancer;
pub mod meta;
mod nulls;
pub mod object;
pub mod parameters;
mod pending;
pub mod pod;
mod protection;
pub mod rate_limit_policy;
pub mod reference;
pub mod release_backend;
pub mod route;
pub mod route_filter;
pub mod route_policy;
mod schema;
pub mod service_import;
pub mod session_persistence;
pub mod telemetry_policy;
pub mod traffic_policy;
pub mod unknown_fields;
mod unreadable;
pub mod values;
mod violation;
mod whole;
pub mod xbackend;

#[cfg(test)]
mod tests;

pub use admission::{Admission, admit, admit_at};
pub use meta::{ObjectMeta, Resource, UnknownFields};
pub use object::{Kind, Object};
pub use protection::{Protection, protecting_kind, protection, protects, waits};
pub(crate) use schema::nearest;
#[cfg(test)]
pub(crate) use schema::sample_of;
pub use unreadable::refusing;
pub use violation::Violation;
pub use whole::{decode_whole, decode_whole_event, unknown_to_sender};

pub use crate::ir::ObjectRef;
pub use crate::ir::object_ref::{Key, group_and_version};
pub use crate::ir::sharing::Text;
