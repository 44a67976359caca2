//! Routes: `route.rs` and `routes.rs` are the same for all kinds, and each kind has a file of its own.

mod extension;
mod grpc_route;
mod http_route;
mod l4_route;
pub(super) mod route;
pub(super) mod routes;
pub(super) mod shadow;
