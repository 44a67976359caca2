//! QUIC connections to a port: their ClientHellos choose a listener as those over TCP do, and HTTP/3 follows the handshake.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use quinn::{Connection, ConnectionError, TransportErrorCode};
use rustls::AlertDescription;
use rustls::pki_types::CertificateDer;
use rustls::server::ClientHello;

use super::client_hello::normalized;
use super::http3;
use crate::http3::Code;
use crate::ir::Bind;
use crate::proxy::activity::Activity;
use crate::proxy::client::{Client, TlsClient, client_certificate};
use crate::proxy::response::outbound::wire_code;
use crate::proxy::worker_state::port::PortState;
use crate::proxy::worker_state::{OpenConnection, Worker};
use crate::quic::{Choose, Established, Handshake, HandshakeError, Selection};
use crate::table::{Listener, Table};
use crate::telemetry::metrics::{HandshakeFailure, TimeoutKind};

/// Returns the choice of the listener for a ClientHello to the port that TCP has as `bind`, from the table that is current
/// then. Names of listeners without HTTP/3 are unknown.
pub(in crate::proxy) fn choose_listener(table: Arc<ArcSwap<Table>>, bind: Bind) -> Choose {
    Arc::new(move |hello: &ClientHello<'_>| {
        let sni = hello.server_name().map(normalized);
        let table = table.load();
        let listener = table
            .port(&bind)
            .and_then(|port| port.listener_for_sni(sni.as_deref()))
            .filter(|listener| listener.has_http3());
        let tls = listener
            .and_then(|listener| listener.server.as_ref())
            .and_then(|server| server.quic());
        match (listener, tls) {
            (Some(listener), Some(tls)) => Ok(Selection {
                tls: tls.clone(),
                context: listener.clone(),
            }),
            _ => Err(AlertDescription::UnrecognisedName),
        }
    })
}

/// Serves a connection until it ends. It drains when the port is `closing`.
pub(in crate::proxy) async fn serve(
    mut open: OpenConnection,
    port: Rc<PortState>,
    closing: Rc<Cell<bool>>,
    handshake: Handshake,
) {
    let peer = handshake.peer();
    let has_policies = port.has_connection_policies(&open.table.load());
    // Before its handshake, a client may have forged its address: it must not take a place of whoever has that address.
    let is_validated = handshake.is_validated();
    if has_policies && is_validated && !open.begin(&port, peer.ip(), Vec::new()) {
        return;
    }
    let (quic, tls) = match Box::pin(establish(&open, &port, handshake)).await {
        Ok(established) => established,
        Err(failure) => {
            tracing::debug!(client = %peer, port = port.number(), reason = failure.name(), "a QUIC handshake failed");
            return open.stats.handshake_failed(failure);
        }
    };
    open.stats.handshakes.fetch_add(1, Relaxed);
    if has_policies && !is_validated && !open.begin(&port, peer.ip(), Vec::new()) {
        return quic.close(wire_code(Code::ExcessiveLoad), b"too many connections");
    }
    let client = Client::new(open, port, peer, Some(tls));
    Box::pin(http3::serve(quic, client, closing)).await;
}

/// Runs a handshake until its timeout or until a newer handshake or a new client evicts it, and verifies the client.
async fn establish(
    worker: &Rc<Worker>,
    port: &PortState,
    handshake: Handshake,
) -> Result<(Connection, TlsClient), HandshakeFailure> {
    let address = handshake.peer().ip();
    let mut entry = worker.handshakes.begin(address);
    let limits = worker.limits_of(port);
    let activity = Activity::handshake(&worker.clock, &limits);
    worker
        .connections
        .register(address.to_canonical(), &activity);
    let mut complete = pin!(handshake.complete());
    let established = tokio::select! {
        // tokio polls the arms in order, so that a completed handshake wins over its eviction.
        biased;
        outcome = &mut complete => outcome,
        () = entry.evicted() => return Err(HandshakeFailure::Evicted),
        // A new client gets the place of the connection.
        _ = poll_fn(|cx| activity.poll_due(cx)) => return Err(HandshakeFailure::Evicted),
    };
    let established = established.map_err(|error| {
        if let HandshakeError::Timeout = error {
            worker.stats.timed_out(TimeoutKind::Handshake);
        }
        failure_of(&error)
    })?;
    verify(established)
}

