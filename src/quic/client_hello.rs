//! Chooses the TLS configuration of a connection by its ClientHello, which may come in several packets. Until then, a
//! connection has the keys of Initial packets only, which need no configuration. Must not know listeners.

use std::any::Any;
use std::sync::Arc;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn::{ConnectionId, Side, TransportErrorCode};
use quinn_proto::TransportError;
use quinn_proto::transport_parameters::TransportParameters;
use rustls::server::{Accepted, AcceptedAlert, Acceptor, ClientHello};
use rustls::{AlertDescription, Error};

use super::tls::{self, QuicTls};

/// Maximum length of a ClientHello with its header: that of a TLS record. Those with post-quantum key shares have about 2
/// KiB.
const MAX_HELLO: usize = 16 * 1024;
/// Length of the header of a handshake message, and the type of a ClientHello (RFC 8446, 4).
const MESSAGE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;
/// The beginning of a TLS record with handshake messages (RFC 8446, 5.1).
const HANDSHAKE_RECORD: [u8; 3] = [22, 3, 1];

/// How a ClientHello is answered.
#[derive(Clone)]
pub struct Selection {
    /// The TLS configuration of the connection.
    pub tls: Arc<QuicTls>,
    /// What the connection needs to know of the choice: part of [`Greeting`].
    pub context: Arc<dyn Any + Send + Sync>,
}

