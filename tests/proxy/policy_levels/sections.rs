//! The sections of policies: what policies `a` and `b` say in each, and which of them a request meets. Must not know levels.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::connections;
use super::specification::Rule;
use crate::access_policy::connect_from;
use crate::client::{Answer, Client};
use crate::credentials::{authorization, secret};
use crate::harness::tls::Certificate;
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::issuer::{Issuer, SHARED, claims, provider};
use crate::origin::{Origin, empty, full};
use crate::scene::Objects;

/// A section of a policy.
#[derive(Clone, Copy)]
pub(super) struct Section {
    pub(super) kind: &'static str,
    pub(super) rule: Rule,
    /// The `spec` of the policy with a letter.
    pub(super) spec: fn(char) -> Value,
    pub(super) effect: Effect,
}

/// How requests show the policies that they meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Clients that are not those of the policy are refused.
    PermitsOwn,
    /// The client of the policy is refused.
    DeniesOwn,
    /// Browsers are sent to the provider as the client of the policy.
    SignIn,
    /// A header of the response has the letter.
    Header(&'static str),
    /// The response is encoded by gzip for `a`, and by br for `b`.
    Encoding,
    /// Bodies over 8 bytes are refused by `a`, and over 16 bytes by `b`.
    BodySize,
    /// The page has the letter.
    Page,
    /// `a` refuses escaped slashes, and `b` redirects to plain ones.
    Path,
    /// `a` refuses headers with underscores, and `b` drops them.
    Underscores,
    /// The connection ends after the first request with `a`, and after the second one with `b`.
    Requests,
    /// With the policy of the letter, a response that takes long is given up. The other one permits it.
    Deadline(char),
    /// A request is sent once more with `a`, and twice more with `b`.
    Attempts,
    /// Each of two credentials is enough for the policy of the letter, and both are needed for the other one.
    Credentials(char),
    /// The address of the client is that of a header, of which each policy has its own.
    ClientAddress,
    /// `a` refuses TLS 1.2, and `b` offers HTTP/1.1 only.
    Tls,
    /// `a` ends connections that do not complete a request, and `b` those without a request.
    Timeouts,
    /// Concurrent streams of a connection: 7 with `a`, and 9 with `b`.
    Streams,
    /// Clients may remember HTTP/3 for an hour with `a`, and for two with `b`.
    Alternatives,
    /// `a` needs the header of the PROXY protocol, and `b` permits it.
    ProxyHeader,
}

impl Effect {
    /// Returns how many pairs are checked at the same time: half of those of all levels where requests take long.
    pub(super) fn concurrency(self) -> usize {
        match self {
            Self::Deadline(_) | Self::Timeouts => 68,
            _ => 1,
        }
    }

    /// Reports whether it needs HTTPS listeners.
    pub(super) fn needs_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Alternatives)
    }

    /// Reports whether requests show the effect of the policy with a letter.
    pub(super) fn shows(self, letter: char) -> bool {
        !matches!(self, Self::Deadline(short) if short != letter)
    }
}

/// A section that replaces what others say.
pub(super) const fn replaces(
    kind: &'static str,
    effect: Effect,
    spec: fn(char) -> Value,
) -> Section {
    Section {
        kind,
        rule: Rule::Replaces,
        spec,
        effect,
    }
}

/// A section of an AccessPolicy, each of which permits another client.
pub(super) const fn permits(spec: fn(char) -> Value) -> Section {
    Section {
        kind: "AccessPolicy",
        rule: Rule::ReplacesAndLoosens,
        spec,
        effect: Effect::PermitsOwn,
    }
}

/// A client: `a`, `b`, or another one, which has several addresses, since each has a limited number of ports.
fn address(client: char) -> [u8; 4] {
    match client {
        'a' => [127, 0, 1, 1],
        'b' => [127, 0, 2, 1],
        _ => [127, 0, 3, NUMBER.fetch_add(1, Relaxed) as u8 | 1],
    }
}

pub(super) fn text(client: char) -> String {
    address(client).map(|byte| byte.to_string()).join(".")
}

pub(super) fn jwt(client: char) -> Value {
    let mut spec = provider(&json!({"secretRef": {"name": "shared"}}));
    spec["jwt"]["providers"][0]["audiences"] = json!([client]);
    spec["jwt"]["providers"][0]["from"] = json!([{"type": "Cookie", "name": "token"}]);
    spec
}

