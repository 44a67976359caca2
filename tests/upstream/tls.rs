//! TLS to backends: verified, with ALPN, and without sharing connections between identities.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use portcullis::ir::UpstreamProtocol;
use portcullis::table::{Backend, ClientTls, TlsIdentity, Transport, UpstreamFault};
use portcullis::upstream::SendError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinSet, spawn_local};
use tokio_rustls::TlsAcceptor;

use crate::harness::tls::Certificate;
use crate::scene::{Endpoint, TestRequest, Worker, backend, block_on};

/// A TLS endpoint with the negotiated protocols of its connections.
struct Origin {
    endpoint: Endpoint,
    protocols: Rc<RefCell<Vec<Option<Vec<u8>>>>>,
}

impl Origin {
    async fn start(
        certificate: &Certificate,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Self {
        Self::changing(certificate, versions, &[alpn]).await
    }

    /// Each connection has the next of these lists for ALPN, and the later ones the last.
    async fn changing(
        certificate: &Certificate,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&[&str]],
    ) -> Self {
        let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("a key");
        let mut config = ServerConfig::builder_with_protocol_versions(versions)
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der.clone()], key)
            .expect("a configuration");
        let acceptor = |alpn: &&[&str]| {
            config.alpn_protocols = names(alpn);
            TlsAcceptor::from(Arc::new(config.clone()))
        };
        let acceptors: Vec<_> = alpn.iter().map(acceptor).collect();
        let protocols = Rc::<RefCell<Vec<_>>>::default();
        let seen = protocols.clone();
        let endpoint = Endpoint::start(move |socket, connection| {
            let index = connection.min(acceptors.len()) - 1;
            let (acceptor, seen) = (acceptors[index].clone(), seen.clone());
            async move {
                let Ok(mut stream) = acceptor.accept(socket).await else {
                    return;
                };
                let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                seen.borrow_mut().push(protocol.clone());
                if protocol.as_deref() == Some(b"h2") {
                    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        assert_eq!(request.uri().scheme_str(), Some("https"));
                        let _ = respond.send_response(http::Response::new(()), true);
                    }
                    return;
                }
                let mut text = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    text.push(byte);
                    if text.ends_with(b"\r\n\r\n") {
                        text.clear();
                        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                        stream.write_all(response).await.expect("sent");
                        stream.flush().await.expect("sent");
                    }
                }
            }
        })
        .await;
        Self {
            endpoint,
            protocols,
        }
    }

    fn address(&self) -> SocketAddr {
        self.endpoint.address
    }
}

fn names(alpn: &[&str]) -> Vec<Vec<u8>> {
    alpn.iter().map(|name| name.as_bytes().to_vec()).collect()
}

/// TLS that trusts this certificate, for this name.
fn tls(certificate: &Certificate, name: &str, alpn: &[&str], identity: u64) -> Transport {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der.clone()).expect("a root");
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = names(alpn);
    Transport::Tls(Arc::new(ClientTls {
        config: Arc::new(config),
        server_name: ServerName::try_from(name.to_owned()).expect("a name"),
        identity: TlsIdentity(identity),
        for_upgrades: None,
    }))
}

fn over(transport: Transport, origin: &Origin) -> Backend {
    backend(UpstreamProtocol::Http1, transport, &[origin.address()])
}

#[test]
fn reuses_idle_connection_after_unsolicited_session_tickets() {
    block_on(async {
        let certificate = Certificate::new(&["origin.example"]);
        for versions in [&[&version::TLS13], &[&version::TLS12]] {
            let origin = Origin::start(&certificate, versions, &[]).await;
            let backend = over(tls(&certificate, "origin.example", &[], 1), &origin);
            let worker = Worker::new();
            for _ in 0..5 {
                let outcome = worker.send(&backend, &TestRequest::get()).await;
                assert_eq!(outcome.expect("a response").status, 200);
                // After the tickets are read, the connection counts as idle again.
                worker.upstream.sweep();
            }
            assert_eq!(origin.endpoint.connections(), 1);
        }
    });
}

