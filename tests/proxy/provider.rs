//! An OpenID provider in this process, and policies that send browsers there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use jsonwebtoken::Algorithm;
use portcullis::settings::Settings;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::access_policy::{access, before, gateway};
use crate::client::Client;
use crate::harness::TEST_TIMEOUT;
use crate::harness::dns::NameServer;
use crate::issuer::{Issuer, now};
use crate::origin::{Origin, Payload, empty, full};
use crate::scene::{Objects, Scene};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

pub(crate) const CLIENT: &str = "shop";
pub(crate) const CLIENT_SECRET: &str = "client-secret-7f3a";
/// The subject of all ID tokens.
pub(crate) const SUBJECT: &str = "alice";

/// What a provider does, and what it was asked.
pub(crate) struct State {
    /// Signs ID tokens.
    pub(crate) signer: Issuer,
    /// The keys that it publishes.
    pub(crate) keys: Vec<Value>,
    /// Changes of the claims of ID tokens; null removes one.
    pub(crate) claims: Value,
    /// Changes of the responses of its token endpoint; null removes a field.
    pub(crate) tokens: Value,
    /// What its token endpoint responds instead.
    pub(crate) failure: Option<(u16, &'static str)>,
    /// What takes the place of the ID token.
    pub(crate) forged: Option<String>,
    /// For how long its token endpoint thinks.
    pub(crate) delay: Duration,
    /// Its token endpoint responds as often as this permits.
    pub(crate) gate: Option<Arc<Semaphore>>,
    /// The forms that its token endpoint has got.
    pub(crate) asked: Vec<BTreeMap<String, String>>,
    /// Whether it announces that its responses have `iss`.
    pub(crate) sends_issuer: bool,
    /// Whether it issues tokens for a code without its verifier.
    pub(crate) ignores_verifier: bool,
    /// Its URL, if it is not that of its origin.
    issuer: Option<String>,
    codes: BTreeMap<String, BTreeMap<String, String>>,
    refresh_tokens: BTreeMap<String, String>,
    serial: usize,
}

/// A provider.
pub(crate) struct Provider {
    pub(crate) origin: Origin,
    state: Arc<Mutex<State>>,
    tls: Option<Tls>,
}

/// TLS in front of a provider, and its name.
struct Tls {
    origin: TlsOrigin,
    authority: Authority,
    names: NameServer,
}

/// The name of a provider with TLS.
const HOST: &str = "login.example.com";

impl Provider {
    pub(crate) async fn start() -> Self {
        let signer = Issuer::new("one", Algorithm::ES256);
        let state = Arc::new(Mutex::new(State {
            keys: vec![signer.jwk()],
            signer,
            claims: json!({}),
            tokens: json!({}),
            failure: None,
            forged: None,
            delay: Duration::ZERO,
            gate: None,
            asked: Vec::new(),
            sends_issuer: false,
            ignores_verifier: false,
            issuer: None,
            codes: BTreeMap::new(),
            refresh_tokens: BTreeMap::new(),
            serial: 0,
        }));
        let shared = state.clone();
        let origin = Origin::new(move |request| {
            let state = shared.clone();
            async move { respond(&state, request).await }
        });
        Self {
            origin: origin.await,
            state,
            tls: None,
        }
    }

    /// One that is known by a name, and that a certificate proves.
    pub(crate) async fn with_tls() -> Self {
        let (provider, authority) = (Self::start().await, Authority::new());
        let certificate = authority.issue(&[HOST]);
        let address = provider.origin.address;
        let origin = TlsOrigin::relaying(&certificate, Asks::default(), address).await;
        let names = NameServer::start().await;
        names.set(HOST, &["127.0.0.1"], 60);
        provider.state().issuer = Some(format!("https://{HOST}:{}", origin.address.port()));
        Self {
            tls: Some(Tls {
                origin,
                authority,
                names,
            }),
            ..provider
        }
    }

