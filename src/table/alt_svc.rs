//! How clients of a listener learn that it has HTTP/3 (RFC 9114, 3.1.1).

use std::sync::Arc;

use http::HeaderValue;

use crate::ir;
use crate::tls::Server;

/// Returns the value of `Alt-Svc` in responses of a listener; `None` if it has no HTTP/3, which needs TLS 1.3.
pub(super) fn of(
    ir: &ir::Listener,
    server: Option<&Arc<Server>>,
    port: u16,
) -> Option<HeaderValue> {
    let http3 = ir.clients.as_ref()?.http3.as_ref()?;
    server?.quic()?;
    let port = http3.advertised_port.unwrap_or(port);
    let seconds = http3.max_age.as_secs();
    HeaderValue::try_from(format!("h3=\":{port}\"; ma={seconds}")).ok()
}
