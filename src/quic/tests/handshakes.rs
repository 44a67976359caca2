//! The ClientHello chooses.

use quinn::{ConnectionError, TransportErrorCode};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig, version};

use super::fixtures::{Authority, LIMITS, Server, by_name, client_endpoint, connect, download};

/// The alert that the server has closed a connection with.
fn alert(error: ConnectionError) -> TransportErrorCode {
    match error {
        ConnectionError::ConnectionClosed(close) => close.error_code,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn each_name_has_its_certificate() {
    let authority = Authority::new();
    let configs = ["a.test", "b.test"].map(|name| (name, authority.server(name)));
    let mut server = Server::start(LIMITS, &by_name(configs.into()));
    let endpoint = client_endpoint();
    for name in ["a.test", "b.test", "a.test"] {
        // The client verifies that the certificate has the name.
        let connection = connect(&endpoint, authority.client(), server.address, name).await;
        let connection = connection.unwrap();
        download(&connection, 1000).await;
        let served = server.next().await;
        assert_eq!(served.outcome.unwrap(), (name, Vec::new()));
        assert!(!served.is_validated);
    }
}

#[tokio::test]
async fn refused_name_and_other_protocols_get_their_alert() {
    let authority = Authority::new();
    let mut a_test = authority.server("a.test");
    // What TCP offers is not offered here.
    a_test.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut server = Server::start(LIMITS, &by_name(vec![("a.test", a_test)]));
    let endpoint = client_endpoint();
    let mut of_h2 = authority.client();
    of_h2.alpn_protocols = vec![b"h2".to_vec()];
    for (name, config, expected) in [("c.test", authority.client(), 112), ("a.test", of_h2, 120)] {
        let refused = connect(&endpoint, config, server.address, name).await;
        let expected = TransportErrorCode::crypto(expected);
        assert_eq!(alert(refused.unwrap_err()), expected);
        assert!(server.next().await.outcome.is_err());
    }
}

#[tokio::test]
async fn client_hello_may_need_several_packets() {
    let authority = Authority::new();
    let mut server = Server::start(
        LIMITS,
        &by_name(vec![("a.test", authority.server("a.test"))]),
    );
    let endpoint = client_endpoint();
    for protocols in [0, 40] {
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = vec![
            aws_lc_rs::kx_group::X25519MLKEM768,
            aws_lc_rs::kx_group::SECP256R1,
        ];
        let mut config = authority.client_with(provider);
        let others = (0..protocols).map(|number| vec![number; 255]);
        config.alpn_protocols.extend(others);
        let connection = connect(&endpoint, config, server.address, "a.test").await;
        download(&connection.unwrap(), 1000).await;
        assert!(server.next().await.outcome.is_ok());
    }
}

#[tokio::test]
async fn too_large_client_hello_is_refused() {
    let authority = Authority::new();
    let server = Server::start(
        LIMITS,
        &by_name(vec![("a.test", authority.server("a.test"))]),
    );
    let mut config = authority.client();
    config
        .alpn_protocols
        .extend((0..70).map(|number| vec![number; 255]));
    let refused = connect(&client_endpoint(), config, server.address, "a.test").await;
    assert_eq!(alert(refused.unwrap_err()), TransportErrorCode::crypto(47));
}

#[tokio::test]
async fn client_certificates_are_verified_and_known() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (certificate, key) = authority.issue("a.test");
    let provider = std::sync::Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(authority.roots(), provider.clone());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let mut server = Server::start(LIMITS, &by_name(vec![("a.test", config)]));
    let endpoint = client_endpoint();
    let client = |issuer: &Authority| -> (CertificateDer<'static>, ClientConfig) {
        let (certificate, key) = issuer.issue("client");
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(authority.roots())
            .with_client_auth_cert(vec![certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h3".to_vec()];
        (certificate, config)
    };
    let (certificate, trusted) = client(&authority);
    let connection = connect(&endpoint, trusted, server.address, "a.test").await;
    download(&connection.unwrap(), 1000).await;
    let served = server.next().await;
    assert_eq!(served.outcome.unwrap(), ("a.test", vec![certificate]));
    // The client may believe that it is connected until the alert arrives.
    for config in [client(&other).1, authority.client()] {
        if let Ok(connection) = connect(&endpoint, config, server.address, "a.test").await {
            alert(connection.closed().await);
        }
        assert!(server.next().await.outcome.is_err());
    }
}
