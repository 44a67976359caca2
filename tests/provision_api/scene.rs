//! A controller's provisioning against an in-memory API server.

use std::sync::Arc;
use std::time::Duration;

use imbl::OrdSet;
use kube::{Client, Config};
use portcullis::api::gateway::Gateway;
use portcullis::api::parameters::Parameters;
use portcullis::cluster::events;
use portcullis::ir::ObjectRef;
use portcullis::provision::data_plane::DataPlane;
use portcullis::provision::{
    self, Child, DesiredState, Failure, Failures, Inputs, RolloutOptions, StreamEndpoint,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::server::{Key, Server, key};

/// Field manager of the controller.
pub(crate) const MANAGER: &str = "portcullis.dev/controller";

/// A Gateway and its parameters.
#[derive(Clone)]
pub(crate) struct TestGateway {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) uid: String,
    pub(crate) annotations: Value,
    pub(crate) parameters: Value,
    pub(crate) ports: Vec<u16>,
    pub(crate) image: String,
    pub(crate) ca: String,
}

/// Returns a Gateway in namespace `shop`.
pub(crate) fn test_gateway(name: &str) -> TestGateway {
    TestGateway {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        class: "portcullis".to_owned(),
        uid: format!("gateway-{name}"),
        annotations: json!({}),
        parameters: json!({}),
        ports: vec![80],
        image: "portcullis:1".to_owned(),
        ca: "CA".to_owned(),
    }
}

impl TestGateway {
    pub(crate) fn object_ref(&self) -> ObjectRef {
        ObjectRef::gateway_api("Gateway", &self.namespace, &self.name)
    }

    /// Returns the name of most of its objects.
    pub(crate) fn object_name(&self) -> String {
        format!("{}-{}", self.name, self.class)
    }

    pub(crate) fn key(&self, plural: &str) -> Key {
        key(plural, &self.namespace, &self.object_name())
    }

    pub(crate) fn gateway(&self) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid},
            "spec": {
                "gatewayClassName": self.class, "listeners": [],
                "infrastructure": {"annotations": self.annotations},
            },
        })
    }

    pub(crate) fn children(&self) -> Vec<Child> {
        let gateway: Gateway = serde_json::from_value(self.gateway()).unwrap();
        let parameters: Parameters = serde_json::from_value(self.parameters.clone()).unwrap();
        let data_plane = DataPlane {
            udp_ports: Vec::new(),
            ports: self.ports.clone(),
            addresses: Vec::new(),
            parameters: Arc::new(parameters),
            only_unprivileged_ports: false,
        };
        let stream = StreamEndpoint {
            arguments: Vec::new(),
            url: "https://controller.example:19443".to_owned(),
            ca: self.ca.clone(),
        };
        provision::children(&gateway, &data_plane, &self.image, &stream)
    }
}

/// Desired state of these Gateways.
pub(crate) fn desired(gateways: &[TestGateway]) -> Option<Arc<DesiredState>> {
    let children = gateways.iter().map(|test_gateway| {
        (
            test_gateway.object_ref(),
            Arc::from(test_gateway.children()),
        )
    });
    Some(Arc::new(DesiredState {
        children: children.collect(),
        retained: OrdSet::new(),
    }))
}

/// Provisioning in progress.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) desired: watch::Sender<Option<Arc<DesiredState>>>,
    pub(crate) serving: watch::Sender<OrdSet<ObjectRef>>,
    failures: watch::Receiver<Failures>,
    task: JoinHandle<()>,
}

