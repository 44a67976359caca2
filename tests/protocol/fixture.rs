//! The data plane that most tests talk to: one HTTP and one HTTPS port in front of one scripted origin, and what must
//! hold after every input. Knows no single input.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use portcullis::server::Server;
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
    /// In front of this origin, as [`yaml::all_to`] it.
    pub(crate) fn new(origin: Origin) -> Self {
        Self::with(origin, |_| {})
    }

    /// With other settings.
    pub(crate) fn with(origin: Origin, tune: impl FnOnce(&mut Settings)) -> Self {
        let server = TestServer::start_with(&documents(origin.address, ""), tune);
        Self { server, origin }
    }

    /// With this list of rules, in YAML's flow style, and other settings.
    pub(crate) fn routed(origin: Origin, rules: &str, tune: impl FnOnce(&mut Settings)) -> Self {
        let mut documents = documents(origin.address, "");
        documents[1] = yaml::route("route", "gateway", &[], rules);
        let server = TestServer::start_with(&documents, tune);
        Self { server, origin }
    }

    /// Where plain HTTP is served.
    pub(crate) fn http(&self) -> SocketAddr {
        self.server.at(80)
    }

    /// Where HTTPS is served.
    pub(crate) fn https(&self) -> SocketAddr {
        self.server.at(443)
    }

    /// A plain client.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.http())
    }

    /// A client that speaks no TLS on the port where it is expected.
    pub(crate) fn https_raw(&self) -> Client {
        Client::connect(self.https())
    }

    /// What one request on a connection of its own gets.
    pub(crate) fn ask(&self, request: impl AsRef<[u8]>) -> Response {
        self.client().ask(request)
    }

    /// Waits until `kind` has ended `count` peers, and fails the test when it has ended more.
    pub(crate) fn ended_by(&self, kind: TimeoutKind, count: u64) {
        let connections = &self.server.state().stats.connections;
        let enough = |_: &Server| connections.timeouts(kind) >= count;
        self.server
            .until(&format!("{count} times {kind:?}"), enough);
        assert_eq!(connections.timeouts(kind), count, "{kind:?}");
    }

    /// Fails the test unless the input so far has brought `requests` to the origin, and a fresh request works.
    pub(crate) fn is_well(&self, requests: usize) {
        let seen = self.origin.requests();
        assert_eq!(seen.len(), requests, "requests at the origin: {seen:#?}");
        let answer = get(self.http(), HOST, "/fresh");
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(self.origin.last().target(), "/fresh");
    }
}

/// An origin that does `script` with every request but `/fresh`, which it answers. The connection ends when the script
/// says so.
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

/// An origin whose answers have so many bytes. It tells of each how much of it was taken before nothing more was.
pub(crate) fn flooding(size: usize) -> (Origin, Receiver<usize>) {
    let (tell, told) = channel();
    let origin = scripted(move |peer| {
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"));
        let sent = peer.send_until_full(size, Duration::from_millis(300));
        // The test has ended, if nobody listens.
        let _ = tell.send(sent);
        peer.rest();
        true
    });
    (origin, told)
}

/// A Gateway with HTTP on port 80 and HTTPS on 443, one route to the origin, and more.
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
