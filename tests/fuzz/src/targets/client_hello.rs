//! Feeds what a client sends first on a TLS port: to the acceptor, to the choice of listener and certificate by server
//! name, and to the handshake; and to what finds the server name of a connection that is passed through. Checks that
//! nothing panics, that it does not matter in which pieces the bytes come, and that both find the same name.
//! Inputs begin as hellos of a real client, whose lengths stay right in most changes: nothing else is read far.

use std::io::Read;
use std::sync::{Arc, LazyLock};

use portcullis::table::{Port, Table};
use rustls::server::Acceptor;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConnection, SupportedProtocolVersion,
    version,
};

use crate::mutate::MutateBytes;
use crate::objects;
use crate::proxy::connection::{self, Passed};

const GATEWAY: &str = include_str!("client_hello.yaml");

static TABLE: LazyLock<Table> =
    LazyLock::new(|| objects::table(&objects::documents(GATEWAY).expect("the gateway is YAML")));

fn port() -> &'static Port {
    &TABLE.ports()[0]
}

/// Checks one input.
pub fn check(data: &[u8]) {
    let whole = greet(data, data.len());
    for size in [1, data.len() / 2] {
        assert_eq!(greet(data, size), whole, "in pieces of {size}");
    }
    let passed = connection::read_hello(data, data.len());
    for size in [1, data.len() / 2] {
        assert_eq!(
            connection::read_hello(data, size),
            passed,
            "in pieces of {size}"
        );
    }
    // A name that the acceptor does not know, such as an address, is another's to judge.
    if let Outcome::Unrecognized(Some(name)) | Outcome::Answered(Some(name)) = whole {
        let name = name.strip_suffix('.').unwrap_or(&name).to_owned();
        assert_eq!(passed, Passed::Named(Some(name)));
    }
}

/// How a connection goes on after the client's first bytes.
#[derive(Debug, PartialEq)]
enum Outcome {
    Unfinished,
    Refused,
    Unrecognized(Option<String>),
    Answered(Option<String>),
}

/// Serves a connection whose client sends `data` in pieces of `size`, as the proxy does.
fn greet(data: &[u8], size: usize) -> Outcome {
    let mut acceptor = Acceptor::default();
    let mut pieces = data.chunks(size.max(1));
    let accepted = loop {
        let Some(mut piece) = pieces.next() else {
            return Outcome::Unfinished;
        };
        while !piece.is_empty() {
            if acceptor.read_tls(&mut piece).is_err() {
                return Outcome::Refused;
            }
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => break accepted,
            Ok(None) => {}
            Err((_, mut alert)) => {
                alert.write_all(&mut Vec::new()).expect("memory takes it");
                return Outcome::Refused;
            }
        }
    };
    let sni = accepted
        .client_hello()
        .server_name()
        .map(str::to_ascii_lowercase);
    assert!(sni.as_deref() != Some(""), "an empty server name");
    let Some(server) = port().server(sni.as_deref()) else {
        return Outcome::Unrecognized(sni);
    };
    match accepted.into_connection(server.config.clone()) {
        Ok(connection) => go_on(connection, pieces, sni),
        Err((_, mut alert)) => {
            alert.write_all(&mut Vec::new()).expect("memory takes it");
            Outcome::Refused
        }
    }
}

/// What follows the hello is read as far as it goes; how it is answered depends on keys of the moment.
fn go_on<'a>(
    mut connection: ServerConnection,
    pieces: impl Iterator<Item = &'a [u8]>,
    sni: Option<String>,
) -> Outcome {
    for mut piece in pieces {
        while !piece.is_empty() && connection.read_tls(&mut piece).is_ok() {
            if connection.process_new_packets().is_err() {
                break;
            }
            let _ = connection.reader().read(&mut [0; 64]);
        }
    }
    let _ = connection.write_tls(&mut Vec::new());
    Outcome::Answered(sni)
}

/// Changes the first `size` bytes of `data`, and returns how many there are then.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    bytes: MutateBytes<'_>,
) -> usize {
    if size < 64 || seed.is_multiple_of(64) {
        let hello = hello(seed / 64);
        if hello.len() <= max_size {
            data[..hello.len()].copy_from_slice(&hello);
            return hello.len();
        }
    }
    let size = bytes(data, size, max_size);
    if !seed.is_multiple_of(8) && size > 9 && size < 1 << 14 {
        data[3..5].copy_from_slice(&(size as u16 - 5).to_be_bytes());
        data[6] = 0;
        data[7..9].copy_from_slice(&(size as u16 - 9).to_be_bytes());
    }
    size
}

/// The client of each version, with a ticket of an earlier handshake.
static CLIENTS: LazyLock<[Arc<ClientConfig>; 2]> = LazyLock::new(|| {
    [&version::TLS12, &version::TLS13].map(|version| {
        let client = client(version);
        let mut one = ClientConnection::new(client.clone(), name(0)).expect("a connection begins");
        let config = port()
            .server(Some("a.example.com"))
            .expect("is served")
            .config
            .clone();
        let mut other = ServerConnection::new(config).expect("a connection begins");
        while one.wants_write() || other.wants_write() {
            let mut wire = Vec::new();
            one.write_tls(&mut wire).expect("memory takes it");
            other.read_tls(&mut &*wire).expect("memory gives it");
            other.process_new_packets().expect("the client is honest");
            wire.clear();
            other.write_tls(&mut wire).expect("memory takes it");
            one.read_tls(&mut &*wire).expect("memory gives it");
            one.process_new_packets().expect("the server is honest");
        }
        client
    })
});

fn client(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let listeners = port().ir.listeners.iter();
    for tls in listeners.filter_map(|listener| listener.tls()) {
        roots
            .add(tls.certificates[0].chain()[0].clone())
            .expect("a certificate of the goldens");
    }
    let mut config = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.into()
}

fn name(index: u32) -> rustls::pki_types::ServerName<'static> {
    let names = [
        "a.example.com",
        "b.example.com",
        "x.y.b.example.com",
        "example.org",
        "127.0.0.1",
    ];
    names[index as usize % names.len()]
        .try_into()
        .expect("a server name")
}

fn hello(choice: u32) -> Vec<u8> {
    let client = CLIENTS[choice as usize % 2].clone();
    let mut connection =
        ClientConnection::new(client, name(choice / 2)).expect("a connection begins");
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).expect("memory takes it");
    hello
}
