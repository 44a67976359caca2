//! GatewayClasses and Gateways of this controller: which they are, their faults, and the ports of their listeners. Must
//! not know routes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use crate::api::Resource;
use crate::api::gateway::{Gateway, GatewayClass};
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{Bind, ObjectRef, Transport};
use crate::status::{Condition, Note};

use super::listener::ListenerDraft;
use super::parameters;
use super::parameters::Granted;
use crate::translate::consumer::ClientCertificate;
use crate::translate::input::{Input, Mode};
use crate::translate::reason::{ConditionType, Fault, Reason, judge};

/// Name of the class that exists implicitly in standalone mode.
const IMPLIED_CLASS: &str = "portcullis";

/// A Gateway while it is translated.
pub(in crate::translate) struct GatewayDraft<'a> {
    pub(in crate::translate) object: &'a Gateway,
    pub(in crate::translate) name: ObjectRef,
    /// Makes `Accepted` false.
    pub(in crate::translate) fault: Option<Fault>,
    /// Whether dedicated data planes serve it. They keep serving it despite a fault: such a fault concerns the
    /// provisioning and the addresses, not the traffic.
    is_dedicated: bool,
    /// Makes `Programmed` false: some of its addresses are not usable.
    pub(super) address_fault: Option<Fault>,
    /// Client certificate for backends, if the Gateway has one.
    pub(in crate::translate) client_certificate: Option<ClientIdentity>,
    /// Message of the condition `InsecureFrontendValidationMode`, if it is true.
    pub(super) insecure_frontend: Option<String>,
    /// Parameters of the Gateway merged over those of its class; `None` if either is invalid.
    pub(in crate::translate) parameters: Option<Granted>,
    /// Requested addresses that are IP addresses or unspecified, in the order of the spec.
    pub(super) requested: Vec<Option<IpAddr>>,
    /// Requested addresses that are IP addresses.
    pub(in crate::translate) usable: Vec<IpAddr>,
    /// Addresses to bind; `None` among them means every address.
    pub(in crate::translate) addresses: Vec<Option<IpAddr>>,
    /// Listeners of the Gateway, then those of its ListenerSets in order of precedence.
    pub(in crate::translate) listeners: Vec<ListenerDraft<'a>>,
    /// The ListenerSets that refer to it, in order of precedence.
    pub(in crate::translate) sets: Vec<SetDraft>,
}

/// A ListenerSet that refers to a Gateway of this controller.
pub(in crate::translate) struct SetDraft {
    pub(in crate::translate) name: ObjectRef,
    pub(in crate::translate) generation: i64,
    /// Range of its listeners among those of the Gateway.
    pub(in crate::translate) listeners: Range<usize>,
    /// Why its listeners are not merged.
    pub(in crate::translate) fault: Option<Fault>,
}

/// The client certificate of a Gateway.
pub(in crate::translate) struct ClientIdentity {
    /// The certificate, or why it cannot be used.
    pub(in crate::translate) certificate: ClientCertificate,
    /// Makes `ResolvedRefs` false, also if the last good certificate stays in use.
    pub(in crate::translate) fault: Option<Fault>,
}

/// A port while it is translated.
pub(in crate::translate) struct PortDraft {
    pub(in crate::translate) bind: Bind,
    /// Indices of its listeners.
    pub(in crate::translate) listeners: Vec<usize>,
}

/// Reports whether a class of this name belongs to this controller.
pub(super) fn is_our_class(input: &Input<'_>, name: &str) -> bool {
    match input.get::<GatewayClass>("", name) {
        Some(class) => class.spec.controller_name == *input.options.controller_name,
        None => input.options.mode == Mode::Standalone && name == IMPLIED_CLASS,
    }
}

/// Returns the conditions of a class; `None` if it does not belong to this controller.
pub(super) fn class_conditions(input: &Input<'_>, name: &ObjectRef) -> Option<Vec<Condition>> {
    let class = input.find::<GatewayClass>(name)?;
    if !is_our_class(input, &name.name) {
        return None;
    }
    let parameters = parameters::of_class(input, class);
    let (kind, generation) = (ConditionType::Accepted, class.metadata.generation);
    let fault = parameters.as_ref().err();
    Some(vec![judge(kind, Reason::Accepted, fault, generation)])
}

/// Returns the note on a Gateway of another class. In a folder, no other controller serves it.
pub(super) fn unserved(input: &Input<'_>, gateway: &Gateway) -> Note {
    let class = &gateway.spec.gateway_class_name;
    let why = match input.get::<GatewayClass>("", class) {
        Some(known) => format!("belongs to controller {}", known.spec.controller_name),
        None => {
            let class = ObjectRef::new(GATEWAY_GROUP, GatewayClass::KIND, "", class);
            input.absence(&class).to_owned()
        }
    };
    let classes = input.in_namespace::<GatewayClass>("");
    let names = classes.map(|class| class.metadata.name.as_str());
    let names: BTreeSet<_> = names.chain([IMPLIED_CLASS]).collect();
    let ours = names.into_iter().filter(|name| is_our_class(input, name));
    let mut ours: Vec<_> = ours.collect();
    if ours.is_empty() {
        ours.push("none");
    }
    Note {
        object: gateway.object_ref(),
        message: format!(
            "not served: spec.gatewayClassName is {class}, which {why}; classes served here: {}",
            ours.join(", ")
        ),
    }
}

/// Returns the draft of a Gateway without ListenerSets; `None` if its class does not belong to this controller.
pub(super) fn draft<'a>(input: &Input<'a>, gateway: &'a Gateway) -> Option<GatewayDraft<'a>> {
    let class = &gateway.spec.gateway_class_name;
    if !is_our_class(input, class) {
        return None;
    }
    let of_class = match input.get::<GatewayClass>("", class) {
        Some(class) => parameters::of_class(input, class),
        None => Ok(Granted::default()),
    };
    let name = gateway.object_ref();
    let listeners = gateway.spec.listeners.iter().enumerate();
    let listeners = listeners
        .map(|(index, spec)| {
            let generation = gateway.metadata.generation;
            ListenerDraft::new(input, spec, &name, generation).check_fields(gateway, index)
        })
        .collect();
    let parameters = match of_class {
        Ok(of_class) => parameters::of_gateway(input, gateway, &of_class),
        Err(fault) => {
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
        sets: Vec::new(),
        name,
    };
    draft.read_addresses();
    if draft.is_dedicated {
        draft.addresses = vec![None];
    }
    Some(draft)
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
    pub(in crate::translate) fn serves(&self, listener: &ListenerDraft<'_>) -> bool {
        self.obstacle().is_none() && !self.addresses.is_empty() && listener.is_servable()
    }

    /// Returns the ports to bind, with their listeners ordered by hostname.
    pub(in crate::translate) fn ports(&self) -> Vec<PortDraft> {
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
pub(in crate::translate) fn overlap(one: Option<IpAddr>, two: Option<IpAddr>) -> bool {
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
