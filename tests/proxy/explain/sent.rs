//! A request to a proxy: its explanation, the exchange itself, and its line of the access log. Connections to the proxy
//! stay open for further requests.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use http::{Method, Request};
use serde_json::Value;

use crate::client::{Answer, Client, get, handshake};
use crate::harness::{TEST_TIMEOUT, tls};
use crate::origin::{Payload, empty};
use crate::scene::Scene;

/// A request.
#[derive(Debug)]
pub(super) struct Sent {
    /// Its user agent, which names it in the access log.
    pub(super) id: String,
    pub(super) port: u16,
    /// Name in the handshake, on the port of HTTPS.
    pub(super) name: String,
    pub(super) host: String,
    pub(super) method: &'static str,
    /// The path with the query.
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) http2: bool,
}

impl Sent {
    /// Values of a header, in order.
    pub(super) fn values(&self, name: &str) -> Vec<&str> {
        let same = self.headers.iter().filter(|(it, _)| it == name);
        same.map(|(_, value)| &**value).collect()
    }

    /// Its method and URL as those of an explanation.
    pub(super) fn described(&self) -> String {
        let (scheme, host) = match self.port {
            443 => ("https", &self.name),
            // The port of the Host header is not the one that the client connects to.
            _ => ("http", &self.host),
        };
        let host = host.split(':').next().unwrap_or_default();
        format!(
            "{} {scheme}://{host}:{}{}",
            self.method, self.port, self.path
        )
    }

    /// Its headers as those of an explanation.
    pub(super) fn described_headers(&self) -> impl Iterator<Item = String> {
        let others = self.headers.iter();
        let others = others.map(|(name, value)| format!("{name}: {value}"));
        [format!("Host: {}", self.host)].into_iter().chain(others)
    }

    /// The path of its explanation.
    fn explanation(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("output", "json");
        query.append_pair("request", &self.described());
        for header in self.described_headers() {
            query.append_pair("header", &header);
        }
        format!("/explain?{}", query.finish())
    }
}

/// Connections to a proxy, one for each port, server name and version of HTTP.
pub(super) struct Connections<'a> {
    scene: &'a Scene,
    open: HashMap<(u16, String, bool), Client>,
}

impl<'a> Connections<'a> {
    pub(super) fn of(scene: &'a Scene) -> Self {
        Self {
            scene,
            open: HashMap::new(),
        }
    }

    /// Returns what the admin server says about a request.
    pub(super) async fn explain(&self, sent: &Sent) -> Value {
        let address = self.scene.admin_address();
        let page = get(address, "localhost", &sent.explanation()).await;
        assert_eq!(page.status, 200, "{sent:?}: {}", page.text());
        serde_json::from_str(page.text()).expect("JSON")
    }

    /// Sends a request; `None` if the handshake is refused.
    pub(super) async fn send(&mut self, sent: &Sent) -> Option<Answer> {
        let name = if sent.port == 443 { &*sent.name } else { "" };
        let place = (sent.port, name.to_owned(), sent.http2);
        let mut client = match self.open.remove(&place) {
            Some(client) => client,
            None => self.connect(sent).await?,
        };
        let method = Method::from_bytes(sent.method.as_bytes()).expect("a method");
        let mut request = client.request(method, &sent.host, &sent.path);
        for (name, value) in &sent.headers {
            request = request.header(name, value);
        }
        let request = request.header("user-agent", &sent.id);
        let request: Request<Payload> = request.body(empty()).expect("a request");
        let answer = client.fetch(request).await;
        if answer.header("connection") != "close" {
            self.open.insert(place, client);
        }
        Some(answer)
    }

    async fn connect(&self, sent: &Sent) -> Option<Client> {
        let address = self.scene.at(sent.port);
        Some(match (sent.port, sent.http2) {
            (443, http2) => {
                let config = tls::client(if http2 { &["h2"] } else { &["http/1.1"] });
                let stream = handshake(address, &sent.name, &config).await.ok()?;
                match http2 {
                    true => Client::http2_on(stream).await,
                    false => Client::http1_on(stream).await,
                }
            }
            (_, true) => Client::http2(address).await,
            (_, false) => Client::http1(address).await,
        })
    }
}

/// Returns the lines of the access log by user agent, once there are as many.
pub(super) fn log(file: &Path, lines: usize) -> BTreeMap<String, Value> {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if text.lines().count() >= lines && text.ends_with('\n') {
            let lines = text.lines().map(|line| {
                let line: Value = serde_json::from_str(line).expect("JSON");
                (
                    line["user_agent"].as_str().unwrap_or_default().to_owned(),
                    line,
                )
            });
            return lines.collect();
        }
        assert!(
            Instant::now() < end,
            "{} lines: {text}",
            text.lines().count()
        );
        // A file has no event that a test could await.
        thread::sleep(Duration::from_millis(5));
    }
}
