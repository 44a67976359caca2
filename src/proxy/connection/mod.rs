//! Client connections from the socket to the requests on them: ports, TLS, HTTP/1, HTTP/2, tunnels after an upgrade, and
//! connections that are forwarded as they are.

mod body_sender;
mod client_hello;
pub(super) mod connection;
mod deadline;
mod forward;
mod http;
mod http1;
mod http2;
mod http2_shared;
mod in_place;
mod io;
pub(super) mod listener;
mod preamble;
mod proxy_protocol;
mod relay;
mod request_heads;
mod socket;
mod splice;
mod stream;
pub(super) mod upgrade;