/// The provider of sign-ins, whose port is free at run time.
pub(super) static ISSUER: OnceLock<String> = OnceLock::new();

/// A rule of each route takes the paths of sign-ins.
pub(super) fn oidc(client: char) -> Value {
    // Where nobody signs in, no provider runs.
    let issuer = ISSUER
        .get()
        .map_or("https://issuer.example", String::as_str);
    json!({"oidc": {
        "issuer": issuer, "clientID": format!("client-{client}"),
        "redirectPath": "/rule/callback", "logoutPath": "/rule/logout",
    }})
}

/// The backends, and the objects that sections name.
pub(super) struct Backends {
    origin: Origin,
    servers: [(char, Origin); 2],
}

/// More than the least size of a response that is compressed.
const PAGE: usize = 2048;
/// The Secret of HTTPS listeners.
pub(super) const CERTIFICATE: &str = "certificate";
/// Numbers of requests that are counted, and of addresses.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Backends {
    pub(super) async fn new() -> Self {
        let server = |letter: char| Origin::new(move |request| permit(letter, request));
        let attempts = Arc::new(Mutex::default());
        let respond = move |request: Request<Incoming>| respond(attempts.clone(), request);
        Self {
            origin: Origin::new(respond).await,
            servers: [('a', server('a').await), ('b', server('b').await)],
        }
    }

    /// Returns their Services, and the Secrets and ConfigMaps of all sections.
    pub(super) fn objects(&self) -> Objects {
        let certificate = Certificate::new(&["a.com", "other.com"]);
        let mut objects = Objects::default()
            .service("origin", &[self.origin.address])
            .with(yaml::secret(CERTIFICATE, &certificate))
            .with(secret("shared", &json!({"secret": SHARED})));
        for (letter, server) in &self.servers {
            let hash = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";
            let pages = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("page-{letter}")},
                "data": {"page": letter},
            });
            objects = objects
                .service(&format!("server-{letter}"), &[server.address])
                .with(pages.to_string())
                .with(secret(
                    &format!("users-{letter}"),
                    &json!({"auth": format!("{letter}:{hash}\n")}),
                ))
                .with(secret(
                    &format!("keys-{letter}"),
                    &json!({format!("client-{letter}"): format!("key-of-{letter}")}),
                ));
        }
        objects
    }
}

/// A response with headers of the request, and the status, the delay and the count of attempts that it asks for.
async fn respond(
    attempts: Arc<Mutex<BTreeMap<String, usize>>>,
    request: Request<Incoming>,
) -> Response<crate::origin::Payload> {
    let value = |name: &str| {
        let value = request.headers().get(name);
        value.map_or("", |it| it.to_str().unwrap_or_default())
    };
    let status = value("x-status").parse().unwrap_or(200_u16);
    let mut response = Response::builder()
        .status(status)
        .header("content-type", "text/plain")
        .header("x-of-request", value("x-section"))
        .header("x-underscore", value("x_user"))
        .header("x-chain", value("x-forwarded-for"));
    let counted = value("x-counted");
    if !counted.is_empty() {
        let mut attempts = attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = attempts.entry(counted.to_owned()).or_insert(0);
        *count += 1;
        response = response.header("x-attempts", *count);
    }
    if let Ok(delay) = value("x-slow").parse() {
        // The backend is slow.
        sleep(Duration::from_millis(delay)).await;
    }
    let body = full("text ".repeat(PAGE / 5 + 1));
    response.body(body).expect("a response")
}

/// The verdict of an authorization server that permits one client.
async fn permit(letter: char, request: Request<Incoming>) -> Response<crate::origin::Payload> {
    let client = request.headers().get("x-who");
    let is_own = client.is_some_and(|it| it.as_bytes() == letter.to_string().as_bytes());
    let status = if is_own { 200_u16 } else { 403 };
    let response = Response::builder().status(status);
    response.body(empty()).expect("a response")
}

/// Open connections by address and client, for requests that are about no connection.
pub(super) type Clients = BTreeMap<(SocketAddr, char), Client>;