#[test]
fn speaks_the_protocol_selected_by_alpn() {
    block_on(async {
        let certificate = Certificate::new(&["origin.example"]);
        for (offered, accepted, chosen) in [
            (&["h2", "http/1.1"][..], &["h2"][..], Some("h2")),
            (&["h2", "http/1.1"], &["http/1.1"], Some("http/1.1")),
            (&["h2", "http/1.1"], &[], None),
            (&["http/1.1"], &["h2", "http/1.1"], Some("http/1.1")),
        ] {
            let origin = Origin::start(&certificate, rustls::ALL_VERSIONS, accepted).await;
            let transport = tls(&certificate, "origin.example", offered, 1);
            let backend = Rc::new(over(transport, &origin));
            let worker = Worker::new();
            let mut requests = JoinSet::new();
            for _ in 0..8 {
                let (worker, backend) = (worker.clone(), backend.clone());
                requests
                    .spawn_local(async move { worker.send(&backend, &TestRequest::post()).await });
            }
            while let Some(outcome) = requests.join_next().await {
                assert_eq!(outcome.expect("no panic").expect("a response").status, 200);
            }
            let chosen = chosen.map(|name| name.as_bytes().to_vec());
            let protocols = origin.protocols.borrow();
            assert!(protocols.iter().all(|it| *it == chosen), "{protocols:?}");
            if chosen.as_deref() == Some(b"h2") {
                assert_eq!(origin.endpoint.connections(), 1);
            }
        }
    });
}

#[test]
fn every_connection_speaks_the_protocol_of_its_own_alpn() {
    block_on(async {
        let certificate = Certificate::new(&["origin.example"]);
        for first in [&["http/1.1"][..], &[]] {
            let alpn = [first, &["h2"]];
            let origin = Origin::changing(&certificate, rustls::ALL_VERSIONS, &alpn).await;
            let offered = tls(&certificate, "origin.example", &["h2", "http/1.1"], 1);
            let backend = over(offered, &origin);
            // HTTP/1.1 connections are not kept.
            let worker = Worker::with(|limits| limits.upstream_max_idle = 0);
            for _ in 0..3 {
                let outcome = worker.send(&backend, &TestRequest::post()).await;
                assert_eq!(outcome.expect("a response").status, 200);
            }
            let protocols = origin.protocols.borrow();
            let chosen: Vec<_> = protocols.iter().map(Option::as_deref).collect();
            assert_eq!(chosen, [first.first().map(|it| it.as_bytes()), Some(b"h2")]);
        }
    });
}

#[test]
fn rejects_certificates_of_another_name_or_ca() {
    block_on(async {
        let certificate = Certificate::new(&["origin.example"]);
        let other = Certificate::new(&["origin.example"]);
        let origin = Origin::start(&certificate, rustls::ALL_VERSIONS, &[]).await;
        for transport in [
            tls(&certificate, "other.example", &[], 1),
            tls(&other, "origin.example", &[], 2),
        ] {
            let outcome = Worker::new()
                .send(&over(transport, &origin), &TestRequest::get())
                .await;
            assert!(matches!(
                outcome,
                Err(SendError::Backend(UpstreamFault::Connect, _))
            ));
        }
        assert!(origin.protocols.borrow().is_empty());
    });
}

#[test]
fn never_reuses_a_connection_of_another_identity() {
    block_on(async {
        let certificate = Certificate::new(&["origin.example"]);
        for alpn in [&[][..], &["h2"]] {
            let origin = Origin::start(&certificate, rustls::ALL_VERSIONS, alpn).await;
            let worker = Worker::new();
            // The endpoint stays the same while the transport of its backend changes.
            let mut backend = over(tls(&certificate, "origin.example", alpn, 1), &origin);
            for identity in [1, 1, 2, 2, 1] {
                backend.transport = tls(&certificate, "origin.example", alpn, identity);
                assert!(worker.send(&backend, &TestRequest::get()).await.is_ok());
            }
            assert_eq!(origin.endpoint.connections(), 2);
        }
    });
}

#[test]
fn hanging_handshake_is_a_connect_timeout() {
    block_on(async {
        let certificate = Certificate::new(&["origin.example"]);
        let silent = Endpoint::start(|socket, _| async move {
            let _socket = socket;
            std::future::pending().await
        })
        .await;
        let worker = Worker::with(|limits| {
            limits.connect_timeout = Duration::from_millis(100);
        });
        let transport = tls(&certificate, "origin.example", &[], 1);
        let backend = backend(UpstreamProtocol::Http1, transport, &[silent.address]);
        let outcome = spawn_local(async move { worker.send(&backend, &TestRequest::get()).await });
        assert!(matches!(
            outcome.await.expect("no panic"),
            Err(SendError::Backend(UpstreamFault::ConnectTimeout, _))
        ));
    });
}