    /// Serves a policy that trusts the authority of its certificate, or another one.
    pub(crate) fn behind_tls(&self, origin: &Origin, trusts: bool) -> Scene {
        let tls = self.tls.as_ref().expect("TLS");
        let other = Authority::new();
        let authority = if trusts { &tls.authority } else { &other };
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca"},
            "data": {"ca.crt": authority.pem},
        });
        let objects = self.objects(origin, &json!({"caConfigMapRef": {"name": "ca"}}));
        let server = tls.names.address;
        Scene::with(&objects.with(map.to_string()), |settings| {
            permitted(settings);
            settings.dns_servers = vec![server];
        })
    }

    /// Checks that none of this was sent in plain text.
    pub(crate) fn assert_encrypted(&self, secret: &str) {
        let tls = self.tls.as_ref().expect("TLS");
        tls.origin.assert_encrypted(secret);
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Undoes changes of its behaviour.
    pub(crate) fn behave(&self) {
        let mut state = self.state();
        (state.claims, state.tokens) = (json!({}), json!({}));
        (state.failure, state.forged) = (None, None);
    }

    pub(crate) fn issuer(&self) -> String {
        let issuer = self.state().issuer.clone();
        issuer.unwrap_or_else(|| format!("http://{}", self.origin.address))
    }

    /// Returns how often a grant was asked for.
    pub(crate) fn asked(&self, grant: &str) -> usize {
        let state = self.state();
        let asked = state.asked.iter();
        asked.filter(|it| it["grant_type"] == grant).count()
    }

    /// A section with changes.
    pub(crate) fn section(&self, changes: &Value) -> Value {
        let mut oidc = json!({
            "issuer": self.issuer(), "clientID": CLIENT, "clientSecretRef": {"name": "client"},
            "claimToHeaders": [{"claim": "sub", "header": "X-User"}],
        });
        for (name, value) in changes.as_object().expect("valid") {
            oidc[name] = value.clone();
        }
        oidc
    }

    /// Objects with a policy on the Gateway.
    pub(crate) fn objects(&self, origin: &Origin, changes: &Value) -> Objects {
        let policy = access("a", &gateway(), &json!({"oidc": self.section(changes)}));
        before(origin, &[policy, client_secret()])
    }

    /// Serves a policy on the Gateway, once the provider is discovered.
    pub(crate) async fn scene(&self, origin: &Origin, changes: &Value) -> Scene {
        self.serve(&self.objects(origin, changes)).await
    }

    /// Serves these objects, once the provider is discovered.
    pub(crate) async fn serve(&self, objects: &Objects) -> Scene {
        let scene = Scene::with(objects, permitted);
        until_discovered(&scene, ("a.com", "/")).await;
        scene
    }

    /// Signs a user in: returns the path and the query that the browser is sent to.
    pub(crate) fn authorize(&self, location: &str) -> String {
        let (parameters, callback) = self.approve(location);
        format!("{callback}?{}", form(&parameters))
    }

    /// Returns the parameters of the response to an authorization request, and where they are sent.
    pub(crate) fn approve(&self, location: &str) -> (Vec<(String, String)>, String) {
        let (endpoint, query) = location.split_once('?').expect("a query");
        assert_eq!(endpoint, format!("{}/auth", self.issuer()));
        let asked: BTreeMap<_, _> = parse(query.as_bytes());
        assert_eq!(asked["response_type"], "code");
        assert_eq!(asked["client_id"], CLIENT);
        assert_eq!(asked["code_challenge_method"], "S256");
        let redirect_uri = asked["redirect_uri"].clone();
        let path = redirect_uri.splitn(4, '/').nth(3).expect("a path");
        let path = format!("/{path}");
        let mut parameters = vec![("state".to_owned(), asked["state"].clone())];
        let issuer = self.issuer();
        let mut state = self.state();
        state.serial += 1;
        let code = format!("code-{}", state.serial);
        parameters.push(("code".to_owned(), code.clone()));
        if state.sends_issuer {
            parameters.push(("iss".to_owned(), issuer));
        }
        state.codes.insert(code, asked);
        (parameters, path)
    }
}

pub(crate) fn client_secret() -> String {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "client"},
        "stringData": {"client-secret": CLIENT_SECRET},
    });
    secret.to_string()
}

/// Permits addresses on loopback.
pub(crate) fn permitted(settings: &mut Settings) {
    settings.allowed_jwks_addresses = vec!["127.0.0.0/8".parse().expect("a network")];
}