/// Answers ClientHellos. Is called on the worker's thread, once for each connection, and must not wait. An alert reaches the
/// client, and ends the connection.
pub type Choose =
    Arc<dyn Fn(&ClientHello<'_>) -> Result<Selection, AlertDescription> + Send + Sync>;

/// What is known of a connection whose ClientHello was answered: its `handshake_data` in quinn.
#[derive(Clone)]
pub struct Greeting {
    /// The server name as the client has sent it, in any case.
    pub server_name: Option<Box<str>>,
    /// That of the [`Selection`].
    pub context: Arc<dyn Any + Send + Sync>,
}

/// The cryptography of an endpoint.
pub(super) struct ByClientHello {
    initial: Arc<QuicServerConfig>,
    choose: Choose,
}

/// The session that a ClientHello has chosen, and how it was answered.
type Answered = (Box<dyn Session>, Greeting);

impl ByClientHello {
    /// # Errors
    /// When the library of cryptography does not have what every version of QUIC needs.
    pub(super) fn new(choose: Choose) -> Result<Self, Error> {
        let initial = Arc::new(tls::initial_only()?);
        Ok(Self { initial, choose })
    }

    /// Answers the ClientHello that was received, if it is complete.
    fn answer(
        &self,
        version: u32,
        parameters: &TransportParameters,
        received: &[u8],
    ) -> Result<Option<Answered>, TransportError> {
        let length = hello_length(received)?;
        let Some(hello) = length.and_then(|length| received.get(..length)) else {
            return Ok(None);
        };
        let accepted = parse(hello)?;
        let hello = accepted.client_hello();
        let Selection { tls, context } = (self.choose)(&hello)
            .map_err(|alert| refusal(alert, "no listener accepts the ClientHello"))?;
        let greeting = Greeting {
            server_name: hello.server_name().map(Into::into),
            context,
        };
        let session = tls.0.clone().start_session(version, parameters);
        Ok(Some((session, greeting)))
    }
}

impl ServerConfig for ByClientHello {
    fn initial_keys(
        &self,
        version: u32,
        destination: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        self.initial.initial_keys(version, destination)
    }

    fn retry_tag(&self, version: u32, original: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.initial.retry_tag(version, original, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        Box::new(LazySession {
            endpoint: self,
            version,
            state: State::Reading {
                parameters: Box::new(*parameters),
                received: Vec::new(),
            },
        })
    }
}

/// The TLS session of a connection.
struct LazySession {
    endpoint: Arc<ByClientHello>,
    version: u32,
    state: State,
}

enum State {
    /// The ClientHello is not complete, or was refused.
    Reading {
        parameters: Box<TransportParameters>,
        received: Vec<u8>,
    },
    /// quinn's session with the configuration that was chosen.
    Chosen(Box<dyn Session>, Greeting),
}

impl LazySession {
    fn chosen(&self) -> Option<&dyn Session> {
        match &self.state {
            State::Reading { .. } => None,
            State::Chosen(session, _) => Some(&**session),
        }
    }
}

/// Returns the length of a ClientHello with its header, if that is known.
fn hello_length(received: &[u8]) -> Result<Option<usize>, TransportError> {
    let Some(kind) = received.first() else {
        return Ok(None);
    };
    if *kind != CLIENT_HELLO {
        let alert = AlertDescription::UnexpectedMessage;
        return Err(refusal(
            alert,
            "the handshake does not begin with a ClientHello",
        ));
    }
    let Some([_, length @ ..]) = received.first_chunk::<MESSAGE_HEADER>() else {
        return Ok(None);
    };
    let [high, middle, low] = *length;
    let length = MESSAGE_HEADER + u32::from_be_bytes([0, high, middle, low]) as usize;
    if length > MAX_HELLO {
        let alert = AlertDescription::IllegalParameter;
        return Err(refusal(alert, "the ClientHello is too large"));
    }
    Ok(Some(length))
}

/// Parses a ClientHello. rustls reads it from a TLS record, which QUIC does not have.
fn parse(hello: &[u8]) -> Result<Accepted, TransportError> {
    // At most `MAX_HELLO`.
    let length = (hello.len() as u16).to_be_bytes();
    let record = [&HANDSHAKE_RECORD[..], &length, hello].concat();
    let mut acceptor = Acceptor::default();
    let mut rest = &*record;
    // Takes some kilobytes each time, and all of one record.
    while !rest.is_empty() && acceptor.read_tls(&mut rest).is_ok() {}
    match acceptor.accept() {
        Ok(Some(accepted)) => Ok(accepted),
        Ok(None) => Err(refusal(
            AlertDescription::DecodeError,
            "the ClientHello is malformed",
        )),
        Err((error, alert)) => Err(refusal(description(alert), &error.to_string())),
    }
}

/// Returns what a TLS record with an alert says, in its last byte.
fn description(mut alert: AcceptedAlert) -> AlertDescription {
    let mut record = Vec::new();
    let _ = alert.write_all(&mut record);
    let last = record.last().copied();
    last.map_or(AlertDescription::DecodeError, AlertDescription::from)
}

/// The error of a connection that ends with a TLS alert (RFC 9001, 4.8).
fn refusal(alert: AlertDescription, reason: &str) -> TransportError {
    TransportError {
        code: TransportErrorCode::crypto(alert.into()),
        frame: None,
        reason: reason.to_owned(),
    }
}

impl Session for LazySession {
    fn initial_keys(&self, destination: &ConnectionId, _server: Side) -> Keys {
        (self.endpoint.initial_keys(self.version, destination))
            .expect("sessions have a version that was accepted")
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        match &self.state {
            State::Reading { .. } => None,
            State::Chosen(session, greeting) => {
                session.handshake_data()?;
                Some(Box::new(greeting.clone()))
            }
        }
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.chosen()?.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.chosen()?.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.chosen()?.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.chosen().is_none_or(Session::is_handshaking)
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let (parameters, received) = match &mut self.state {
            State::Chosen(session, _) => return session.read_handshake(bytes),
            State::Reading {
                parameters,
                received,
            } => (parameters, received),
        };
        received.extend_from_slice(bytes);
        let answer = self.endpoint.answer(self.version, parameters, received)?;
        let Some((mut session, greeting)) = answer else {
            return Ok(false);
        };
        let is_ready = session.read_handshake(received);
        self.state = State::Chosen(session, greeting);
        is_ready
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.chosen()
            .map_or(Ok(None), Session::transport_parameters)
    }

    fn write_handshake(&mut self, buffer: &mut Vec<u8>) -> Option<Keys> {
        match &mut self.state {
            State::Reading { .. } => None,
            State::Chosen(session, _) => session.write_handshake(buffer),
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        match &mut self.state {
            State::Reading { .. } => None,
            State::Chosen(session, _) => session.next_1rtt_keys(),
        }
    }

    /// Only clients receive Retry packets.
    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let session = self.chosen().ok_or(ExportKeyingMaterialError)?;
        session.export_keying_material(output, label, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::aws_lc_rs;
    use rustls::quic::{ClientConnection, Version};
    use rustls::{ClientConfig, RootCertStore, ServerConfig as TlsConfig};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Returns the ClientHello of a client for a.test.
    fn hello() -> Vec<u8> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h3".to_vec()];
        let name = "a.test".try_into().unwrap();
        let mut client =
            ClientConnection::new(config.into(), Version::V1, name, vec![0; 4]).unwrap();
        let mut hello = Vec::new();
        client.write_hs(&mut hello);
        hello
    }

    /// Returns a session, and how often the callback has been asked.
    fn session() -> (Box<dyn Session>, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let choose: Choose = {
            let asked = asked.clone();
            Arc::new(move |hello: &ClientHello<'_>| {
                assert_eq!(hello.server_name(), Some("a.test"));
                asked.fetch_add(1, Relaxed);
                Err(AlertDescription::UnrecognisedName)
            })
        };
        let crypto = Arc::new(ByClientHello::new(choose).unwrap());
        let parameters = TransportParameters::read(Side::Client, &mut &[][..]).unwrap();
        (crypto.start_session(1, &parameters), asked)
    }

    #[test]
    fn asks_once_the_client_hello_is_complete() {
        let hello = hello();
        for step in [1, 7, 1000, hello.len()] {
            let (mut session, asked) = session();
            let mut chunks = hello.chunks(step).peekable();
            while let Some(chunk) = chunks.next() {
                let is_last = chunks.peek().is_none();
                assert_eq!(asked.load(Relaxed), 0);
                let read = session.read_handshake(chunk);
                assert_eq!(read.is_err(), is_last);
                if let Err(error) = read {
                    assert_eq!(error.code, TransportErrorCode::crypto(112));
                }
                assert!(session.is_handshaking());
                assert!(session.write_handshake(&mut Vec::new()).is_none());
                assert!(session.handshake_data().is_none());
                assert!(session.transport_parameters().unwrap().is_none());
            }
            assert_eq!(asked.load(Relaxed), 1);
        }
    }

    #[test]
    fn what_is_no_client_hello_gets_its_alert() {
        let mut truncated = hello();
        let length = truncated.len();
        // The last extension is longer than what is left.
        truncated.truncate(length - 1);
        truncated[3] = truncated[3].wrapping_sub(1);
        for (bytes, alert) in [
            (&[2, 0, 0, 9][..], AlertDescription::UnexpectedMessage),
            (&[1, 0, 0x40, 0][..], AlertDescription::IllegalParameter),
            (
                &[1, 0xff, 0xff, 0xff][..],
                AlertDescription::IllegalParameter,
            ),
            (&[1, 0, 0, 0][..], AlertDescription::DecodeError),
            (&truncated[..], AlertDescription::DecodeError),
        ] {
            let (mut session, asked) = session();
            let error = session.read_handshake(bytes).unwrap_err();
            assert_eq!(error.code, TransportErrorCode::crypto(alert.into()));
            assert_eq!(asked.load(Relaxed), 0);
        }
    }

    #[test]
    fn configuration_needs_tls13() {
        let built = |versions: &[&'static rustls::SupportedProtocolVersion]| {
            let provider = Arc::new(aws_lc_rs::default_provider());
            let resolver = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
            let config = TlsConfig::builder_with_provider(provider)
                .with_protocol_versions(versions)
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(resolver);
            QuicTls::new(&config)
        };
        assert!(built(&[&rustls::version::TLS12]).is_err());
        assert!(built(&[&rustls::version::TLS12, &rustls::version::TLS13]).is_ok());
    }
}
