//! Why TLS handshakes with clients fail, as counters, metrics and logs name it.

use std::io;

use rustls::AlertDescription;

use crate::ir::named::named;
use crate::table::Unrouted;

named! {
    /// Why a TLS handshake with a client failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HandshakeFailure {
        /// The client closed the connection.
        Closed = "closed",
        /// It took longer than `--handshake-timeout`.
        Timeout = "timeout",
        /// A newer handshake or connection got its place, or heads and handshakes of the client held too much memory.
        Evicted = "evicted",
        /// What the client sent is not TLS.
        NotTls = "not_tls",
        /// No listener in service and no route has the server name, or the client sent none.
        ServerName = "server_name",
        /// Policies do not permit the address of the client.
        Policy = "policy",
        /// The certificate of the listener of the server name cannot be used.
        NoCertificate = "no_certificate",
        /// Client and listener have no version, cipher or group in common.
        Incompatible = "incompatible",
        /// The client refused the certificate of the listener.
        Refused = "refused",
        /// The client sent another alert.
        Alert = "alert",
        /// The certificate of the client is missing or not valid.
        ClientCertificate = "client_certificate",
        /// The client violated the protocol.
        Protocol = "protocol",
    }
}

impl From<&io::Error> for HandshakeFailure {
    fn from(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::OutOfMemory {
            return Self::Evicted;
        }
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
