//! The commands and the answers, as JSON.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h3::error::StreamError;
use http::HeaderMap;
use quinn::{ConnectionError, ReadError, WriteError};
use serde::{Deserialize, Deserializer, Serialize};

/// The size up to which a body is returned.
const SHOWN: usize = 64 << 10;
/// Alerts of TLS are codes of QUIC from here (RFC 9001, 4.8).
const CRYPTO_ERROR: u64 = 0x100;

/// A name and a value.
pub(crate) type Field = (String, String);

#[derive(Deserialize)]
pub(crate) struct Command {
    pub(crate) id: u64,
    #[serde(flatten)]
    pub(crate) task: Task,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Task {
    Request(Request),
    /// Cancels the request with the id `target`, if it waits for its response.
    Cancel {
        target: u64,
    },
    Wire(Wire),
    Connect(Connect),
}

#[derive(Deserialize)]
pub(crate) struct Request {
    pub(crate) port: u16,
    /// The server name of TLS.
    pub(crate) name: String,
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<Field>,
    #[serde(deserialize_with = "decoded")]
    pub(crate) body: Bytes,
    /// Whether the size of the body is sent.
    pub(crate) sized: bool,
    pub(crate) trailers: Vec<Field>,
    /// How often the request is sent, at the same time.
    pub(crate) together: usize,
    pub(crate) cancel: Cancel,
}

/// When the client cancels a request.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cancel {
    #[serde(rename = "")]
    Never,
    Waiting,
    Reading,
}

/// Bytes of streams, in this order.
#[derive(Deserialize)]
pub(crate) struct Wire {
    pub(crate) port: u16,
    pub(crate) name: String,
    pub(crate) alpn: String,
    pub(crate) streams: Vec<Stream>,
}

#[derive(Deserialize)]
pub(crate) struct Stream {
    pub(crate) uni: bool,
    #[serde(deserialize_with = "decoded")]
    pub(crate) data: Bytes,
    pub(crate) fin: bool,
}

/// A handshake. The paths of the client's certificate and key are empty if it has none.
#[derive(Deserialize)]
pub(crate) struct Connect {
    pub(crate) port: u16,
    pub(crate) name: String,
    pub(crate) alpn: String,
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Connect {
    /// Of a client without a certificate.
    pub(crate) fn new(port: u16, name: &str, alpn: &str) -> Self {
        Self {
            port,
            name: name.to_owned(),
            alpn: alpn.to_owned(),
            cert: String::new(),
            key: String::new(),
        }
    }
}

fn decoded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD
        .decode(text)
        .map(Bytes::from)
        .map_err(serde::de::Error::custom)
}

#[derive(Default, Serialize)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) status: u16,
    pub(crate) headers: Vec<Field>,
    pub(crate) length: usize,
    pub(crate) digest: String,
    /// In Base64. Empty if it is long.
    pub(crate) body: String,
    pub(crate) trailers: Vec<Field>,
    pub(crate) interim: Vec<Interim>,
    pub(crate) error: String,
    /// The code that has ended the stream.
    pub(crate) stream: Option<u64>,
    /// The code that has ended the connection.
    pub(crate) connection: Option<u64>,
    /// Of TLS.
    pub(crate) alert: Option<u64>,
    /// The names of the server's certificate.
    pub(crate) certificate: Option<Vec<String>>,
}

#[derive(Serialize)]
pub(crate) struct Interim {
    pub(crate) status: u16,
    pub(crate) headers: Vec<Field>,
}

impl Answer {
    /// Of bytes that a stream has brought.
    pub(crate) fn received(bytes: &[u8]) -> Self {
        Self {
            body: STANDARD.encode(bytes),
            ..Self::default()
        }
    }

    pub(crate) fn served(names: Vec<String>) -> Self {
        Self {
            certificate: Some(names),
            ..Self::default()
        }
    }

    pub(crate) fn failed(error: &anyhow::Error) -> Self {
        let mut answer = Self::default();
        answer.fail(error);
        answer
    }

    pub(crate) fn contents(&mut self, body: &[u8]) {
        let digest = digest(&SHA256, body);
        self.length = body.len();
        self.digest = digest
            .as_ref()
            .iter()
            .map(|it| format!("{it:02x}"))
            .collect();
        if body.len() <= SHOWN {
            self.body = STANDARD.encode(body);
        }
    }

    /// Records how QUIC or HTTP/3 has ended.
    pub(crate) fn fail(&mut self, error: &anyhow::Error) {
        self.error = format!("{error:#}");
        for cause in error.chain() {
            if let Some(WriteError::Stopped(code)) = cause.downcast_ref::<WriteError>() {
                self.stream = Some(code.into_inner());
            }
            if let Some(ReadError::Reset(code)) = cause.downcast_ref::<ReadError>() {
                self.stream = Some(code.into_inner());
            }
            if let Some(StreamError::RemoteTerminate { code, .. }) =
                cause.downcast_ref::<StreamError>()
            {
                self.stream = Some(code.value());
            }
            match cause.downcast_ref::<ConnectionError>() {
                Some(ConnectionError::ApplicationClosed(close)) => {
                    self.connection = Some(close.error_code.into_inner());
                }
                Some(ConnectionError::ConnectionClosed(close)) => {
                    self.alert = u64::from(close.error_code).checked_sub(CRYPTO_ERROR);
                }
                _ => {}
            }
        }
    }
}

pub(crate) fn fields(headers: &HeaderMap) -> Vec<Field> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes())))
        .collect()
}
