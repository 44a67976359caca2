//! A controller's stream with an API server, and pods that connect to it.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, StatusCode};
use portcullis::api::Kind;
use portcullis::ir::ObjectRef;
use portcullis::key_requests::KeyRequests;
use portcullis::provider::Load;
use portcullis::snapshot::Snapshot;
use portcullis::status::lease::Leadership;
use portcullis::stream::hub::Reports;
use portcullis::stream::{self, Inputs, Outputs, Stream};
use portcullis::telemetry::metrics::SessionStats;
use portcullis::translate::Options;
use portcullis::wire;
use portcullis::wire::POSITION;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::api_server::Api;

/// Timeout of any wait on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);
const HOST: &str = "controller.example";
const NAMESPACE: &str = "portcullis-system";

/// Runs a test on one thread.
pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        timeout(4 * TEST_TIMEOUT, test)
            .await
            .expect("the test takes too long");
    });
}

/// A controller and its inputs.
pub(crate) struct Controller {
    pub(crate) api: Api,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) stats: Arc<SessionStats>,
    pub(crate) outputs: Arc<Outputs>,
    pub(crate) reports: watch::Receiver<Reports>,
    pub(crate) key_requests: Arc<KeyRequests>,
    pub(crate) address: SocketAddr,
    loads: watch::Sender<Arc<Load>>,
    snapshot: Snapshot,
}

