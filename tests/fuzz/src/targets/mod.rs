//! The fuzz targets: each checks properties of one input, and panics where they do not hold. `check` returns, where it returns
//! something, whether libFuzzer should go on from this input. `mutate` replaces what libFuzzer does to bytes.

pub mod authorization;
pub mod client_certificate;
pub mod client_hello;
pub mod credentials;
pub mod grpc;
pub mod http2_backend;
pub mod http2_client;
pub mod http3_client;
pub mod proxy_protocol;
pub mod response_head;
pub mod route_match;
pub mod session;
pub mod stream;
pub mod target;
pub mod translate;
pub mod yaml;
