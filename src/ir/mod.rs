//! The intermediate representation: everything the data plane needs to know, as plain validated values.
//! Knows nothing of Kubernetes objects, sockets or clocks. Two equal IRs serve the same traffic.

pub mod object_ref;

pub use object_ref::ObjectRef;
