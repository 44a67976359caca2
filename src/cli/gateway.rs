//! The pods of a Gateway, which commands ask at their admin addresses, through the API server of a cluster.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use futures_util::{FutureExt, StreamExt, stream};
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::admin_client::{self, DOCUMENT_TIMEOUT, Page};
use super::objects::api_server;
use super::output::UNREACHABLE;
use super::pods::{CONCURRENT_PAGES, GatewayClient, GatewayPod};
use super::value::namespace;
use super::visible;
use crate::settings::{Settings, is_name};
use crate::telemetry::log;

/// The Gateway whose pods a command asks.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "All pods of a Gateway")]
pub struct GatewayFlags {
    /// Ask all pods of this Gateway instead of --admin, through the API server of a cluster
    #[arg(value_name = "gateway/NAME", value_parser = gateway, conflicts_with = "admin")]
    gateway: Option<String>,
    /// Namespace of the Gateway [default: that of the context of the kubeconfig]
    #[arg(long, short, value_name = "NAMESPACE", requires = "gateway", value_parser = namespace)]
    namespace: Option<String>,
    /// Kubeconfig of the cluster [default: KUBECONFIG, else ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE", requires = "gateway")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME", requires = "gateway")]
    context: Option<String>,
}

/// Reads the name of a Gateway, with its kind.
pub(super) fn gateway(text: &str) -> Result<String, &'static str> {
    let name = text.strip_prefix("gateway/").filter(|name| is_name(name));
    name.map(str::to_owned)
        .ok_or("must be gateway/NAME, in lower case")
}

impl GatewayFlags {
    /// The Gateway of this name in a namespace.
    pub(super) fn new(
        (namespace, gateway): (&str, String),
        kubeconfig: Option<PathBuf>,
        context: Option<String>,
    ) -> Self {
        Self {
            gateway: Some(gateway),
            namespace: Some(namespace.to_owned()),
            kubeconfig,
            context,
        }
    }

    /// Reports whether a command asks the pods of a Gateway.
    pub(super) fn is_set(&self) -> bool {
        self.gateway.is_some()
    }

    /// Returns the Gateway in its cluster.
    ///
    /// # Errors
    /// When there is no kubeconfig, or its credentials cannot be had.
    pub(super) async fn client(&self) -> anyhow::Result<GatewayClient> {
        let api_server = api_server(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
        let name = self.gateway.as_deref().unwrap_or_default();
        GatewayClient::new(&api_server, self.namespace.as_deref(), name)
    }
}

/// What each pod responds, by name.
pub(super) type Responses<T> = Vec<(String, anyhow::Result<T>)>;

/// The pods of a Gateway.
pub(super) struct Pods {
    runtime: Runtime,
    gateway: GatewayClient,
}

impl Pods {
    /// The pods of a Gateway, if a command asks them.
    ///
    /// # Errors
    /// When there is no kubeconfig, or its credentials cannot be had.
    pub(super) fn of(flags: &GatewayFlags) -> anyhow::Result<Option<Self>> {
        flags.is_set().then(|| Self::new(flags)).transpose()
    }

    /// The pods of the Gateway that the flags name.
    ///
    /// # Errors
    /// When there is no kubeconfig, or its credentials cannot be had.
    pub(super) fn new(flags: &GatewayFlags) -> anyhow::Result<Self> {
        let runtime = admin_client::runtime()?;
        let gateway = runtime.block_on(flags.client())?;
        Ok(Self { runtime, gateway })
    }

    /// Gets a page of each pod. `path` includes the query. Those of some may fail.
    ///
    /// # Errors
    /// When the API server does not list the pods, or there is none.
    pub(super) fn pages(&self, path: &str) -> anyhow::Result<Responses<Page>> {
        self.runtime.block_on(pages(&self.gateway, path))
    }

    /// Gets a document of `/api/v1/` of each pod. `name` includes the query. Those of some may fail.
    ///
    /// # Errors
    /// When the API server does not list the pods, or there is none.
    pub(super) fn documents(&self, name: &str) -> anyhow::Result<Responses<Value>> {
        self.runtime.block_on(documents(&self.gateway, name))
    }

