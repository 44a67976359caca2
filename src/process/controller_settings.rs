//! Static configuration of a controller.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;

use crate::provision::RolloutOptions;
use crate::settings::ControllerUrl;
use crate::settings::controller_name::ControllerName;
use crate::settings::permissions::{InfrastructurePermissions, Permissions};
use crate::translate::{Mode, Options};

/// Static configuration of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Gateways of GatewayClasses with this controllerName are provisioned.
    pub controller_name: ControllerName,
    /// Address of the admin server; `None` disables it.
    pub admin: Option<SocketAddr>,
    /// File with a token that gives clients of this address what those on loopback have.
    pub admin_token_file: Option<PathBuf>,
    /// Data plane image, unless GatewayParameters set one.
    pub image: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Holder identity of this replica in the Lease.
    pub identity: String,
    /// The configuration stream to pods.
    pub stream: StreamSettings,
    /// Non-public addresses that hostnames of XBackends may resolve to, in pods.
    pub allowed_external_addresses: Vec<IpNet>,
    /// Non-public addresses that this process may fetch keys of token issuers from.
    pub allowed_jwks_addresses: Vec<IpNet>,
    /// How the controller's own changes are rolled out to Gateways.
    pub rollouts: RolloutOptions,
    /// What the operator permits objects to do, in this process and in pods.
    pub permissions: Permissions,
    /// What parameters and infrastructure of Gateways may set.
    pub infrastructure: InfrastructurePermissions,
}

impl ControllerSettings {
    /// Returns the translation options.
    pub(super) fn options(&self) -> Options {
        Options {
            controller_name: self.controller_name.as_arc().clone(),
            mode: Mode::Dedicated,
            permissions: self.permissions.clone(),
            infrastructure: Some(Arc::new(self.infrastructure.clone())),
            ..Options::default()
        }
    }
}

/// Static configuration of the stream to pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Address that the stream listens on.
    pub address: SocketAddr,
    /// URL that pods connect to. Its host is the name in the serving certificate.
    pub url: ControllerUrl,
    /// Address of this replica for pods, as `ADDRESS:PORT`; `None` if unknown.
    pub advertised: Option<String>,
}
