//! Client connections from the socket to the requests on them: ports, TLS, HTTP/1, HTTP/2, HTTP/3, tunnels after an upgrade, and
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
mod http3;
mod http3_head;
pub(super) mod http3_limits;
mod http3_send_window;
mod http3_shared;
mod http3_stream;
mod http3_tunnel;
mod in_place;
mod io;
pub(super) mod listener;
mod preamble;
mod proxy_protocol;
pub(super) mod quic;
mod relay;
mod request_heads;
mod socket;
mod splice;
mod stream;
mod stream_response;
pub(super) mod upgrade;
