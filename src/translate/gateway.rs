//! GatewayClasses and Gateways of this controller: which they are, their faults, and the ports of their listeners. Must
//! not know routes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::api::Resource;
use crate::api::gateway::Gateway;
use crate::ir::{Bind, ObjectRef, Transport};
use crate::status::{Condition, Note};

use super::backend_tls::ClientCertificate;
use super::listener::ListenerDraft;
use super::parameters::Granted;
use super::reason::{ConditionType, Fault, Reason, judge};
use super::{Input, Mode, parameters};

/// Name of the class that exists implicitly in standalone mode.
const IMPLIED_CLASS: &str = "portcullis";

/// Accepted and refused GatewayClasses of this controller by name, with the parameters of their Gateways or the fault.
#[derive(Default)]
pub(super) struct Classes {
    by_name: BTreeMap<String, Result<Granted, Fault>>,
    pub(super) conditions: BTreeMap<ObjectRef, Vec<Condition>>,
}

impl Classes {
    /// Reports whether a class of this name belongs to this controller.
    pub(super) fn are_ours(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
}

/// A Gateway while it is translated.
pub(super) struct GatewayDraft<'a> {
    pub(super) object: &'a Gateway,
    pub(super) name: ObjectRef,
    /// Makes `Accepted` false.
    pub(super) fault: Option<Fault>,
    /// Whether dedicated data planes serve it. They keep serving it despite a fault: such a fault concerns the
    /// provisioning and the addresses, not the traffic.
    is_dedicated: bool,
    /// Makes `Programmed` false: some of its addresses are not usable.
    pub(super) address_fault: Option<Fault>,
    /// Client certificate for backends, if the Gateway has one.
    pub(super) client_certificate: Option<ClientIdentity>,
    /// Message of the condition `InsecureFrontendValidationMode`, if it is true.
    pub(super) insecure_frontend: Option<String>,
    /// Parameters of the Gateway merged over those of its class; `None` if either is invalid.
    pub(super) parameters: Option<Granted>,
    /// Requested addresses that are IP addresses or unspecified, in the order of the spec.
    pub(super) requested: Vec<Option<IpAddr>>,
    /// Requested addresses that are IP addresses.
    pub(super) usable: Vec<IpAddr>,
    /// Addresses to bind; `None` among them means every address.
    pub(super) addresses: Vec<Option<IpAddr>>,
    /// Listeners of the Gateway, then those of its ListenerSets in order of precedence.
    pub(super) listeners: Vec<ListenerDraft<'a>>,
}

/// The client certificate of a Gateway.
pub(super) struct ClientIdentity {
    /// The certificate, or why it cannot be used.
    pub(super) certificate: ClientCertificate,
    /// Makes `ResolvedRefs` false, also if the last good certificate stays in use.
    pub(super) fault: Option<Fault>,
}

/// A port while it is translated.
pub(super) struct PortDraft {
    pub(super) bind: Bind,
    pub(super) gateway: ObjectRef,
    /// Indices of its listeners.
    pub(super) listeners: Vec<usize>,
}

/// Returns the classes of this controller.
pub(super) fn classes(input: &Input<'_>) -> Classes {
    let mut classes = Classes::default();
    for class in input.snapshot.gateway_classes.iter() {
        if class.spec.controller_name != *input.options.controller_name {
            continue;
        }
        let parameters = parameters::of_class(input, class);
        let generation = class.metadata.generation;
        let accepted = judge(
            ConditionType::Accepted,
            Reason::Accepted,
            parameters.as_ref().err(),
            generation,
        );
        classes
            .conditions
            .insert(class.object_ref(), vec![accepted]);
        let name = class.metadata.name.clone();
        classes.by_name.insert(name, parameters);
    }
    let unclaimed = input
        .snapshot
        .gateway_classes
        .get("", IMPLIED_CLASS)
        .is_none();
    if input.options.mode == Mode::Standalone && unclaimed {
        let name = IMPLIED_CLASS.to_owned();
        classes.by_name.insert(name, Ok(Granted::default()));
    }
    classes
}

/// Returns drafts of the Gateways of our classes, oldest first, then by namespace and name.
pub(super) fn ours<'a>(input: &Input<'a>, classes: &Classes) -> Vec<GatewayDraft<'a>> {
    let all = input.snapshot.gateways.iter();
    let mut gateways: Vec<_> = all
        .filter_map(|gateway| {
            let class = classes.by_name.get(&gateway.spec.gateway_class_name)?;
            Some(draft(input, gateway, class))
        })
        .collect();
    // The sort is stable, and `Objects` iterates by namespace and name.
    gateways.sort_by_key(|gateway| gateway.object.metadata.creation_timestamp);
    gateways
}

/// Returns notes on Gateways of other classes. In a folder, no other controller serves them.
pub(super) fn unserved(input: &Input<'_>, classes: &Classes) -> Vec<Note> {
    let unserved = input.snapshot.gateways.iter().filter(|gateway| {
        !classes
            .by_name
            .contains_key(&gateway.spec.gateway_class_name)
    });
    let ours: Vec<_> = classes.by_name.keys().map(String::as_str).collect();
    let ours = if ours.is_empty() {
        "none".to_owned()
    } else {
        ours.join(", ")
    };
    unserved
        .map(|gateway| {
            let class = &gateway.spec.gateway_class_name;
            let known = input.snapshot.gateway_classes.get("", class);
            let why = match known {
                Some(known) => format!("belongs to controller {}", known.spec.controller_name),
                None => "does not exist".to_owned(),
            };
            Note {
                object: gateway.object_ref(),
                message: format!(
                    "not served: spec.gatewayClassName is {class}, which {why}; classes served here: {ours}"
                ),
            }
        })
        .collect()
}

