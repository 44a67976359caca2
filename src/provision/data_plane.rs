//! The data plane that one Gateway needs in the cluster: plain data that translation produces and
//! provisioning turns into objects.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::api::parameters::Parameters;

/// Ports below this one need the capability NET_BIND_SERVICE, which Kubernetes grants only to root.
pub const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// Desired data plane of one Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataPlane {
    /// TCP ports of the listeners, sorted.
    pub ports: Vec<u16>,
    /// UDP ports of the listeners, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub udp_ports: Vec<u16>,
    /// Requested addresses in spec order; `None` requests any address.
    pub addresses: Vec<Option<IpAddr>>,
    /// Parameters of the GatewayClass merged with those of the Gateway.
    pub parameters: Arc<Parameters>,
    /// Whether pods on the host network must not bind ports below 1024, for which they would run as root.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_unprivileged_ports: bool,
}

impl DataPlane {
    /// Reports whether there is nothing to serve.
    pub fn has_no_ports(&self) -> bool {
        self.ports.is_empty() && self.udp_ports.is_empty()
    }
}
