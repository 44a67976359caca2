//! What one Gateway asks of the cluster that it is in: plain data between the translation, which decides it, and
//! provisioning, which turns it into objects. Knows neither.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::api::parameters::Parameters;

/// What one Gateway needs to be served by pods of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataPlane {
    /// TCP ports of its listeners, in order.
    pub ports: Vec<u16>,
    /// Requested addresses, in the order of the spec; `None` asks for any.
    pub addresses: Vec<Option<IpAddr>>,
    /// Parameters of its class with its own over them.
    pub parameters: Arc<Parameters>,
}
