//! `portcullis run`: serves the objects of a folder, of a cluster or of a controller's stream until it is terminated.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::flags::ServeFlags;
use crate::process::data_plane;
use crate::settings::controller_name::ControllerName;
use crate::settings::{ControllerUrl, NamespacedName, Ports, Source, StreamSource};
use crate::telemetry;

/// Serve Gateways from a folder of YAML, a cluster, or a controller's stream.
///
/// With --config-dir: reads every *.yaml, *.yml and *.json below the folder, serves the valid objects and reloads on
/// change or SIGHUP. With --kubernetes: watches the API server of the kubeconfig, or else of the pod's service account;
/// becomes ready when all kinds are listed, and continues to serve while the API server is unavailable. With
/// --controller: receives the objects of one Gateway from a controller, as provisioned pods do, and needs no rights on the
/// API server; continues to serve while no controller is available.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis run --config-dir config/quickstart
  portcullis run --kubernetes --gateway infra/edge --admin [::]:19000
  portcullis run --kubernetes --namespaces infra,apps
  portcullis run --controller https://portcullis-controller-stream.portcullis-system.svc:19443 \\
      --gateway infra/edge --state-dir /var/lib/portcullis
  portcullis run --config-dir /etc/portcullis --admin [::]:19000 --log-format json \\
      --trusted-proxies 10.0.0.0/8,fd00::/8 --body-timeout 1m

Signals: SIGTERM and SIGINT start draining, a second one closes all connections; SIGHUP
reloads the folder; SIGUSR1 reopens the file of the access log.
Exit codes: 0 after draining, 1 if it cannot start, 2 for wrong usage.")]
pub struct Args {
    /// Source of the objects.
    #[command(flatten)]
    source: SourceFlags,
    /// Gateways and namespaces of a cluster.
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Stream from a controller.
    #[command(flatten)]
    stream: StreamFlags,
    /// Flags for all sources.
    #[command(flatten)]
    serve: ServeFlags,
}

/// Source of the objects: one of three.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct SourceFlags {
    /// Folder of Gateway API YAML
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: Option<PathBuf>,
    /// Watch a cluster's API server
    #[arg(long, env = "PORTCULLIS_KUBERNETES")]
    kubernetes: bool,
    /// Receive the objects of one Gateway from the controller at this URL
    #[arg(
        long,
        value_name = "URL",
        env = "PORTCULLIS_CONTROLLER",
        requires = "gateway"
    )]
    controller: Option<ControllerUrl>,
}

/// Gateways and namespaces of a cluster.
#[derive(clap::Args, Debug)]
struct ClusterFlags {
    /// Serve this Gateway only; required with --controller [default: all Gateways of the class]
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        env = "PORTCULLIS_GATEWAY",
        conflicts_with = "config_dir"
    )]
    gateway: Option<NamespacedName>,
    /// Watch only these namespaces and the namespace of --gateway [default: all]
    #[arg(
        long,
        value_name = "NAMESPACE,…",
        env = "PORTCULLIS_NAMESPACES",
        value_delimiter = ',',
        value_parser = super::value::namespace,
        conflicts_with_all = ["config_dir", "controller"]
    )]
    namespaces: Vec<String>,
    /// Serve Gateways of GatewayClasses with this controllerName
    #[arg(
        long,
        value_name = "DOMAIN/PATH",
        env = "PORTCULLIS_CONTROLLER_NAME",
        default_value_t = ControllerName::default(),
        conflicts_with = "config_dir"
    )]
    controller_name: ControllerName,
}

/// Sources other than a controller's stream.
const OTHER_SOURCES: [&str; 2] = ["config_dir", "kubernetes"];

/// Stream from a controller.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "With --controller")]
struct StreamFlags {
    /// CA certificates that verify the controller, as PEM; read for each connection
    #[arg(
        long,
        value_name = "FILE",
        env = "PORTCULLIS_CONTROLLER_CA",
        default_value = StreamSource::CA_FILE,
        conflicts_with_all = OTHER_SOURCES
    )]
    controller_ca: PathBuf,
    /// ServiceAccount token that authenticates the pod to the controller; read for each connection
    #[arg(
        long,
        value_name = "FILE",
        env = "PORTCULLIS_CONTROLLER_TOKEN",
        default_value = StreamSource::TOKEN_FILE,
        conflicts_with_all = OTHER_SOURCES
    )]
    controller_token: PathBuf,
    /// In-memory directory for a copy of the objects, which a restarted container starts with; it contains private keys
    #[arg(
        long,
        value_name = "DIR",
        env = "PORTCULLIS_STATE_DIR",
        conflicts_with_all = OTHER_SOURCES
    )]
    state_dir: Option<PathBuf>,
    /// Address at which other pods of the Gateway ask for their part of limits with scope Gateway, and send logout tokens of
    /// OpenID providers, by TLS that admits only these. Bound only while there is such a limit or a backChannelLogoutPath; all
    /// pods need the same port
    #[arg(
        long,
        value_name = "ADDR",
        env = "PORTCULLIS_PEERS",
        default_value_t = StreamSource::PEERS,
        value_parser = super::value::socket_address,
        conflicts_with_all = OTHER_SOURCES
    )]
    peers: SocketAddr,
    /// Serve as a provisioned pod: behind its Service, or on the network of its node
    #[arg(
        long,
        value_name = "service|host",
        env = "PORTCULLIS_PROVISIONED",
        hide = true,
        conflicts_with_all = OTHER_SOURCES
    )]
    provisioned: Option<Provisioned>,
}

/// How clients reach a provisioned pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Provisioned {
    /// Through a Service: privileged ports are mapped to high ports.
    Service,
    /// At its node: ports are bound as the listeners declare them.
    Host,
}

/// Serves until the process is terminated.
pub fn run(args: &Args) -> anyhow::Result<()> {
    telemetry::log::start(args.serve.log.log_format, &args.serve.log.filter())?;
    let mut settings = args.serve.settings(args.source());
    settings.controller_name = args.cluster.controller_name.clone();
    if args.stream.provisioned == Some(Provisioned::Service) {
        settings.ports = Ports::Unprivileged;
    }
    data_plane::run(&settings)
}

impl Args {
    fn source(&self) -> Source {
        let gateway = self.cluster.gateway.clone();
        match (&self.source.config_dir, &self.source.controller, gateway) {
            (Some(folder), ..) => Source::Folder(folder.clone()),
            (None, Some(controller), Some(gateway)) => Source::Stream(StreamSource {
                controller: controller.clone(),
                gateway,
                ca_file: self.stream.controller_ca.clone(),
                token_file: self.stream.controller_token.clone(),
                state_dir: self.stream.state_dir.clone(),
                peers: self.stream.peers,
            }),
            (None, _, gateway) => Source::Kubernetes {
                gateway,
                namespaces: self.cluster.namespaces.clone(),
            },
        }
    }
}
