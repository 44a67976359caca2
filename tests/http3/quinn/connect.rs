//! Connections of QUIC: their TLS, and what handshakes tell.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, Endpoint, VarInt};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use webpki::EndEntityCert;

use crate::message::Connect;

/// The code of HTTP/3 for a connection without an error.
pub(crate) const H3_NO_ERROR: VarInt = VarInt::from_u32(0x100);

pub(crate) struct Connector {
    authorities: RootCertStore,
}

impl Connector {
    pub(crate) fn new(path: &Path) -> anyhow::Result<Self> {
        let mut authorities = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path)? {
            authorities.add(certificate?)?;
        }
        Ok(Self { authorities })
    }

    fn config(&self, to: &Connect) -> anyhow::Result<quinn::ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(self.authorities.clone());
        let mut config = if to.cert.is_empty() {
            builder.with_no_client_auth()
        } else {
            let chain = CertificateDer::pem_file_iter(&to.cert)?.collect::<Result<Vec<_>, _>>()?;
            // It is sent even if the server does not know its authority.
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&to.key)?)?
        };
        config.alpn_protocols = vec![to.alpn.as_bytes().to_vec()];
        let config = QuicClientConfig::try_from(config)?;
        Ok(quinn::ClientConfig::new(Arc::new(config)))
    }

    /// Makes a connection from a port of its own.
    pub(crate) async fn connect(&self, to: &Connect) -> anyhow::Result<Connection> {
        let endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, to.port));
        let connecting = endpoint.connect_with(self.config(to)?, server, &to.name)?;
        Ok(connecting.await?)
    }

    /// Returns the names of the server's certificate.
    pub(crate) async fn handshake(&self, to: &Connect) -> anyhow::Result<Vec<String>> {
        let connection = self.connect(to).await?;
        // Whether the server accepts the certificate of the client is known when it sends something.
        let _control = connection.accept_uni().await?;
        let names = names(&connection);
        connection.close(H3_NO_ERROR, b"");
        names
    }
}

fn names(connection: &Connection) -> anyhow::Result<Vec<String>> {
    let identity = connection.peer_identity().context("no certificate")?;
    let chain = identity
        .downcast::<Vec<CertificateDer<'static>>>()
        .map_err(|_| anyhow!("no chain of certificates"))?;
    let leaf = chain.first().context("an empty chain of certificates")?;
    let certificate = EndEntityCert::try_from(leaf)?;
    Ok(certificate.valid_dns_names().map(str::to_owned).collect())
}
