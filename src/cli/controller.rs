//! `portcullis controller`: keeps data planes and conditions of a cluster's Gateways. Knows nothing of how that is done.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;

use ipnet::IpNet;

use super::flags::{LogFlags, PermissionFlags};
use super::value::AdminAddress;
use crate::permissions::Permissions;
use crate::provision::RolloutOptions;
use crate::server::controller::{self, ControllerSettings, StreamSettings};
use crate::settings::{ControllerUrl, Settings};
use crate::telemetry;

/// Control the Gateways of a cluster: make the pods that serve them, and write the conditions of all objects.
///
/// For each Gateway whose GatewayClass names portcullis.dev/gateway-controller it keeps a Deployment, a Service and what
/// else these need, in the Gateway's namespace. Several may run: one leads, elected by a Lease; the others are warm.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis controller --image ghcr.io/portcullis/portcullis:0.1.0
  portcullis controller --image localhost/portcullis --lease-namespace default --admin off

The cluster is that of the pod's service account, else of the kubeconfig.
Signals: SIGTERM and SIGINT end it, and let another lead at once.
Exit codes: 0 after a signal, 1 when it cannot start, 2 for wrong usage.")]
pub struct Args {
    /// Address of /healthz, /readyz and /metrics, and of /config and the status page for those on loopback; or `off`
    #[arg(long, value_name = "ADDR|off", env = "PORTCULLIS_ADMIN",
          default_value_t = AdminAddress(Some(Settings::ADMIN)))]
    admin: AdminAddress,
    /// Image of the pods that serve Gateways, unless GatewayParameters name another
    #[arg(long, value_name = "IMAGE", env = "PORTCULLIS_IMAGE")]
    image: String,
    /// Namespace of the Lease that decides who leads
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    lease_namespace: String,
    /// Name of this controller among those that stand for the Lease [default: host name and process id]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// Address at which pods get their configuration
    #[arg(
        long,
        value_name = "ADDR",
        env = "PORTCULLIS_STREAM_ADDRESS",
        default_value = "[::]:19443"
    )]
    stream_address: SocketAddr,
    /// What pods connect to for it, as https://HOST:PORT [default: the Service portcullis-controller-stream of the
    /// Lease's namespace]
    #[arg(long, value_name = "URL", env = "PORTCULLIS_STREAM_URL")]
    stream_url: Option<ControllerUrl>,
    /// Address of this pod, which pods of Gateways connect to while it leads [default: they stay where they are]
    #[arg(long, value_name = "ADDR", env = "POD_IP")]
    pod_ip: Option<IpAddr>,
    /// Gateways whose pods are replaced at the same time when the controller is upgraded
    #[arg(
        long,
        value_name = "N",
        env = "PORTCULLIS_CONCURRENT_ROLLOUTS",
        default_value = "1"
    )]
    concurrent_rollouts: NonZeroUsize,
    /// What objects may do; the pods of Gateways get the same.
    #[command(flatten)]
    permissions: PermissionFlags,
    /// Addresses that names of XBackends may resolve to in pods of Gateways, beside public ones
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "PORTCULLIS_ALLOW_EXTERNAL_ADDRESS",
        value_delimiter = ','
    )]
    allow_external_address: Vec<IpNet>,
    /// Log.
    #[command(flatten)]
    log: LogFlags,
}

/// Controls until it is told to leave.
pub fn run(args: &Args) -> anyhow::Result<()> {
    telemetry::start_log(args.log.log_format, &args.log.filter())?;
    let own = || {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}-{}", host.trim(), std::process::id())
    };
    let service = || ControllerUrl {
        host: format!("portcullis-controller-stream.{}.svc", args.lease_namespace),
        port: args.stream_address.port(),
    };
    let advertised = |address| SocketAddr::new(address, args.stream_address.port()).to_string();
    let stream = StreamSettings {
        address: args.stream_address,
        url: args.stream_url.clone().unwrap_or_else(service),
        advertised: args.pod_ip.map(advertised),
    };
    controller::run(&ControllerSettings {
        stream,
        rollouts: RolloutOptions {
            concurrent: args.concurrent_rollouts.get(),
            ..RolloutOptions::default()
        },
        admin: args.admin.0,
        permissions: Permissions::from(&args.permissions),
        image: args.image.clone(),
        allowed_external_addresses: args.allow_external_address.clone(),
        namespace: args.lease_namespace.clone(),
        identity: args.identity.clone().unwrap_or_else(own),
    })
}
