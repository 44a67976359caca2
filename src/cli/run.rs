//! `portcullis run`: serves a folder, a cluster or what a controller streams until it is told to leave. Knows nothing of
//! how it is served.

use std::path::PathBuf;

use super::flags::ServeFlags;
use crate::settings::{ControllerUrl, NamespacedName, Ports, Source, StreamSource, is_name};
use crate::{server, telemetry};

/// Serve the Gateways of a folder of Gateway API YAML, of a cluster, or the one that a controller streams.
///
/// With --config-dir: reads every *.yaml, *.yml and *.json below the folder, serves what is valid and reloads on change
/// or SIGHUP. With --kubernetes: watches the API server of the pod's service account, else of the kubeconfig; is ready
/// when every kind has been listed, and serves what it knows while the API server is away. With --controller: gets the
/// objects of one Gateway from a controller, as the pods do that a controller makes, and needs no right on the API server;
/// serves what it has while no controller is there.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis run --config-dir config/quickstart
  portcullis run --kubernetes --gateway infra/edge --admin [::]:19000
  portcullis run --kubernetes --namespaces infra,apps
  portcullis run --controller https://portcullis-controller-stream.portcullis.svc:19443 \\
      --gateway infra/edge --provisioned service --state-dir /var/lib/portcullis
  portcullis run --config-dir /etc/portcullis --admin [::]:19000 --log-format json \\
      --trusted-proxies 10.0.0.0/8,fd00::/8 --body-timeout 1m

Signals: SIGTERM and SIGINT drain, a second one cuts at once; SIGHUP reloads the folder,
SIGUSR1 reopens the file of the access log.
Exit codes: 0 after draining, 1 when it cannot start, 2 for wrong usage.")]
pub struct Args {
    /// Where objects come from.
    #[command(flatten)]
    source: SourceFlags,
    /// What of a cluster is served.
    #[command(flatten)]
    cluster: ClusterFlags,
    /// What a pod of a controller needs.
    #[command(flatten)]
    stream: StreamFlags,
    /// Everything that is not about where objects come from.
    #[command(flatten)]
    serve: ServeFlags,
}

/// Where objects come from: one of three.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct SourceFlags {
    /// Folder of Gateway API YAML
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: Option<PathBuf>,
    /// Watch a cluster's API server
    #[arg(long, env = "PORTCULLIS_KUBERNETES")]
    kubernetes: bool,
    /// Get the objects of one Gateway from the controller that serves streams here
    #[arg(
        long,
        value_name = "URL",
        env = "PORTCULLIS_CONTROLLER",
        requires = "gateway"
    )]
    controller: Option<ControllerUrl>,
}

/// What of a cluster is served.
#[derive(clap::Args, Debug)]
struct ClusterFlags {
    /// Serve this Gateway only [default: all of the class; --controller needs one]
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        env = "PORTCULLIS_GATEWAY",
        conflicts_with = "config_dir"
    )]
    gateway: Option<NamespacedName>,
    /// Watch only these namespaces, and that of --gateway [default: all]
    #[arg(
        long,
        value_name = "NAMESPACE,…",
        env = "PORTCULLIS_NAMESPACES",
        value_delimiter = ',',
        value_parser = namespace,
        conflicts_with_all = ["config_dir", "controller"]
    )]
    namespaces: Vec<String>,
}

/// The sources whose objects no controller streams.
const OTHER_SOURCES: [&str; 2] = ["config_dir", "kubernetes"];

/// What a pod of a controller needs.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "With --controller")]
struct StreamFlags {
    /// Certificates that the controller's certificate may be signed by, as PEM; read again for each connection
    #[arg(
        long,
        value_name = "FILE",
        env = "PORTCULLIS_CONTROLLER_CA",
        default_value = StreamSource::CA_FILE,
        conflicts_with_all = OTHER_SOURCES
    )]
    controller_ca: PathBuf,
    /// The pod's ServiceAccount token for the controller; read again for each connection
    #[arg(
        long,
        value_name = "FILE",
        env = "PORTCULLIS_CONTROLLER_TOKEN",
        default_value = StreamSource::TOKEN_FILE,
        conflicts_with_all = OTHER_SOURCES
    )]
    controller_token: PathBuf,
    /// Directory, in memory, of a copy that a restarted container begins with; it holds private keys
    #[arg(
        long,
        value_name = "DIR",
        env = "PORTCULLIS_STATE_DIR",
        conflicts_with_all = OTHER_SOURCES
    )]
    state_dir: Option<PathBuf>,
    /// Serve as a pod that the controller made: behind its Service, or on the network of its node
    #[arg(
        long,
        value_name = "service|host",
        env = "PORTCULLIS_PROVISIONED",
        conflicts_with_all = OTHER_SOURCES
    )]
    provisioned: Option<Provisioned>,
}

/// How a pod that the controller made is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Provisioned {
    /// Through a Service: privileged ports are bound among the highest.
    Service,
    /// At its node: ports are bound as listeners declare them.
    Host,
}

fn namespace(text: &str) -> Result<String, &'static str> {
    let is_one = is_name(text).then(|| text.to_owned());
    is_one.ok_or("must be the name of a namespace, in lower case")
}

/// Serves until it is told to leave.
pub fn run(args: &Args) -> anyhow::Result<()> {
    telemetry::start_log(args.serve.log.log_format, &args.serve.log.filter())?;
    let mut settings = args.serve.settings(args.source());
    if args.stream.provisioned == Some(Provisioned::Service) {
        settings.ports = Ports::Unprivileged;
    }
    server::run(&settings)
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
            }),
            (None, _, gateway) => Source::Kubernetes {
                gateway,
                namespaces: self.cluster.namespaces.clone(),
            },
        }
    }
}
