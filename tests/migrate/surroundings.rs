//! What a migrated application needs to be served: backends for its Services, Secrets with certificates, and the Gateway of
//! `--parent`. Found in the output, so that a Service that it does not name gets no request.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderName, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portcullis::migrate::Settings;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::harness::tls::Certificate;
use crate::origin::{Origin, Payload, full};

/// Namespace and name.
type Key = (String, String);
/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 22;
/// The cookie that authorization servers accept.
const SESSION: &str = "session=alice";
/// Begins the names of request headers that say how a backend answers: `answer-status`, `answer-location`.
const ANSWER: &str = "answer-";

/// A Service that an output names.
#[derive(Debug, Default)]
struct Service {
    /// Whether it is an authorization server.
    authorizes: bool,
    /// Names of its ports.
    ports: BTreeMap<u16, String>,
}

/// What surrounds an application while it is served. The backends end when it is dropped.
pub(crate) struct Surroundings {
    /// Objects, each in JSON.
    pub(crate) objects: Vec<Value>,
    _backends: Vec<Origin>,
}

impl Surroundings {
    /// Starts what the output of a migration needs besides the objects of its input.
    pub(crate) async fn of<'a>(
        output: impl Iterator<Item = &'a Value>,
        input: &[Value],
        settings: &Settings,
        certificate: &Certificate,
    ) -> Self {
        let (mut services, mut secrets) = (BTreeMap::new(), BTreeSet::new());
        for object in output {
            let namespace = namespace(object);
            find(object, namespace, false, &mut services, &mut secrets);
        }
        let (mut objects, mut backends) = (Vec::new(), Vec::new());
        for object in input {
            match object["kind"].as_str() {
                Some("Service") => name_ports(object, &mut services),
                Some("Secret" | "ConfigMap") => objects.push(object.clone()),
                _ => {}
            }
        }
        if settings.gateway_class.is_none() {
            objects.push(gateway(settings));
        }
        let acceptor = acceptor(certificate);
        for (key, service) in &services {
            let backend = backend(&key.1, service.authorizes, acceptor.clone()).await;
            objects.extend(service_objects(key, service, backend.address));
            backends.push(backend);
        }
        objects.extend(secrets.iter().map(|key| secret(key, certificate)));
        Self {
            objects,
            _backends: backends,
        }
    }
}

fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"]
        .as_str()
        .unwrap_or("default")
}

/// Finds the Services and certificates that a part of an object names.
fn find(
    value: &Value,
    namespace: &str,
    authorizes: bool,
    services: &mut BTreeMap<Key, Service>,
    secrets: &mut BTreeSet<Key>,
) {
    let key = |reference: &Value| {
        let namespace = reference["namespace"].as_str().unwrap_or(namespace);
        let name = reference["name"].as_str().unwrap_or_default();
        (namespace.to_owned(), name.to_owned())
    };
    match value {
        Value::Array(items) => {
            for item in items {
                find(item, namespace, authorizes, services, secrets);
            }
        }
        Value::Object(fields) => {
            for (field, value) in fields {
                let one = std::slice::from_ref(value);
                let references = value.as_array().map_or(one, Vec::as_slice);
                match field.as_str() {
                    "backendRef" | "backendRefs" => {
                        for reference in references {
                            let service = services.entry(key(reference)).or_default();
                            service.authorizes |= authorizes;
                            let port = reference["port"].as_u64().unwrap_or(80);
                            let port = u16::try_from(port).unwrap();
                            service.ports.entry(port).or_insert(format!("p{port}"));
                        }
                    }
                    "certificateRefs" => secrets.extend(references.iter().map(&key)),
                    _ => {}
                }
                let authorizes = authorizes || field == "external";
                find(value, namespace, authorizes, services, secrets);
            }
        }
        _ => {}
    }
}

/// Gives the ports of a Service the names that the input has.
fn name_ports(object: &Value, services: &mut BTreeMap<Key, Service>) {
    let name = object["metadata"]["name"].as_str().unwrap();
    let key = (namespace(object).to_owned(), name.to_owned());
    let Some(service) = services.get_mut(&key) else {
        return;
    };
    for port in object["spec"]["ports"].as_array().into_iter().flatten() {
        if let (Some(number), Some(name)) = (port["port"].as_u64(), port["name"].as_str()) {
            let number = u16::try_from(number).unwrap();
            service.ports.insert(number, name.to_owned());
        }
    }
}