/// Starts a controller for the Gateway `web`, and waits for its objects.
pub(crate) async fn with_web() -> (Server, TestGateway, Scene) {
    let (server, web) = (Server::start(), test_gateway("web"));
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    scene.has_all(&web).await;
    (server, web, scene)
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scene {
    /// Starts a controller for these Gateways and creates them.
    pub(crate) fn start(server: &Server, gateways: &[TestGateway]) -> Self {
        Self::with_deadline(server, gateways, Duration::from_secs(600))
    }

    pub(crate) fn with_deadline(
        server: &Server,
        gateways: &[TestGateway],
        progress_deadline: Duration,
    ) -> Self {
        server.with(|state| {
            for test_gateway in gateways {
                state.put(&gateway_key(test_gateway), test_gateway.gateway());
            }
        });
        let (desired, desired_seen) = watch::channel(desired(gateways));
        let (serving, serving_seen) = watch::channel(OrdSet::new());
        let (failing, failures) = watch::channel(Failures::new());
        let client = Client::try_from(Config::new(server.url().parse().unwrap())).unwrap();
        let options = RolloutOptions {
            concurrent: 1,
            progress_deadline,
        };
        let task = tokio::spawn(async move {
            let (events, mut publisher) = events::channel("test");
            let inputs = Inputs {
                desired: desired_seen,
                serving: serving_seen,
            };
            tokio::select! {
                () = provision::reconcile(&client, inputs, &failing, options, &events) => {}
                () = publisher.run(&client) => {}
            }
        });
        Self {
            server: server.clone(),
            desired,
            serving,
            failures,
            task,
        }
    }

    /// Replaces the controller by a new one.
    pub(crate) fn restart(self, gateways: &[TestGateway]) -> Self {
        Self::start(&self.server.clone(), gateways)
    }

    /// Changes the desired state and creates new Gateways.
    pub(crate) fn set_desired(&self, gateways: &[TestGateway]) {
        self.server.with(|state| {
            for test_gateway in gateways {
                if !state.objects.contains_key(&gateway_key(test_gateway)) {
                    state.put(&gateway_key(test_gateway), test_gateway.gateway());
                }
            }
        });
        self.desired.send_replace(desired(gateways));
    }

    /// Reports that the ready replicas of these Gateways serve.
    pub(crate) fn serve(&self, gateways: &[&TestGateway]) {
        let names = gateways
            .iter()
            .map(|test_gateway| test_gateway.object_ref());
        self.serving.send_replace(names.collect());
    }

    /// Waits for a failure of a Gateway that matches.
    pub(crate) async fn failure(
        &self,
        test_gateway: &TestGateway,
        wanted: impl Fn(&Failure) -> bool,
    ) -> Failure {
        let name = test_gateway.object_ref();
        let mut failures = self.failures.clone();
        let found = failures.wait_for(|failures| failures.get(&name).is_some_and(&wanted));
        found.await.unwrap()[&name].clone()
    }

    /// Waits until there are no failures.
    pub(crate) async fn has_no_failures(&self) {
        let mut failures = self.failures.clone();
        failures.wait_for(Failures::is_empty).await.unwrap();
    }

    /// Waits until a Gateway has all its objects.
    pub(crate) async fn has_all(&self, test_gateway: &TestGateway) {
        for child in test_gateway.children() {
            let name = key(child.kind.plural(), &child.namespace, &child.name);
            let what = format!("{name:?} as desired");
            self.server
                .until(&what, |state| {
                    let object = state.objects.get(&name)?;
                    let entries = object["metadata"]["managedFields"].as_array()?;
                    let is_applied = entries
                        .iter()
                        .any(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply");
                    (is_applied && includes(object, &child.object)).then_some(())
                })
                .await;
        }
    }

    /// Waits until these Gateways have all their objects and the controller is idle.
    pub(crate) async fn until_idle(&self, gateways: &[TestGateway]) {
        for test_gateway in gateways {
            self.has_all(test_gateway).await;
        }
        self.process_events(gateways, "rest").await;
    }

    /// Waits until all previous events were processed, by creating another Gateway and waiting for
    /// its last object.
    pub(crate) async fn process_events(&self, gateways: &[TestGateway], with: &str) {
        let mut all = gateways.to_vec();
        all.push(TestGateway {
            namespace: "barrier".to_owned(),
            ..test_gateway(with)
        });
        self.set_desired(&all);
        self.has_all(all.last().unwrap()).await;
    }
}

pub(crate) fn gateway_key(test_gateway: &TestGateway) -> Key {
    key("gateways", &test_gateway.namespace, &test_gateway.name)
}

/// Reports whether an object contains all fields of another.
fn includes(object: &Value, part: &Value) -> bool {
    match part {
        Value::Object(fields) => fields
            .iter()
            .all(|(name, value)| includes(&object[name], value)),
        leaf => object == leaf,
    }
}
