//! `portcullis run`: serves a folder or a cluster until it is told to leave. Knows nothing of how it is served.

use std::path::PathBuf;

use super::flags::ServeFlags;
use crate::settings::{GatewayName, Ports, Source, is_name};
use crate::{server, telemetry};

/// Serve the Gateways of a folder of Gateway API YAML, or of a cluster.
///
/// With --config-dir: reads every *.yaml, *.yml and *.json below the folder, serves what is valid and reloads on change
/// or SIGHUP. With --kubernetes: watches the API server of the pod's service account, else of the kubeconfig; is ready
/// when every kind has been listed, and serves what it knows while the API server is away.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis run --config-dir config/quickstart
  portcullis run --kubernetes --gateway infra/edge --admin [::]:19000
  portcullis run --kubernetes --namespaces infra,apps
  portcullis run --config-dir /etc/portcullis --admin [::]:19000 --log-format json \\
      --trusted-proxies 10.0.0.0/8,fd00::/8 --body-timeout 1m

Signals: SIGTERM and SIGINT drain, a second one cuts at once; SIGHUP reloads the folder.
Exit codes: 0 after draining, 1 when it cannot start, 2 for wrong usage.")]
pub struct Args {
    /// Where objects come from.
    #[command(flatten)]
    source: SourceFlags,
    /// What of a cluster is served.
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Everything that is not about where objects come from.
    #[command(flatten)]
    serve: ServeFlags,
}

/// Where objects come from: one of two.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct SourceFlags {
    /// Folder of Gateway API YAML
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: Option<PathBuf>,
    /// Watch a cluster's API server
    #[arg(long, env = "PORTCULLIS_KUBERNETES")]
    kubernetes: bool,
}

/// What of a cluster is served.
#[derive(clap::Args, Debug)]
struct ClusterFlags {
    /// Serve this Gateway of the cluster only [default: all of the class]
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        env = "PORTCULLIS_GATEWAY",
        conflicts_with = "config_dir"
    )]
    gateway: Option<GatewayName>,
    /// Serve as a pod that the controller made: behind its Service, or on the network of its node
    #[arg(
        long,
        value_name = "service|host",
        env = "PORTCULLIS_PROVISIONED",
        requires = "gateway"
    )]
    provisioned: Option<Provisioned>,
    /// Watch only these namespaces, and that of --gateway [default: all]
    #[arg(
        long,
        value_name = "NAMESPACE,…",
        env = "PORTCULLIS_NAMESPACES",
        value_delimiter = ',',
        value_parser = namespace,
        conflicts_with = "config_dir"
    )]
    namespaces: Vec<String>,
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
    let source = match &args.source.config_dir {
        Some(folder) => Source::Folder(folder.clone()),
        None => Source::Kubernetes {
            gateway: args.cluster.gateway.clone(),
            is_provisioned: args.cluster.provisioned.is_some(),
            namespaces: args.cluster.namespaces.clone(),
        },
    };
    let mut settings = args.serve.settings(source);
    if args.cluster.provisioned == Some(Provisioned::Service) {
        settings.ports = Ports::Unprivileged;
    }
    server::run(&settings)
}