/// Where requests are sent.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) address: SocketAddr,
    pub(super) host: &'a str,
    /// A prefix that ends in a slash.
    pub(super) path: &'a str,
    /// A token of each client.
    pub(super) tokens: &'a [(char, String)],
    /// How long to wait for the sign of a timeout.
    pub(super) patience: Duration,
}

/// Returns a token of each client.
pub(super) fn tokens() -> Vec<(char, String)> {
    let issuer = Issuer::new("one", Algorithm::HS256);
    let token = |client: char| issuer.token(&claims(&json!({"aud": client.to_string()})));
    ['a', 'b', 'c'].map(|client| (client, token(client))).into()
}

impl Destination<'_> {
    pub(super) async fn client(&self, client: char) -> Client {
        let stream = connect_from(address(client), self.address).await;
        Client::http1_on(stream.expect("connected")).await
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let path = format!("{}{path}", self.path);
        let mut client = self.client('c').await;
        client.get_with(self.host, &path, headers).await
    }

    /// Reports whether a client passes.
    async fn passes(&self, client: char, clients: &mut Clients) -> bool {
        let (name, key) = (client.to_string(), format!("key-of-{client}"));
        let mut tokens = self.tokens.iter();
        let token = tokens.find(|(of, _)| *of == client).map(|(_, it)| it);
        let cookie = format!("token={}", token.expect("a token"));
        let headers = [
            ("authorization", &*authorization(&name, "secret")),
            ("x-key", &key),
            ("x-who", &name),
            ("cookie", &cookie),
        ];
        let place = (self.address, client);
        let mut client = match clients.remove(&place) {
            Some(client) => client,
            None => self.client(client).await,
        };
        let answer = client.get_with(self.host, self.path, &headers).await;
        assert!([200, 401, 403].contains(&answer.status), "{answer:?}");
        if answer.header("connection") != "close" {
            clients.insert(place, client);
        }
        answer.status == 200
    }

    async fn post(&self, size: usize) -> u16 {
        let mut client = self.client('c').await;
        let request = client.request(Method::POST, self.host, self.path);
        let request = request.body(full("x".repeat(size))).expect("a request");
        client.fetch(request).await.status
    }

    /// Returns the letters of the policies that requests meet, or else a description.
    pub(super) async fn met(&self, effect: Effect, clients: &mut Clients) -> String {
        match effect {
            Effect::PermitsOwn | Effect::DeniesOwn => self.access(effect, clients).await,
            Effect::Credentials(any) => self.credentials(any).await,
            Effect::SignIn => self.sign_in().await,
            Effect::Header(name) => {
                let answer = self.get("", &[]).await;
                // The name of a limit is in quotes, and parameters follow.
                let value = answer.header(name).trim_start_matches('"');
                value.chars().take(1).collect()
            }
            Effect::Encoding => {
                let answer = self.get("", &[("accept-encoding", "gzip, br")]).await;
                let encoding = answer.header("content-encoding");
                encoding.replace("gzip", "a").replace("br", "b")
            }
            Effect::BodySize => letters((self.post(12).await == 413, self.post(20).await == 413)),
            Effect::Page => {
                let answer = self.get("", &[("x-status", "418")]).await;
                assert_eq!(answer.status, 418);
                answer
                    .text()
                    .trim_start_matches("text ")
                    .chars()
                    .take(1)
                    .collect()
            }
            Effect::Path => {
                let status = self.get("x%2fy", &[]).await.status;
                exclusive((status == 400, status == 307))
            }
            Effect::Underscores => {
                let answer = self.get("", &[("x_user", "1")]).await;
                let is_dropped = answer.status == 200 && answer.header("x-underscore").is_empty();
                exclusive((answer.status == 400, is_dropped))
            }
            Effect::Requests => {
                let mut client = self.client('c').await;
                let mut ends = async || {
                    let answer = client.get(self.host, self.path).await;
                    answer.header("connection") == "close"
                };
                match ends().await {
                    true => "a".to_owned(),
                    false => exclusive((false, ends().await)),
                }
            }
            Effect::Deadline(short) => {
                let delay = self.patience.as_millis().to_string();
                match self.get("", &[("x-slow", &delay)]).await.status {
                    504 => short.to_string(),
                    status => description(status == 200, status),
                }
            }
            Effect::Attempts => {
                let id = NUMBER.fetch_add(1, Relaxed).to_string();
                let headers = [("x-status", "418"), ("x-counted", &*id)];
                match self.get("", &headers).await.header("x-attempts") {
                    "2" => "a".to_owned(),
                    "3" => "b".to_owned(),
                    attempts => description(attempts == "1", attempts),
                }
            }
            Effect::ClientAddress => {
                let headers = [("x-address-a", "192.0.2.1"), ("x-address-b", "192.0.2.2")];
                let answer = self.get("", &headers).await;
                let chain = answer.header("x-chain");
                match chain.split_once(", 127.0.3.") {
                    Some(("192.0.2.1", _)) => "a".to_owned(),
                    Some(("192.0.2.2", _)) => "b".to_owned(),
                    _ => description(chain.starts_with("127.0.3."), chain),
                }
            }
            Effect::Tls => connections::tls(self).await,
            Effect::Timeouts => connections::timeouts(self).await,
            Effect::Streams => connections::streams(self).await,
            Effect::Alternatives => connections::alternatives(self).await,
            Effect::ProxyHeader => connections::proxy_header(self).await,
        }
    }

    /// Returns `one` and the letter if one of two credentials is enough, `both` if both are needed, and `basic` if nothing
    /// else than a password counts.
    async fn credentials(&self, any: char) -> String {
        let password = authorization("a", "secret");
        let (password, key) = (("authorization", &*password), ("x-key", "key-of-a"));
        let mut passed = Vec::new();
        let mut client = self.client('c').await;
        for headers in [&[][..], &[password], &[key], &[password, key]] {
            let answer = client.get_with(self.host, self.path, headers).await;
            assert!([200, 401].contains(&answer.status), "{answer:?}");
            passed.push(answer.status == 200);
        }
        match passed[..] {
            [false, true, true, true] => format!("one {any}"),
            [false, false, false, true] => "both".to_owned(),
            [false, true, false, true] => "basic".to_owned(),
            _ => format!("{passed:?}"),
        }
    }

    async fn sign_in(&self) -> String {
        let answer = async {
            loop {
                let answer = self.get("", &[("accept", "text/html")]).await;
                if answer.status != 503 {
                    return answer;
                }
                // Nothing says when the endpoints of the provider have been fetched.
                sleep(Duration::from_millis(10)).await;
            }
        };
        let answer = timeout(TEST_TIMEOUT, answer).await;
        let answer = answer.expect("the provider is known");
        let location = answer.header("location");
        let is_client = |letter: &&str| location.contains(&format!("client_id=client-{letter}&"));
        match ["a", "b"].into_iter().find(is_client) {
            Some(letter) => letter.to_owned(),
            None => description(answer.status == 200, answer.status),
        }
    }

    async fn access(&self, effect: Effect, clients: &mut Clients) -> String {
        let mut passed = String::new();
        for client in ['a', 'b', 'c'] {
            if self.passes(client, clients).await {
                passed.push(client);
            }
        }
        let met = match (effect, &*passed) {
            (_, "abc") => "",
            (Effect::PermitsOwn, "a") | (Effect::DeniesOwn, "bc") => "a",
            (Effect::PermitsOwn, "b") | (Effect::DeniesOwn, "ac") => "b",
            (Effect::DeniesOwn, "c") => "ab",
            _ => return format!("{passed} pass"),
        };
        met.to_owned()
    }
}

/// `a` refuses both sizes, and `b` the larger one.
fn letters((small, large): (bool, bool)) -> String {
    match (small, large) {
        (true, true) => "a",
        (false, true) => "b",
        (false, false) => "",
        (true, false) => "the smaller one alone",
    }
    .to_owned()
}

/// Nothing if no policy has an effect, or else what a test fails with.
pub(super) fn description(is_plain: bool, found: impl std::fmt::Display) -> String {
    match is_plain {
        true => String::new(),
        false => format!("{found}"),
    }
}

pub(super) fn exclusive((a, b): (bool, bool)) -> String {
    let letters = [('a', a), ('b', b)].into_iter();
    letters
        .filter(|(_, is_met)| *is_met)
        .map(|(it, _)| it)
        .collect()
}
