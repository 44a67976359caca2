//! The clients of the API server: its address, and the credentials that all clients of the process share. They do not retry: the
//! callers own the retry policy.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, Response, StatusCode};
use kube::client::{Body, ClientBuilder, DynBody};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::{MapResultLayer, service_fn};

use super::api_server::RetryAfter;
use super::exec_plugin::{Credential, ExecPlugin};

/// Timeout of a connect, after which the next attempt may use another address.
const CONNECT: Duration = Duration::from_secs(5);

/// The API server of a cluster, and the credentials for it. Clones share the credentials.
#[derive(Clone)]
pub struct ApiServer {
    config: Config,
    plugin: Option<Arc<ExecPlugin>>,
}

impl ApiServer {
    /// Finds the cluster of the environment: from the service account of a pod, else from the kubeconfig. Sends no request yet.
    ///
    /// # Errors
    /// When neither exists or can be read, or when the kubeconfig's command for credentials fails.
    pub async fn from_environment() -> anyhow::Result<Self> {
        let config = Config::infer()
            .await
            .context("found neither a kubeconfig nor a service account")?;
        Self::new(config).with_credential().await
    }

    /// Finds the cluster of a context of a kubeconfig, by default of the current context of the file of the environment. Sends
    /// no request yet.
    ///
    /// # Errors
    /// When the file cannot be read or does not have the context, or when its command for credentials fails.
    pub async fn from_kubeconfig(
        file: Option<&Path>,
        context: Option<&str>,
    ) -> anyhow::Result<Self> {
        let read = match file {
            Some(file) => Kubeconfig::read_from(file)
                .with_context(|| format!("cannot read the kubeconfig {}", file.display()))?,
            None => Kubeconfig::read().context("cannot read the kubeconfig")?,
        };
        let options = KubeConfigOptions {
            context: context.map(str::to_owned),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(read, &options).await;
        Self::new(config.context("cannot use the kubeconfig")?)
            .with_credential()
            .await
    }

    /// The API server of a configuration.
    pub fn new(mut config: Config) -> Self {
        config.connect_timeout = Some(CONNECT);
        // kube's default retry would honor any `Retry-After` without a limit, and has its own back-off.
        config.default_retry = false;
        let plugin = ExecPlugin::take_from(&mut config.auth_info).map(Arc::new);
        Self { config, plugin }
    }

    /// Runs the command for credentials, if there is one: it may ask its user, which takes longer than a request may.
    async fn with_credential(self) -> anyhow::Result<Self> {
        if let Some(plugin) = &self.plugin {
            plugin.credential().await?;
        }
        Ok(self)
    }

    /// Returns the address of the API server.
    pub fn url(&self) -> String {
        self.config.cluster_url.to_string()
    }

    /// Creates a client whose errors contain `Retry-After`. It must live on the runtime that creates it.
    ///
    /// # Errors
    /// When the address or the credentials are invalid.
    pub fn client(&self) -> anyhow::Result<Client> {
        let Some(plugin) = self.plugin.clone() else {
            let client = client(self.config.clone());
            return client.context("invalid address or credentials of the cluster");
        };
        let renewed = Arc::new(Renewed {
            config: self.config.clone(),
            plugin,
            current: Mutex::default(),
        });
        let send = move |request| {
            let renewed = renewed.clone();
            async move { renewed.send(request).await }
        };
        Ok(Client::new(
            service_fn(send),
            self.config.default_namespace.clone(),
        ))
    }
}

/// A client whose credentials are from a command.
struct Renewed {
    config: Config,
    plugin: Arc<ExecPlugin>,
    /// The client with the credential of a run.
    current: Mutex<Option<(u64, Client)>>,
}

impl Renewed {
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let credential = self.plugin.credential().await?;
        let response = self.client(&credential)?.send(request).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.plugin.refuse(&credential).await;
        }
        Ok(response)
    }

    fn client(&self, credential: &Credential) -> Result<Client, kube::Error> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((run, client)) if *run == credential.run => Ok(client.clone()),
            _ => {
                let mut config = self.config.clone();
                credential.add_to(&mut config.auth_info);
                let client = client(config)?;
                *current = Some((credential.run, client.clone()));
                Ok(client)
            }
        }
    }
}

fn client(config: Config) -> Result<Client, kube::Error> {
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&MapResultLayer::new(check)).build())
}

/// Turns a response with `Retry-After` into an error that contains the delay. kube drops the header
/// from its own errors.
fn check(
    response: Result<Response<Box<DynBody>>, BoxError>,
) -> Result<Response<Box<DynBody>>, BoxError> {
    let response = response?;
    let status = response.status();
    match seconds(response.headers()) {
        Some(after) if status.is_client_error() || status.is_server_error() => {
            Err(Box::new(RetryAfter {
                status: status.as_u16(),
                after,
            }))
        }
        _ => Ok(response),
    }
}

fn seconds(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_secs)
}