fn service_objects((namespace, name): &Key, service: &Service, address: SocketAddr) -> [Value; 2] {
    let ports = service.ports.iter();
    let ports = ports.map(|(number, name)| json!({"name": name, "port": number}));
    let targets = service.ports.values();
    let targets = targets.map(|name| json!({"name": name, "port": address.port()}));
    let labels = json!({"kubernetes.io/service-name": name});
    [
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"ports": ports.collect::<Vec<_>>()},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "ports": targets.collect::<Vec<_>>(),
            "endpoints": [{"addresses": [address.ip().to_string()]}],
        }),
    ]
}

fn secret((namespace, name): &Key, certificate: &Certificate) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {"tls.crt": certificate.pem, "tls.key": certificate.key},
    })
}

/// The Gateway that exists already where none is written.
fn gateway(settings: &Settings) -> Value {
    let all = json!({"namespaces": {"from": "All"}});
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": settings.gateway.name, "namespace": settings.gateway.namespace},
        "spec": {
            "gatewayClassName": "portcullis", "allowedListeners": all,
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": all}],
        },
    })
}

fn acceptor(certificate: &Certificate) -> TlsAcceptor {
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).unwrap();
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der.clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Starts a backend that speaks what the connection begins with: TLS or plain text, HTTP/1.1 or HTTP/2.
async fn backend(name: &str, authorizes: bool, acceptor: TlsAcceptor) -> Origin {
    let name: Arc<str> = name.into();
    Origin::raw(move |stream: TcpStream| {
        let (name, acceptor) = (name.clone(), acceptor.clone());
        async move {
            let mut first = [0; 3];
            // Three bytes distinguish `PRI` from every method in the tables.
            let _ = stream.peek(&mut first).await;
            if first[0] != HANDSHAKE {
                return serve(stream, &first == b"PRI", name, authorizes).await;
            }
            if let Ok(stream) = acceptor.accept(stream).await {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                serve(stream, is_http2, name, authorizes).await;
            }
        }
    })
    .await
}

async fn serve<S>(stream: S, is_http2: bool, name: Arc<str>, authorizes: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let name = name.clone();
        async move { Ok::<_, Infallible>(answer(&name, authorizes, request).await) }
    });
    let io = TokioIo::new(stream);
    // Connection errors are ignored here: tables are of responses.
    if is_http2 {
        let server = http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(io, service).await;
    } else {
        let server = http1::Builder::new();
        let _ = server.serve_connection(io, service).await;
    }
}

/// Answers with what the backend gets, and as the `answer-` headers say.
async fn answer(name: &str, authorizes: bool, request: Request<Incoming>) -> Response<Payload> {
    let (head, body) = request.into_parts();
    // Ignored: a client may break off a body that is too large.
    let _ = body.collect().await;
    let mut headers = serde_json::Map::new();
    let mut response = Response::builder();
    for (name, value) in &head.headers {
        let value = value.to_str().unwrap_or_default();
        match name.as_str().strip_prefix(ANSWER) {
            Some("status") => response = response.status(value),
            Some(own) => response = response.header(own, value),
            None => {
                headers.insert(name.to_string(), value.into());
            }
        }
    }
    // Pages for errors have the status that they are asked for.
    if let Some(code) = headers.get("x-code").and_then(Value::as_str) {
        response = response.status(code);
    }
    if authorizes {
        let cookie = head.headers.get(http::header::COOKIE);
        let is_known = cookie.is_some_and(|cookie| cookie.as_bytes() == SESSION.as_bytes());
        let status = if is_known { 200 } else { 401 };
        let user = HeaderName::from_static("x-auth-request-user");
        response = response.status(status).header(user, "alice");
    }
    if let Some(authority) = head.uri.authority() {
        headers.insert("host".to_owned(), authority.as_str().into());
    }
    let path = head.uri.path_and_query().map(|path| path.as_str());
    let received = match authorizes {
        // Its response may become that to the client.
        true => String::new(),
        false => json!({"service": name, "path": path, "headers": headers}).to_string(),
    };
    response.body(full(received)).unwrap()
}
