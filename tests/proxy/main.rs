//! The data plane between real clients and backends: the library in this process, configured by a
//! YAML folder, on loopback. One module per topic.

#[path = "../harness/mod.rs"]
mod harness;

mod client;
mod origin;
mod scene;
mod tls_origin;

mod access_log;
mod access_policy;
mod admin;
mod api;
mod backend_tls;
mod backend_tls_insecure;
mod backend_tls_overrides;
mod bodies;
mod client_certificates;
mod client_policy;
mod collector;
mod connections;
mod cors;
mod cors_conformance;
mod ejection;
mod endpoints;
mod explain;
mod external;
mod external_auth;
mod external_auth_grpc;
mod filters;
mod forwarding;
mod grpc;
mod grpc_streams;
mod grpc_web;
mod incidents;
mod l4_backends;
mod lifecycle;
mod listener_sets;
mod mirror;
mod mirror_bodies;
mod mirror_conformance;
mod process;
mod proxy_protocol;
mod rate_limit_policy;
mod release_backends;
mod releases;
mod reload;
mod retries;
mod routing;
mod sessions;
mod swap;
mod tcp_limits;
mod tcp_route;
mod timeouts;
mod tls;
mod tls_route;
mod traces;
mod traffic_policy;
mod udp_limits;
mod udp_route;
mod upgrade;
mod upstream;
mod websocket_http2;
mod websocket_refusals;
mod weights;