/// Waits until browsers that ask for a path of a host are sent to the provider.
pub(crate) async fn until_discovered(scene: &Scene, (host, path): (&str, &str)) {
    let discovered = async {
        loop {
            let mut client = Client::http1(scene.at(80)).await;
            let page = [("accept", "text/html")];
            if client.get_with(host, path, &page).await.status == 302 {
                break;
            }
            // No notification tells the change.
            sleep(Duration::from_millis(5)).await;
        }
    };
    let discovered = timeout(TEST_TIMEOUT, discovered).await;
    assert!(discovered.is_ok(), "the provider is discovered in time");
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn parse(text: &[u8]) -> BTreeMap<String, String> {
    form_urlencoded::parse(text).into_owned().collect()
}

pub(crate) fn form(parameters: &[(String, String)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(parameters)
        .finish()
}

async fn respond(state: &Mutex<State>, request: Request<Incoming>) -> Response<Payload> {
    let host = request.headers()["host"].to_str().expect("text").to_owned();
    let issuer = lock(state).issuer.clone();
    let issuer = issuer.unwrap_or_else(|| format!("http://{host}"));
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("whole").to_bytes();
    let answer = match head.uri.path() {
        "/.well-known/openid-configuration" => json!({
            "issuer": issuer, "authorization_endpoint": format!("{issuer}/auth"),
            "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/keys"),
            "end_session_endpoint": format!("{issuer}/logout"),
            "authorization_response_iss_parameter_supported": lock(state).sends_issuer,
        }),
        "/keys" => json!({"keys": lock(state).keys}),
        "/token" => {
            let (delay, gate) = {
                let state = lock(state);
                (state.delay, state.gate.clone())
            };
            // As the test wants it.
            sleep(delay).await;
            if let Some(gate) = gate {
                gate.acquire().await.expect("open").forget();
            }
            let authorization = head.headers.get("authorization");
            let authorization = authorization
                .and_then(|it| it.to_str().ok())
                .unwrap_or_default();
            let (status, text) = lock(state).token(&issuer, authorization, &body);
            let response = Response::builder()
                .status(status)
                .header("location", "/token");
            return response.body(full(Bytes::from(text))).expect("a response");
        }
        _ => {
            return Response::builder()
                .status(404)
                .body(empty())
                .expect("a response");
        }
    };
    Response::new(full(Bytes::from(answer.to_string())))
}

impl State {
    /// Responds to a request for tokens.
    fn token(&mut self, issuer: &str, authorization: &str, body: &[u8]) -> (u16, String) {
        let asked = parse(body);
        self.asked.push(asked.clone());
        if let Some((status, text)) = self.failure {
            return (status, text.to_owned());
        }
        let refused = |error: &str| (400, json!({"error": error}).to_string());
        let expected = STANDARD.encode(format!("{CLIENT}:{CLIENT_SECRET}"));
        if authorization != format!("Basic {expected}") {
            return refused("invalid_client");
        }
        let nonce = match asked["grant_type"].as_str() {
            "authorization_code" => {
                let Some(code) = self.codes.remove(&asked["code"]) else {
                    return refused("invalid_grant");
                };
                let challenge = digest(&SHA256, asked["code_verifier"].as_bytes());
                let is_verified = URL_SAFE_NO_PAD.encode(challenge) == code["code_challenge"];
                let is_it = asked["redirect_uri"] == code["redirect_uri"];
                if !is_it || !(is_verified || self.ignores_verifier) {
                    return refused("invalid_grant");
                }
                code["nonce"].clone()
            }
            // Each is valid once.
            _ => match self.refresh_tokens.remove(&asked["refresh_token"]) {
                Some(nonce) => nonce,
                None => return refused("invalid_grant"),
            },
        };
        self.serial += 1;
        let refresh_token = format!("refresh-{}", self.serial);
        self.refresh_tokens
            .insert(refresh_token.clone(), nonce.clone());
        let mut claims = json!({
            "iss": issuer, "aud": CLIENT, "sub": SUBJECT, "nonce": nonce, "exp": now() + 300, "iat": now(),
        });
        change(&mut claims, &self.claims);
        let id_token = self
            .forged
            .clone()
            .unwrap_or_else(|| self.signer.token(&claims));
        let mut tokens = json!({
            "access_token": format!("access-{}", self.serial), "token_type": "Bearer", "expires_in": 300,
            "refresh_token": refresh_token, "id_token": id_token,
        });
        change(&mut tokens, &self.tokens);
        (200, tokens.to_string())
    }
}

/// Changes members of an object; null removes one.
pub(crate) fn change(value: &mut Value, changes: &Value) {
    for (name, new) in changes.as_object().expect("valid") {
        value[name] = new.clone();
    }
    let object = value.as_object_mut().expect("valid");
    object.retain(|_, value| !value.is_null());
}
