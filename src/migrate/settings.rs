//! How a migration is done: what the command line says.

use super::model::Name;

/// How a migration is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Ingresses of this class are migrated.
    pub ingress_class: String,
    /// The Gateway.
    pub gateway: Name,
    /// Its class; `None` if the Gateway exists and is not written.
    pub gateway_class: Option<String>,
    /// The ConfigMap of the controller.
    pub controller_config: Option<Name>,
    /// Secret with the certificate of hosts without one of their own.
    pub default_certificate: Option<Name>,
}