    /// Awaits what is done with the Gateway.
    pub(super) fn block_on<'a, W: Future>(
        &'a self,
        work: impl FnOnce(&'a GatewayClient) -> W,
    ) -> W::Output {
        self.runtime.block_on(work(&self.gateway))
    }

    /// Returns what the pods have responded for programs.
    pub(super) fn json(&self, responses: &Responses<Value>) -> Value {
        let pod = |(name, response): &(String, anyhow::Result<Value>)| match response {
            Ok(document) => json!({"name": name, "document": document}),
            Err(error) => json!({"name": name, "error": format!("{error:#}")}),
        };
        let pods: Vec<_> = responses.iter().map(pod).collect();
        json!({"namespace": self.gateway.namespace(), "pods": pods})
    }
}

/// Says on standard error which pods have not responded, and why. Returns the exit code of what is shown of the others.
pub(super) fn report<T>(responses: &Responses<T>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for (pod, response) in responses {
        if let Err(error) = response {
            say(pod, error);
            code = ExitCode::from(UNREACHABLE);
        }
    }
    code
}

/// Says on standard error why a pod does not respond.
pub(super) fn say(pod: &str, error: &anyhow::Error) {
    let line = format!("portcullis: cannot ask pod {pod}: {error:#}");
    log::write_line(&visible::lines(&line));
}

/// Says on standard error why no pod can be asked, while a command goes on.
pub(super) fn say_away(error: &anyhow::Error) {
    log::write_line(&visible::lines(&format!("portcullis: {error:#}")));
}

/// Sends a request to the admin address of a pod. `path` includes the query. Does not limit the time.
pub(super) async fn request(
    gateway: &GatewayClient,
    pod: &GatewayPod,
    path: &str,
) -> anyhow::Result<Response<Incoming>> {
    let connected = gateway.connect(pod).await;
    let (stream, fault) = connected.map_err(anyhow::Error::msg)?;
    let mut fault = pin!(fault.map(anyhow::Error::msg));
    let authority = Settings::ADMIN.to_string();
    let response = admin_client::send(stream, &authority, (&Method::GET, path), None);
    tokio::select! {
        // A response that has arrived counts, even if the connection has failed since.
        biased;
        response = response => response.map_err(|error| fault.now_or_never().unwrap_or(error)),
        fault = &mut fault => Err(fault),
    }
}

/// Gets a document of `/api/v1/` of each pod of a Gateway. `name` includes the query. Those of some may fail.
///
/// # Errors
/// When the API server does not list the pods, or there is none.
pub(super) async fn documents(
    gateway: &GatewayClient,
    name: &str,
) -> anyhow::Result<Responses<Value>> {
    let pages = pages(gateway, &format!("/api/v1/{name}")).await?;
    let document = |page: Page| match page.status {
        StatusCode::OK => {
            serde_json::from_str::<Value>(&page.body).context("its response is not JSON")
        }
        status => bail!("status {}: {}", status.as_u16(), page.body.trim()),
    };
    let pages = pages.into_iter();
    Ok(pages
        .map(|(pod, page)| (pod, page.and_then(document)))
        .collect())
}

async fn pages(gateway: &GatewayClient, path: &str) -> anyhow::Result<Responses<Page>> {
    let pods = gateway.pods().await?;
    let pages = stream::iter(pods).map(|pod| async move {
        let page = timeout(DOCUMENT_TIMEOUT, page(gateway, &pod, path)).await;
        let late = || anyhow!("no response within {} s", DOCUMENT_TIMEOUT.as_secs());
        (pod.name, page.unwrap_or_else(|_| Err(late())))
    });
    Ok(pages.buffered(CONCURRENT_PAGES).collect().await)
}

async fn page(gateway: &GatewayClient, pod: &GatewayPod, path: &str) -> anyhow::Result<Page> {
    admin_client::page(request(gateway, pod, path).await?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_are_named_with_their_kind() {
        assert_eq!(gateway("gateway/edge"), Ok("edge".to_owned()));
        for wrong in ["edge", "gateway/", "gateway/Edge", "infra/edge"] {
            assert!(gateway(wrong).is_err(), "{wrong}");
        }
    }
}
