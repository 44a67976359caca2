//! The data plane of most tests: one HTTP and one HTTPS port in front of one scripted origin, and
//! checks that hold after every input.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};

use portcullis::process::data_plane::Server;
use portcullis::settings::Settings;
use portcullis::telemetry::metrics::TimeoutKind;

use crate::harness::client::{Client, Response, get};
use crate::harness::origin::{HELLO, Origin, Peer};
use crate::harness::server::TestServer;
use crate::harness::tls::Certificate;
use crate::harness::yaml;

/// The host that the fixture serves.
pub(crate) const HOST: &str = "a.example";

/// A data plane in front of one origin.
pub(crate) struct Fixture {
    pub(crate) server: TestServer,
    pub(crate) origin: Origin,
}

impl Fixture {
    /// Sends everything to this origin ([`yaml::all_to`]).
    pub(crate) fn new(origin: Origin) -> Self {
        Self::with(origin, |_| {})
    }

    /// With changed settings.
    pub(crate) fn with(origin: Origin, tune: impl FnOnce(&mut Settings)) -> Self {
        let server = TestServer::start_with(&documents(origin.address, ""), tune);
        Self { server, origin }
    }

    /// With these rules in YAML flow style, and changed settings.
    pub(crate) fn routed(origin: Origin, rules: &str, tune: impl FnOnce(&mut Settings)) -> Self {
        let mut documents = documents(origin.address, "");
        documents[1] = yaml::route("route", "gateway", &[], rules);
        let server = TestServer::start_with(&documents, tune);
        Self { server, origin }
    }

    /// Returns address of the HTTP port.
    pub(crate) fn http(&self) -> SocketAddr {
        self.server.at(80)
    }

    /// Returns address of the HTTPS port.
    pub(crate) fn https(&self) -> SocketAddr {
        self.server.at(443)
    }

    /// Returns a plain client.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.http())
    }

    /// Returns a client that sends plain text to the HTTPS port.
    pub(crate) fn https_raw(&self) -> Client {
        Client::connect(self.https())
    }

    /// Sends one request on a new connection; returns the response.
    pub(crate) fn round_trip(&self, request: impl AsRef<[u8]>) -> Response {
        self.client().round_trip(request)
    }

    /// Waits until timeout `kind` has ended `count` peers. Fails the test if it has ended more.
    pub(crate) fn ended_by(&self, kind: TimeoutKind, count: u64) {
        let connections = &self.server.state().stats.connections;
        let enough = |_: &Server| connections.timeouts(kind) >= count;
        self.server
            .until(&format!("{count} times {kind:?}"), enough);
        assert_eq!(connections.timeouts(kind), count, "{kind:?}");
    }

    /// Fails the test unless the origin has received `requests` requests and a new request
    /// succeeds.
    pub(crate) fn is_healthy(&self, requests: usize) {
        let seen = self.origin.requests();
        assert_eq!(seen.len(), requests, "requests at the origin: {seen:#?}");
        self.serves();
        let seen = self.origin.requests();
        let is_served = seen.iter().any(|request| request.target() == "/fresh");
        assert!(is_served, "{seen:#?}");
    }

    /// Fails the test unless a new request succeeds.
    pub(crate) fn serves(&self) {
        let answer = get(self.http(), HOST, "/fresh");
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    }
}

/// Returns an origin that responds to `/fresh` and runs `script` for every other request. The
/// connection ends when the script returns false.
pub(crate) fn scripted(script: impl Fn(&mut Peer) -> bool + Send + Sync + 'static) -> Origin {
    Origin::start(move |peer| {
        while let Some(request) = peer.request() {
            let goes_on = if request.target() == "/fresh" {
                peer.send(HELLO)
            } else {
                script(peer)
            };
            if !goes_on {
                return;
            }
        }
    })
}

/// Returns an origin with responses of this size. Reports for each how much was sent when the
/// proxy closed the connection.
pub(crate) fn flooding(size: usize) -> (Origin, Receiver<usize>) {
    let (sender, receiver) = channel();
    let origin = scripted(move |peer| {
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"));
        let sent = peer.send_until_closed(size);
        // Ignored: the test may have ended.
        let _ = sender.send(sent);
        peer.rest();
        true
    });
    (origin, receiver)
}

/// Returns a Gateway with HTTP on port 80 and HTTPS on 443, one route to the origin, and additional
/// documents.
pub(crate) fn documents(origin: SocketAddr, more: &str) -> Vec<String> {
    let listeners = [
        yaml::http("http", 80, ""),
        yaml::https("https", 443, "", &["certificate"]),
    ];
    let mut documents = vec![
        yaml::gateway("gateway", &listeners),
        yaml::route("route", "gateway", &[], &yaml::all_to("origin")),
        yaml::service("origin", &[origin]),
        yaml::secret("certificate", &Certificate::new(&[HOST])),
    ];
    documents.extend((!more.is_empty()).then(|| more.to_owned()));
    documents
}
