//! TLS connections to a controller: name resolution, attempts on several addresses, and a CA file
//! that is read for each connection.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::settings::StreamSettings;

/// Maximum number of addresses to try, so that each gets a sufficient share of the timeout.
const MAX_ADDRESSES: usize = 4;

/// The controller to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The host of the settings. The number of previous connections selects the first of several
    /// addresses, so that attempts do not always start with a controller that accepts but never
    /// responds.
    Service(u32),
    /// `ADDRESS:PORT` of the leader.
    Leader(String),
}

/// Connects, and returns the connection and the peer's address. The peer must present a certificate
/// for the host of the settings, regardless of its address.
///
/// # Errors
/// Returns a message. Makes at least one attempt before it fails at `deadline`.
pub(super) async fn connect(
    settings: &StreamSettings,
    peer: &Peer,
    deadline: Instant,
) -> Result<(TlsStream<TcpStream>, SocketAddr), String> {
    let config = client_config(&settings.ca_file)?;
    let name = ServerName::try_from(settings.host.clone())
        .map_err(|_| format!("`{}` is not a valid certificate name", settings.host))?;
    let addresses = timeout_at(deadline, resolve(settings, peer)).await;
    let addresses = addresses.map_err(|_| format!("no DNS response for {}", settings.host))??;
    let socket = connect_first(&addresses, deadline).await?;
    let address = socket.peer_addr().map_err(|error| error.to_string())?;
    // Without TCP_NODELAY, the stream is slower but works.
    let _ = socket.set_nodelay(true);
    let handshake = TlsConnector::from(config).connect(name, socket);
    let stream = timeout_at(deadline, handshake)
        .await
        .map_err(|_| format!("no response from {address} to the TLS handshake"))?
        .map_err(|error| {
            let (host, file) = (&settings.host, settings.ca_file.display());
            format!("TLS handshake with {address} as {host}, trusting {file}: {error}")
        })?;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(format!("{address} does not speak HTTP/2"));
    }
    Ok((stream, address))
}

async fn resolve(settings: &StreamSettings, peer: &Peer) -> Result<Vec<SocketAddr>, String> {
    let mut addresses: Vec<SocketAddr> = match peer {
        Peer::Service(_) => lookup_host((settings.host.as_str(), settings.port))
            .await
            .map_err(|error| format!("{} cannot be resolved: {error}", settings.host))?
            .collect(),
        Peer::Leader(address) => lookup_host(address)
            .await
            .map_err(|error| format!("invalid leader address {address}: {error}"))?
            .collect(),
    };
    if addresses.is_empty() {
        return Err(format!("{} has no address", settings.host));
    }
    if let Peer::Service(connections) = peer {
        let first = *connections as usize % addresses.len();
        addresses.rotate_left(first);
    }
    addresses.truncate(MAX_ADDRESSES);
    Ok(addresses)
}

/// Connects to the first address that accepts. Each gets an equal share of the remaining time.
async fn connect_first(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, String> {
    let mut failures = Vec::new();
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let untried = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let end = Instant::now() + left / untried;
        match timeout_at(end, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => failures.push(format!("{address}: {error}")),
            Err(_) => failures.push(format!("{address}: no response")),
        }
    }
    Err(failures.join("; "))
}

/// Trusts only the certificates of the file.
fn client_config(file: &Path) -> Result<Arc<ClientConfig>, String> {
    let fault = |error: &dyn std::fmt::Display| {
        format!("the CA file {} cannot be used: {error}", file.display())
    };
    let pem = std::fs::read(file).map_err(|error| fault(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| fault(&error))?;
        roots.add(certificate).map_err(|error| fault(&error))?;
    }
    if roots.is_empty() {
        return Err(fault(&"it contains no certificate"));
    }
    // The controller supports TLS 1.3, so older versions are disabled.
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;
    use crate::api::Key;

    fn settings(host: &str) -> StreamSettings {
        StreamSettings {
            host: host.to_owned(),
            port: 19443,
            gateway: Key::new("infra", "edge"),
            ca_file: "/nonexistent/ca.crt".into(),
            token_file: "/nonexistent/token".into(),
            state_dir: None,
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[tokio::test]
    async fn names_missing_and_empty_ca_files() {
        let peer = Peer::Service(0);
        let error = connect(&settings("127.0.0.1"), &peer, soon()).await;
        assert!(error.unwrap_err().contains("/nonexistent/ca.crt"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = client_config(file.path()).unwrap_err();
        assert!(error.ends_with("it contains no certificate"), "{error}");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(file.path(), broken).unwrap();
        assert!(client_config(file.path()).is_err());
    }

    #[tokio::test]
    async fn tries_addresses_until_one_accepts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (open, gone) = (listener.local_addr().unwrap(), closed.local_addr().unwrap());
        drop(closed);
        let socket = connect_first(&[gone, open], soon()).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap(), open);
        let error = connect_first(&[gone, gone], soon()).await.unwrap_err();
        assert_eq!(error.matches(&gone.to_string()).count(), 2, "{error}");
    }

    #[tokio::test]
    async fn each_connection_starts_with_the_next_address() {
        let settings = settings("localhost");
        let resolved = async |connections| {
            let peer = Peer::Service(connections);
            resolve(&settings, &peer).await.unwrap()
        };
        let addresses = resolved(0).await;
        let count = u32::try_from(addresses.len()).unwrap();
        for connections in 0..2 * count {
            let expected = addresses[connections as usize % addresses.len()];
            assert_eq!(resolved(connections).await[0], expected);
        }
    }

    #[tokio::test]
    async fn connects_to_the_leader_by_address() {
        let leader = Peer::Leader("127.0.0.1:7".to_owned());
        let addresses = resolve(&settings("localhost"), &leader).await.unwrap();
        assert_eq!(addresses, ["127.0.0.1:7".parse().unwrap()]);
        let broken = Peer::Leader("nowhere".to_owned());
        let error = resolve(&settings("localhost"), &broken).await.unwrap_err();
        assert!(error.contains("nowhere"), "{error}");
    }
}
