//! `portcullis controller`: flags of the controller, and their translation into its settings.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;

use super::flags::{AddressFlags, AdminServerFlags, LogFlags, PermissionFlags};
use super::infrastructure::InfrastructureFlags;
use crate::process::controller;
use crate::process::controller::{ControllerSettings, StreamSettings};
use crate::provision::RolloutOptions;
use crate::settings::ControllerUrl;
use crate::settings::controller_name::ControllerName;
use crate::settings::permissions::Permissions;
use crate::telemetry;

/// Run the controller: provision the pods of Gateways and write status.
///
/// For each Gateway whose GatewayClass has the controllerName of --controller-name it reconciles a
/// Deployment, a Service and related objects in the Gateway's namespace. Several replicas may run: one is the leader,
/// elected with a Lease; the others are on standby.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis controller --image ghcr.io/portcullis/portcullis:0.2.0
  portcullis controller --image localhost/portcullis --lease-namespace default --admin off

Connects to the cluster of the kubeconfig, or else of the pod's service account.
Signals: SIGTERM and SIGINT stop it and release the Lease, so that another replica leads at once.
Exit codes: 0 after a signal, 1 if it cannot start, 2 for wrong usage.")]
pub struct Args {
    /// The admin server.
    #[command(flatten)]
    admin: AdminServerFlags,
    /// controllerName of the GatewayClasses whose Gateways are provisioned. Each installation in a cluster needs its own
    #[arg(
        long,
        value_name = "DOMAIN/PATH",
        env = "PORTCULLIS_CONTROLLER_NAME",
        default_value_t = ControllerName::default()
    )]
    controller_name: ControllerName,
    /// Image of the pods that serve Gateways, unless GatewayParameters name another that --allow-image permits
    #[arg(long, value_name = "IMAGE", env = "PORTCULLIS_IMAGE")]
    image: String,
    /// Namespace of the Lease for leader election
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    lease_namespace: String,
    /// Identity of this replica in the leader election [default: host name and process id]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// Address on which to stream configuration to pods
    #[arg(
        long,
        value_name = "ADDR",
        env = "PORTCULLIS_STREAM_ADDRESS",
        default_value = "[::]:19443",
        value_parser = super::value::socket_address
    )]
    stream_address: SocketAddr,
    /// URL that pods connect to for their configuration, https://HOST:PORT [default: the Service
    /// portcullis-controller-stream of the Lease's namespace]
    #[arg(long, value_name = "URL", env = "PORTCULLIS_STREAM_URL")]
    stream_url: Option<ControllerUrl>,
    /// Address of this pod, to which pods of Gateways reconnect while it leads [default: they keep their connection]
    #[arg(long, value_name = "ADDR", env = "POD_IP")]
    pod_ip: Option<IpAddr>,
    /// Number of Gateways whose pods are replaced at the same time after an upgrade of the controller
    #[arg(
        long,
        value_name = "N",
        env = "PORTCULLIS_CONCURRENT_ROLLOUTS",
        default_value = "1"
    )]
    concurrent_rollouts: NonZeroUsize,
    /// Permissions of objects, which also apply to the pods of Gateways.
    #[command(flatten)]
    permissions: PermissionFlags,
    /// Permissions of parameters and infrastructure of Gateways.
    #[command(flatten)]
    infrastructure: InfrastructureFlags,
    /// Addresses that are not public, for this process and the pods of Gateways.
    #[command(flatten)]
    addresses: AddressFlags,
    /// Log.
    #[command(flatten)]
    log: LogFlags,
}

/// Runs the controller until a signal.
pub fn run(args: &Args) -> anyhow::Result<()> {
    telemetry::log::start(args.log.log_format, &args.log.filter())?;
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
        controller_name: args.controller_name.clone(),
        stream,
        rollouts: RolloutOptions {
            concurrent: args.concurrent_rollouts.get(),
            ..RolloutOptions::default()
        },
        admin: args.admin.admin.0,
        admin_token_file: args.admin.admin_token_file.clone(),
        permissions: Permissions::from(&args.permissions),
        infrastructure: args
            .infrastructure
            .permissions(&args.lease_namespace, &args.image),
        image: args.image.clone(),
        allowed_external_addresses: args.addresses.allow_external_address.clone(),
        allowed_jwks_addresses: args.addresses.issuers.allow_jwks_address.clone(),
        namespace: args.lease_namespace.clone(),
        identity: args.identity.clone().unwrap_or_else(own),
    })
}
