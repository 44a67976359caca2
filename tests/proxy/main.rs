//! The data plane as clients and backends see it: the whole library in this process, from a folder of YAML, between
//! real connections on loopback. One module per subject.

#[path = "../harness/mod.rs"]
mod harness;

mod client;
mod origin;
mod scene;
mod tls_origin;

mod access_log;
mod admin;
mod backend_tls;
mod backend_tls_insecure;
mod backend_tls_overrides;
mod bodies;
mod connections;
mod external;
mod filters;
mod forwarding;
mod lifecycle;
mod reload;
mod routing;
mod swap;
mod timeouts;
mod tls;
mod upgrade;
mod upstream;
mod weights;