impl Controller {
    /// Starts a leader with the Gateways `infra/edge` and `infra/other`, each with its own
    /// certificate, and a Deployment with the pod `edge-1` of the first.
    pub(crate) async fn start() -> Self {
        let api = Api::start();
        let config = kube::Config::new(api.url().parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (loads, fed) = watch::channel(Arc::default());
        let (leadership, led) = watch::channel(Leadership::default());
        let stream = Stream::new(Options::default());
        let mut controller = Self {
            address: listener.local_addr().unwrap(),
            api,
            leadership,
            stats: Arc::default(),
            outputs: Arc::default(),
            reports: stream.reports(),
            key_requests: stream.key_requests(),
            loads,
            snapshot: Snapshot::default(),
        };
        let inputs = Inputs {
            loads: fed,
            leadership: led,
            namespace: NAMESPACE.to_owned(),
            host: HOST.to_owned(),
        };
        let (outputs, stats) = (controller.outputs.clone(), controller.stats.clone());
        let leader = client.clone();
        spawn_local(async move { stream::trust::maintain(&leader, NAMESPACE).await });
        spawn_local(async move { stream.run(client, listener, inputs, &outputs, stats).await });
        controller.add_cluster();
        controller.add_workload("edge");
        controller.bundle().await;
        controller
    }

    fn add_cluster(&mut self) {
        let class = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "portcullis"},
            "spec": {"controllerName": "portcullis.dev/gateway-controller"},
        });
        let mut objects = vec![class];
        for name in ["edge", "other"] {
            objects.push(gateway(name));
            objects.push(json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": format!("{name}-key"), "namespace": "infra"},
                "data": {"tls.key": "c2VjcmV0"},
            }));
        }
        self.put(objects);
    }

    /// Creates the ServiceAccount, a Deployment with its ReplicaSet and pod, and a DaemonSet with
    /// its pod, as the controller does for a Gateway.
    pub(crate) fn add_workload(&self, gateway: &str) {
        let name = format!("{gateway}-portcullis");
        let owner = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "controller": true,
            "name": gateway, "uid": uid(gateway),
        });
        for kind in ["ServiceAccount", "Deployment", "DaemonSet"] {
            let mut object = object(kind, &name, &owner);
            object["metadata"]["managedFields"] =
                json!([{"manager": "portcullis.dev/controller", "operation": "Apply"}]);
            self.api.put(object);
        }
        let controlled = |kind: &str, owner: &str| {
            json!({
                "apiVersion": "apps/v1", "kind": kind, "name": owner, "controller": true,
                "uid": uid(&format!("{kind}-{owner}")),
            })
        };
        let set = format!("{name}-1");
        let pods = [
            object("ReplicaSet", &set, &controlled("Deployment", &name)),
            object(
                "Pod",
                &format!("{gateway}-1"),
                &controlled("ReplicaSet", &set),
            ),
            object(
                "Pod",
                &format!("{gateway}-2"),
                &controlled("DaemonSet", &name),
            ),
        ];
        for pod in pods {
            self.api.put(pod);
        }
    }

    /// Publishes a snapshot with these additional objects.
    pub(crate) fn put(&mut self, objects: impl IntoIterator<Item = Value>) {
        for object in objects {
            let text = |field: &str| object[field].as_str().unwrap().to_owned();
            let kind = Kind::find_streamed(&text("apiVersion"), &text("kind")).unwrap();
            self.snapshot.insert(kind.decode(&object).unwrap());
        }
        self.publish();
    }

    /// Publishes a snapshot without this object.
    pub(crate) fn remove(&mut self, kind: &str, name: &str) {
        let name = ObjectRef::gateway_api(kind, "infra", name);
        assert!(self.snapshot.remove(&name));
        self.publish();
    }

    fn publish(&self) {
        self.loads.send_replace(Arc::new(Load {
            snapshot: Arc::new(self.snapshot.clone()),
            ..Load::default()
        }));
    }

    /// Waits for the CA bundle.
    pub(crate) async fn bundle(&self) -> Arc<str> {
        let mut bundle = self.outputs.trust.bundle.subscribe();
        let mut tls = self.outputs.trust.tls.subscribe();
        timeout(TEST_TIMEOUT, tls.wait_for(Option::is_some))
            .await
            .unwrap()
            .unwrap();
        bundle.borrow_and_update().clone().unwrap()
    }

    /// Registers a token of a pod with the API server.
    pub(crate) fn accept(&self, token: &str, account: &str, pod: &str) {
        let user = json!({
            "username": format!("system:serviceaccount:infra:{account}"),
            "uid": uid(&format!("ServiceAccount-{account}")),
            "extra": {
                "authentication.kubernetes.io/pod-name": [pod],
                "authentication.kubernetes.io/pod-uid": [uid(&format!("Pod-{pod}"))],
            },
        });
        let status = json!({"authenticated": true, "audiences": [wire::AUDIENCE], "user": user});
        self.api.review(token, status);
    }

    /// Returns the token of a pod of the Gateway `infra/edge`.
    pub(crate) fn token(&self, pod: &str) -> String {
        let token = token(&json!({"sub": pod}));
        self.accept(&token, "edge-portcullis", pod);
        token
    }

    /// Connects as the pod `edge-1` with an optional position.
    pub(crate) async fn pod(&self, position: Option<&str>) -> Pod {
        self.pod_named("edge-1", position).await
    }

    /// Connects as a pod of the Gateway `infra/edge` with an optional position.
    pub(crate) async fn pod_named(&self, pod: &str, position: Option<&str>) -> Pod {
        let request = self.request("edge", &self.token(pod), position);
        let (status, pod) = self.send(request).await;
        assert_eq!(status, StatusCode::OK, "{}", pod.rest().await);
        pod
    }

    pub(crate) fn request(
        &self,
        gateway: &str,
        token: &str,
        position: Option<&str>,
    ) -> Request<()> {
        let path = wire::path("infra", gateway);
        let mut request = Request::post(format!("https://{HOST}{path}"))
            .header("authorization", format!("Bearer {token}"));
        if let Some(position) = position {
            request = request.header(POSITION, position);
        }
        request.body(()).unwrap()
    }

    /// Sends a request on a new connection that trusts the current CA bundle.
    pub(crate) async fn send(&self, request: Request<()>) -> (StatusCode, Pod) {
        let bundle = self.bundle().await;
        self.try_send(&bundle, request).await.unwrap()
    }

    /// Connects without a request.
    pub(crate) async fn connect(&self, bundle: &str) -> std::io::Result<SendRequest<Bytes>> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(HOST).unwrap();
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        spawn_local(connection);
        Ok(sender)
    }

    pub(crate) async fn try_send(
        &self,
        bundle: &str,
        request: Request<()>,
    ) -> std::io::Result<(StatusCode, Pod)> {
        let mut sender = self.connect(bundle).await?;
        let (response, requests) = sender.send_request(request, false).unwrap();
        let response = timeout(TEST_TIMEOUT, response).await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        let pod = Pod {
            headers: head.headers,
            reports: requests,
            body,
            buffer: BytesMut::new(),
        };
        Ok((head.status, pod))
    }

    /// Waits until the reports match.
    pub(crate) async fn wait_for_reports(&mut self, wanted: impl Fn(&Reports) -> bool) {
        let seen = self.reports.wait_for(|reports| wanted(reports));
        timeout(TEST_TIMEOUT, seen).await.unwrap().unwrap();
    }
}

