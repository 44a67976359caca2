//! The edge of Kubernetes: slim types of the watched kinds, with only the fields that Portcullis reads, the defaults
//! that an API server adds, and the validation that it applies. Knows no client, no file and no meaning of an object.

pub mod core;
pub mod gateway;
pub mod http_route;
pub mod meta;
pub mod policy;
pub mod reference;

pub use meta::{Key, ObjectMeta, Resource};
