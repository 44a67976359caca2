//! The bodies of requests and responses on their way through the proxy.

pub(super) mod body_copy;
pub(super) mod buffered;
pub(super) mod compressed_body;
mod encoder;
pub(super) mod grpc_web_body;
pub(super) mod inbound;
pub(super) mod incoming;
pub(super) mod page_body;
pub(super) mod processed_body;
pub(super) mod request_body;
pub(super) mod response_body;
mod trailers;
pub(super) mod tunnel;