/// A pod that is connected or was rejected.
pub(crate) struct Pod {
    pub(crate) headers: HeaderMap,
    reports: SendStream<Bytes>,
    body: RecvStream,
    buffer: BytesMut,
}

impl Pod {
    /// Returns the next line; `None` at the end of the stream.
    pub(crate) async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let data = timeout(TEST_TIMEOUT, self.body.data()).await.unwrap();
            let data = data?.ok()?;
            self.body
                .flow_control()
                .release_capacity(data.len())
                .unwrap();
            self.buffer.extend_from_slice(&data);
        }
    }

    /// Returns the lines up to and including the next commit.
    pub(crate) async fn change(&mut self) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().await.expect("the stream goes on");
            lines.push(line);
            if lines.last().unwrap().get("commit").is_some() {
                return lines;
            }
        }
    }

    /// Returns the revision of the next commit.
    pub(crate) async fn commit(&mut self) -> u64 {
        let lines = self.change().await;
        lines.last().unwrap()["commit"]["revision"]
            .as_u64()
            .unwrap()
    }

    /// Sends a line.
    pub(crate) fn write_text(&mut self, line: &Value) {
        self.write_all([line.clone()]);
    }

    /// Sends lines at once.
    pub(crate) fn write_all(&mut self, lines: impl IntoIterator<Item = Value>) {
        let lines: String = lines.into_iter().map(|line| format!("{line}\n")).collect();
        self.reports.send_data(lines.into(), false).unwrap();
    }

    /// Returns the rest of the response as text.
    pub(crate) async fn rest(mut self) -> String {
        let mut text = Vec::from(&self.buffer[..]);
        while let Some(Ok(data)) = self.body.data().await {
            text.extend_from_slice(&data);
        }
        String::from_utf8(text).unwrap()
    }
}

/// Summary of a change: `put Kind name`, `delete Kind name`, or the key of the line.
pub(crate) fn summary(lines: &[Value]) -> Vec<String> {
    let one = |line: &Value| {
        let (key, value) = line.as_object().unwrap().iter().next().unwrap();
        match key.as_str() {
            "put" => {
                let (kind, name) = (&value["kind"], &value["metadata"]["name"]);
                format!("put {} {}", kind.as_str().unwrap(), name.as_str().unwrap())
            }
            "delete" => {
                let (kind, name) = (&value["kind"], &value["name"]);
                format!(
                    "delete {} {}",
                    kind.as_str().unwrap(),
                    name.as_str().unwrap()
                )
            }
            other => other.to_owned(),
        }
    };
    lines.iter().map(one).collect()
}

/// Returns a well-formed ServiceAccount token for the stream that expires in an hour; `claims`
/// override its claims.
pub(crate) fn token(claims: &Value) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut payload = BTreeMap::from([
        ("aud".to_owned(), json!([wire::AUDIENCE])),
        ("exp".to_owned(), json!(now.unwrap().as_secs() + 3600)),
    ]);
    for (key, value) in claims.as_object().unwrap() {
        payload.insert(key.clone(), value.clone());
    }
    let payload = serde_json::to_string(&payload).unwrap();
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
}

/// Returns the Gateway `infra/NAME` with its own certificate.
pub(crate) fn gateway(name: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": "infra", "uid": uid(name)},
        "spec": {"gatewayClassName": "portcullis", "listeners": [{
            "name": "https", "port": 443, "protocol": "HTTPS",
            "tls": {"certificateRefs": [{"name": format!("{name}-key")}]},
        }]},
    })
}

/// Returns a route of a Gateway.
pub(crate) fn route(name: &str, gateway: &str, hostname: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "infra"},
        "spec": {"parentRefs": [{"name": gateway}], "hostnames": [hostname], "rules": [{}]},
    })
}

pub(crate) fn object(kind: &str, name: &str, owner: &Value) -> Value {
    let version = match kind {
        "Pod" | "ServiceAccount" => "v1",
        _ => "apps/v1",
    };
    json!({
        "apiVersion": version, "kind": kind,
        "metadata": {
            "name": name, "namespace": "infra", "uid": uid(&format!("{kind}-{name}")),
            "ownerReferences": [owner],
        },
    })
}

pub(crate) fn uid(name: &str) -> String {
    format!("uid-of-{name}")
}
