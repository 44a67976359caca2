//! Why TLS handshakes with clients fail, as counters, metrics and logs name it.

use std::io;

use rustls::AlertDescription;

use crate::table::Unrouted;

/// Why a TLS handshake with a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The client closed the connection.
    Closed,
    /// It took longer than `--handshake-timeout`.
    Timeout,
    /// A newer handshake or connection got its place.
    Evicted,
    /// What the client sent is not TLS.
    NotTls,
    /// No listener in service and no route has the server name, or the client sent none.
    ServerName,
    /// Policies do not permit the address of the client.
    Policy,
    /// The certificate of the listener of the server name cannot be used.
    NoCertificate,
    /// Client and listener have no version, cipher or group in common.
    Incompatible,
    /// The client refused the certificate of the listener.
    Refused,
    /// The client sent another alert.
    Alert,
    /// The certificate of the client is missing or not valid.
    ClientCertificate,
    /// The client violated the protocol.
    Protocol,
}

impl HandshakeFailure {
    /// Every reason, in the order of their counters.
    pub const ALL: [Self; 12] = [
        Self::Closed,
        Self::Timeout,
        Self::Evicted,
        Self::NotTls,
        Self::ServerName,
        Self::Policy,
        Self::NoCertificate,
        Self::Incompatible,
        Self::Refused,
        Self::Alert,
        Self::ClientCertificate,
        Self::Protocol,
    ];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Evicted => "evicted",
            Self::NotTls => "not_tls",
            Self::ServerName => "server_name",
            Self::Policy => "policy",
            Self::NoCertificate => "no_certificate",
            Self::Incompatible => "incompatible",
            Self::Refused => "refused",
            Self::Alert => "alert",
            Self::ClientCertificate => "client_certificate",
            Self::Protocol => "protocol",
        }
    }
}

impl From<&io::Error> for HandshakeFailure {
    fn from(error: &io::Error) -> Self {
        let source = error.get_ref();
        let source = source.and_then(|it| it.downcast_ref::<rustls::Error>());
        source.map_or(Self::Closed, Self::from)
    }
}

impl From<Unrouted> for HandshakeFailure {
    fn from(unrouted: Unrouted) -> Self {
        match unrouted {
            Unrouted::NoRoute => Self::ServerName,
            Unrouted::Refused => Self::Policy,
        }
    }
}

impl From<&rustls::Error> for HandshakeFailure {
    fn from(error: &rustls::Error) -> Self {
        use AlertDescription as Alert;
        match error {
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::PeerIncompatible(_) => Self::Incompatible,
            rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_) => {
                Self::ClientCertificate
            }
            rustls::Error::AlertReceived(alert) => match alert {
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA => Self::Refused,
                Alert::CloseNotify | Alert::UserCanceled => Self::Closed,
                _ => Self::Alert,
            },
            _ => Self::Protocol,
        }
    }
}