fn draft<'a>(
    input: &Input<'a>,
    gateway: &'a Gateway,
    class: &Result<Granted, Fault>,
) -> GatewayDraft<'a> {
    let name = gateway.object_ref();
    let listeners = gateway.spec.listeners.iter();
    let listeners = listeners
        .map(|spec| ListenerDraft::new(spec, &name, gateway.metadata.generation))
        .collect();
    let parameters = match class {
        Ok(of_class) => parameters::of_gateway(input, gateway, of_class),
        Err(fault) => {
            let class = &gateway.spec.gateway_class_name;
            let message = format!("GatewayClass {class} is not accepted: {}", fault.message);
            Err(Fault::new(fault.reason, message))
        }
    };
    let mut draft = GatewayDraft {
        object: gateway,
        fault: parameters.as_ref().err().cloned(),
        is_dedicated: input.options.mode == Mode::Dedicated,
        address_fault: None,
        client_certificate: None,
        insecure_frontend: None,
        parameters: parameters.ok(),
        requested: Vec::new(),
        usable: Vec::new(),
        addresses: Vec::new(),
        listeners,
        name,
    };
    draft.read_addresses();
    if draft.is_dedicated {
        draft.addresses = vec![None];
    }
    draft
}

impl GatewayDraft<'_> {
    /// Returns the listeners of the Gateway, without those of ListenerSets.
    pub(super) fn own_listeners(&self) -> &[ListenerDraft<'_>] {
        &self.listeners[..self.object.spec.listeners.len()]
    }

    /// Returns the fault that prevents the whole Gateway from being served.
    pub(super) fn obstacle(&self) -> Option<&Fault> {
        self.fault.as_ref().filter(|_| !self.is_dedicated)
    }

    /// Reports whether a listener of this Gateway can be served.
    pub(super) fn serves(&self, listener: &ListenerDraft<'_>) -> bool {
        self.obstacle().is_none() && !self.addresses.is_empty() && listener.is_servable()
    }

    /// Returns the ports to bind, with their listeners ordered by hostname.
    pub(super) fn ports(&self) -> Vec<PortDraft> {
        let mut by_port: BTreeMap<(u16, Transport), Vec<usize>> = BTreeMap::new();
        for (index, listener) in self.listeners.iter().enumerate() {
            if self.serves(listener) {
                by_port.entry(listener.port()).or_default().push(index);
            }
        }
        let mut ports = Vec::new();
        for ((port, transport), mut listeners) in by_port {
            let draft = |index: &usize| &self.listeners[*index];
            listeners.sort_by(|one, two| draft(one).hostname.cmp(&draft(two).hostname));
            ports.extend(self.addresses.iter().map(|address| PortDraft {
                bind: Bind {
                    address: *address,
                    port,
                    transport,
                },
                gateway: self.name.clone(),
                listeners: listeners.clone(),
            }));
        }
        ports
    }

    fn read_addresses(&mut self) {
        let requested = &self.object.spec.addresses;
        if requested.is_empty() {
            self.addresses.push(None);
            return;
        }
        let mut bad = Vec::new();
        for (index, address) in requested.iter().enumerate() {
            if address.kind != "IPAddress" {
                self.fault.get_or_insert(Fault::new(
                    Reason::UnsupportedAddress,
                    format!(
                        "spec.addresses[{index}].type is {}; only IPAddress is supported",
                        address.kind
                    ),
                ));
                continue;
            }
            match address.value.as_deref().filter(|value| !value.is_empty()) {
                None => self.addresses.push(None),
                Some(value) => match value.parse::<IpAddr>() {
                    Ok(ip) => self.addresses.push(Some(ip.to_canonical())),
                    Err(_) => bad.push(format!("spec.addresses[{index}].value {value:?}")),
                },
            }
        }
        self.requested = self.addresses.clone();
        self.usable = self.addresses.iter().flatten().copied().collect();
        self.addresses = without_covered(&self.addresses);
        if !bad.is_empty() {
            self.address_fault = Some(Fault::new(
                Reason::AddressNotUsable,
                format!(
                    "{} is not an IP address; write one that this machine has",
                    bad.join(", ")
                ),
            ));
        }
    }
}

/// Reports whether two binds would share an address. `::` binds IPv6 only.
pub(super) fn overlap(one: Option<IpAddr>, two: Option<IpAddr>) -> bool {
    let (Some(one), Some(two)) = (one, two) else {
        return true;
    };
    let wild = one.is_unspecified() || two.is_unspecified();
    one == two || (wild && one.is_ipv4() == two.is_ipv4())
}

/// Returns the addresses without duplicates and without those that a wildcard address in the list covers.
fn without_covered(addresses: &[Option<IpAddr>]) -> Vec<Option<IpAddr>> {
    let width = |address: &Option<IpAddr>| address.map_or(2, |ip| u8::from(ip.is_unspecified()));
    let mut ordered = addresses.to_vec();
    ordered.sort_by_key(|address| (Reverse(width(address)), *address));
    let mut kept: Vec<Option<IpAddr>> = Vec::new();
    for address in ordered {
        if !kept.iter().any(|wider| overlap(*wider, address)) {
            kept.push(address);
        }
    }
    kept
}