/// Verifies the certificate of a client, also that of a resumed session, which no handshake verifies.
fn verify(established: Established) -> Result<(Connection, TlsClient), HandshakeFailure> {
    let Established {
        connection,
        greeting,
    } = established;
    let listener = greeting.context.downcast::<Listener>();
    let listener = listener.map_err(|_| HandshakeFailure::Protocol)?;
    let server = listener.server.as_ref();
    let server = server.ok_or(HandshakeFailure::NoCertificate)?;
    let chain = connection.peer_identity();
    let chain = chain.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    let chain = chain.map(|chain| *chain).unwrap_or_default();
    let Ok(verified) = server.verified_chain(&chain) else {
        let reason = b"the certificate of the client is missing or not valid";
        connection.close(wire_code(Code::GeneralProtocolError), reason);
        return Err(HandshakeFailure::ClientCertificate);
    };
    let certificate = verified.and_then(client_certificate::describe);
    let client = TlsClient {
        sni: greeting.server_name.as_deref().map(normalized),
        is_verified: verified.is_some(),
        certificate: certificate.map(Box::new),
        is_quic: true,
    };
    Ok((connection, client))
}

/// Returns why a handshake has failed, as for TCP.
fn failure_of(error: &HandshakeError) -> HandshakeFailure {
    match error {
        HandshakeError::Timeout => HandshakeFailure::Timeout,
        HandshakeError::Failed(ConnectionError::TransportError(error)) => {
            alert_of(error.code).map_or(HandshakeFailure::Protocol, of_own_alert)
        }
        HandshakeError::Failed(ConnectionError::ConnectionClosed(close)) => {
            alert_of(close.error_code).map_or(HandshakeFailure::Closed, of_clients_alert)
        }
        HandshakeError::Failed(ConnectionError::VersionMismatch) => HandshakeFailure::Incompatible,
        HandshakeError::Failed(_) => HandshakeFailure::Closed,
        HandshakeError::NoGreeting => HandshakeFailure::Protocol,
    }
}

/// Returns the TLS alert of an error code (RFC 9001, 4.8).
fn alert_of(code: TransportErrorCode) -> Option<AlertDescription> {
    let first = u64::from(TransportErrorCode::crypto(0));
    let alert = u64::from(code).checked_sub(first)?;
    u8::try_from(alert).ok().map(AlertDescription::from)
}

/// Returns why the proxy has sent an alert.
fn of_own_alert(alert: AlertDescription) -> HandshakeFailure {
    use AlertDescription as Alert;
    match alert {
        Alert::UnrecognisedName => HandshakeFailure::ServerName,
        Alert::CertificateRequired
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA => HandshakeFailure::ClientCertificate,
        Alert::HandshakeFailure
        | Alert::ProtocolVersion
        | Alert::InsufficientSecurity
        | Alert::NoApplicationProtocol => HandshakeFailure::Incompatible,
        _ => HandshakeFailure::Protocol,
    }
}

/// Returns why the client has sent an alert.
fn of_clients_alert(alert: AlertDescription) -> HandshakeFailure {
    HandshakeFailure::from(&rustls::Error::AlertReceived(alert))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_names_that_they_have_over_tcp() {
        let of = |alert: u8| alert_of(TransportErrorCode::crypto(alert)).map(of_own_alert);
        for (alert, expected) in [
            (112, HandshakeFailure::ServerName),
            (116, HandshakeFailure::ClientCertificate),
            (48, HandshakeFailure::ClientCertificate),
            (120, HandshakeFailure::Incompatible),
            (10, HandshakeFailure::Protocol),
        ] {
            assert_eq!(of(alert), Some(expected), "{alert}");
        }
        assert_eq!(alert_of(TransportErrorCode::PROTOCOL_VIOLATION), None);
        let of_client = |alert: u8| of_clients_alert(AlertDescription::from(alert));
        assert_eq!(of_client(48), HandshakeFailure::Refused);
        assert_eq!(of_client(80), HandshakeFailure::Alert);
        assert_eq!(failure_of(&HandshakeError::Timeout).name(), "timeout");
    }
}
