//! What a data plane says that it serves: per Gateway a fingerprint of its configuration, and the ports that could not
//! be bound. Plain data, spoken between data planes and the controller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ir::{BindReport, Ir, ObjectRef};

/// What one process serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Version of the program. Fingerprints of different versions cannot be compared.
    pub version: String,
    /// Gateways with at least one port, by `NAMESPACE/NAME`.
    pub gateways: BTreeMap<String, ServedGateway>,
}

/// What is served of one Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedGateway {
    /// [`Ir::fingerprint`], as 16 hexadecimal digits.
    pub fingerprint: String,
    /// Ports that could not be bound, as listeners declare them, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unbound: BTreeMap<u16, String>,
}

impl Served {
    /// What is served by a process of this version that has translated to `ir` and bound its ports as `binds` tells.
    pub fn new(ir: &Ir, binds: &BindReport) -> Self {
        let mut gateways: BTreeMap<String, ServedGateway> = BTreeMap::new();
        for port in &ir.ports {
            let served = gateways
                .entry(key(&port.gateway))
                .or_insert_with(|| ServedGateway {
                    fingerprint: fingerprint(ir, &port.gateway),
                    unbound: BTreeMap::new(),
                });
            if let Some(Err(error)) = binds.get(&port.bind) {
                served.unbound.insert(port.bind.port, error.to_string());
            }
        }
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            gateways,
        }
    }

    /// What is served of this Gateway; `None` when nothing is.
    pub fn gateway(&self, name: &ObjectRef) -> Option<&ServedGateway> {
        self.gateways.get(&key(name))
    }
}

/// The fingerprint of a Gateway's configuration, as it is told.
pub fn fingerprint(ir: &Ir, gateway: &ObjectRef) -> String {
    format!("{:016x}", ir.fingerprint(gateway))
}

fn key(gateway: &ObjectRef) -> String {
    format!("{}/{}", gateway.namespace, gateway.name)
}
