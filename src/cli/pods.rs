//! The pods of Gateways in a cluster, through the API server: their metrics, which are for everyone, and connections to their
//! admin address.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use tokio::io::DuplexStream;
use tokio::time::timeout;

use crate::cluster::api_server::{describe, request};
use crate::cluster::client::ApiServer;
use crate::provision::{GATEWAY_LABEL, MANAGED_BY, MANAGED_BY_LABEL, is_made_for};
use crate::settings::{NamespacedName, Settings};

/// Timeout of reading the metrics of a pod.
const PAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of pods that are read at the same time.
pub(super) const CONCURRENT_PAGES: usize = 16;

/// A pod of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GatewayPod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Value of the label that names the Gateway.
    pub(super) gateway: String,
}

/// Which pods are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Those that run.
    Running,
    /// Also those that do not.
    Any,
}

/// Lists the running pods of all Gateways.
///
/// # Errors
/// When the API server does not list them.
pub(super) async fn of_all(client: &Client) -> anyhow::Result<Vec<GatewayPod>> {
    let api = Api::all(client.clone());
    list(&api, ("all namespaces", Phase::Running), |_| true).await
}

/// Lists the pods of a Gateway.
///
/// # Errors
/// When the API server does not list them.
pub(super) async fn of_gateway(
    client: &Client,
    NamespacedName { namespace, name }: &NamespacedName,
    phase: Phase,
) -> anyhow::Result<Vec<GatewayPod>> {
    let api = Api::namespaced(client.clone(), namespace);
    let is_of_gateway = |labels: &BTreeMap<String, String>| is_made_for(labels, name);
    let place = format!("namespace {namespace}");
    list(&api, (&*place, phase), is_of_gateway).await
}

async fn list(
    api: &Api<Pod>,
    (place, phase): (&str, Phase),
    is_wanted: impl Fn(&BTreeMap<String, String>) -> bool,
) -> anyhow::Result<Vec<GatewayPod>> {
    let all = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY}"));
    let params = match phase {
        Phase::Running => all.fields("status.phase=Running"),
        Phase::Any => all,
    };
    let cannot = || format!("pods of Gateways in {place} cannot be listed");
    let listed = match request(api.list_metadata(&params)).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => return Err(anyhow!(describe(&error))).with_context(cannot),
        Err(timeout) => return Err(anyhow!(timeout)).with_context(cannot),
    };
    let wanted = listed
        .items
        .into_iter()
        .filter(|pod| is_wanted(pod.labels()));
    let pods = wanted.map(|pod| GatewayPod {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        gateway: pod.labels().get(GATEWAY_LABEL).cloned().unwrap_or_default(),
    });
    Ok(pods.collect())
}

/// Reads the metrics of a pod through the API server.
///
/// # Errors
/// Why the API server or the pod has not sent them in time.
pub(super) async fn metrics(client: &Client, pod: &GatewayPod) -> Result<String, String> {
    let GatewayPod {
        namespace, name, ..
    } = pod;
    let port = Settings::ADMIN.port();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics");
    let call = http::Request::get(path).body(Vec::new());
    let call = call.map_err(|error| error.to_string())?;
    let text = within_time(client.request_text(call)).await?;
    text.map_err(|error| describe(&error))
}

/// Awaits the metrics of a proxy.
///
/// # Errors
/// When they do not come in time.
pub(super) async fn within_time<T>(page: impl Future<Output = T>) -> Result<T, String> {
    let page = timeout(PAGE_TIMEOUT, page).await;
    page.map_err(|_| format!("no response within {} s", PAGE_TIMEOUT.as_secs()))
}

/// A Gateway in a cluster.
pub(super) struct GatewayClient {
    client: Client,
    gateway: NamespacedName,
}

impl GatewayClient {
    /// The Gateway of this name, in the namespace of the context of the kubeconfig unless another is named.
    ///
    /// # Errors
    /// When the address or the credentials of the API server are invalid.
    pub(super) fn new(
        api_server: &ApiServer,
        namespace: Option<&str>,
        name: &str,
    ) -> anyhow::Result<Self> {
        let client = api_server.client()?;
        let gateway = NamespacedName {
            namespace: namespace.unwrap_or(client.default_namespace()).to_owned(),
            name: name.to_owned(),
        };
        Ok(Self { client, gateway })
    }

    /// Returns the namespace of the Gateway and of its pods.
    pub(super) fn namespace(&self) -> &str {
        &self.gateway.namespace
    }

    /// Lists the pods of the Gateway by name, also those that do not run.
    ///
    /// # Errors
    /// When the API server does not list them, or there is none.
    pub(super) async fn pods(&self) -> anyhow::Result<Vec<GatewayPod>> {
        let mut pods = of_gateway(&self.client, &self.gateway, Phase::Any).await?;
        if pods.is_empty() {
            let why = self.unprogrammed().await;
            let why =
                why.unwrap_or_else(|| "its condition Programmed and its Events say why".to_owned());
            bail!("{} has no pods: {why}", self.described());
        }
        pods.sort();
        Ok(pods)
    }

    /// Returns the Gateway as it is shown.
    pub(super) fn described(&self) -> String {
        let NamespacedName { namespace, name } = &self.gateway;
        format!("Gateway {namespace}/{name}")
    }

    /// Returns what its condition Programmed says if that is not True; `None` also if the Gateway cannot be read, as without the
    /// right to get it.
    pub(super) async fn unprogrammed(&self) -> Option<String> {
        let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "Gateway");
        let NamespacedName { namespace, name } = &self.gateway;
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let gateway = request(api.get_opt(name)).await.ok()?.ok()??;
        let conditions = gateway.data["status"]["conditions"].as_array()?;
        let programmed = conditions.iter().find(|it| it["type"] == "Programmed")?;
        let [status, reason, message] =
            ["status", "reason", "message"].map(|field| programmed[field].as_str().unwrap_or("-"));
        (status != "True").then(|| format!("Programmed is {status} ({reason}): {message}"))
    }

    /// Connects to the admin address of a pod, as a client on its loopback. The future resolves if the connection fails, not
    /// after its end is seen: with the reason, such as that the pod does not listen.
    ///
    /// # Errors
    /// Why the API server does not permit it.
    pub(super) async fn connect(
        &self,
        pod: &GatewayPod,
    ) -> Result<(DuplexStream, impl Future<Output = String>), String> {
        let port = Settings::ADMIN.port();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let forwarder = api.portforward(&pod.name, &[port]).await;
        let mut forwarder = forwarder.map_err(|error| describe(&error))?;
        let stream = forwarder.take_stream(port);
        let (stream, fault) = stream
            .zip(forwarder.take_error(port))
            .ok_or("the API server does not forward the port")?;
        let fault = async move {
            if let Some(fault) = fault.await {
                return fault.trim().to_owned();
            }
            match forwarder.join().await {
                Ok(()) => pending().await,
                Err(error) => describe(&error),
            }
        };
        Ok((stream, fault))
    }

    /// Reads the metrics of all pods of the Gateway, in the order of their names. Those of some may fail.
    ///
    /// # Errors
    /// When the API server does not list the pods, or there is none.
    pub(super) async fn metrics(&self) -> anyhow::Result<Vec<(String, Result<String, String>)>> {
        let pages = stream::iter(self.pods().await?).map(|pod| async move {
            let page = metrics(&self.client, &pod).await;
            (pod.name, page)
        });
        Ok(pages.buffered(CONCURRENT_PAGES).collect().await)
    }
}
