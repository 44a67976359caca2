//! Services as load balancers of ReleaseBackends: the configuration with key `v1.Service`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::super::reason::{Fault, Reason};
use super::kind::{Balanced, LoadBalancer, LoadBalancerKind, PodSelection};
use super::load_balancer::path;
use crate::api::Resource;
use crate::api::core::Service;
use crate::ir::ObjectRef;
use crate::translate::input::Input;

/// The key of the kind Service.
pub(super) const GVK: &str = "v1.Service";

pub(super) const LOAD_BALANCER: LoadBalancerKind = LoadBalancerKind {
    read,
    marked,
    marks: "the label shipper-lb: production or portcullis.dev/lb: production",
    find,
};

/// Labels of the default load balancer, with the value `production`. The first is the label of Shipper.
const MARKS: [&str; 2] = ["shipper-lb", "portcullis.dev/lb"];
const PRODUCTION: &str = "production";

fn service(namespace: &str, name: &str) -> ObjectRef {
    ObjectRef::new(Service::GROUP, Service::KIND, namespace, name)
}

fn read(namespace: &str, value: &Value) -> Result<LoadBalancer, Vec<String>> {
    let Some(fields) = value.as_object() else {
        return Err(vec![
            " is not an object; its fields are name, selector and removeKeys".to_owned(),
        ]);
    };
    let mut reader = Reader {
        fields,
        faults: Vec::new(),
    };
    let name = reader.name();
    let selector = reader.selector();
    let keys = reader.remove_keys();
    reader.refuse_others();
    let pods = match (selector.is_empty(), keys.is_empty()) {
        (true, true) => PodSelection::OfObject,
        (false, true) => PodSelection::Labels(selector),
        (true, false) => PodSelection::WithoutKeys(keys),
        (false, false) => {
            let fault = ".selector and .removeKeys exclude each other: a selector replaces that of the Service";
            reader.faults.push(fault.to_owned());
            PodSelection::OfObject
        }
    };
    if !reader.faults.is_empty() {
        return Err(reader.faults);
    }
    let object = service(namespace, &name);
    Ok(LoadBalancer { object, pods })
}

/// Parses a configuration. A null means the same as an absent field.
struct Reader<'a> {
    fields: &'a Map<String, Value>,
    faults: Vec<String>,
}

impl Reader<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }

    fn name(&mut self) -> String {
        match self.get("name") {
            Some(Value::String(name)) if !name.is_empty() => return name.clone(),
            None => {
                self.fault(".name is missing; set it to the name of a Service in the namespace")
            }
            Some(_) => self.fault(".name must be the name of a Service in the namespace"),
        }
        String::new()
    }

    fn selector(&mut self) -> BTreeMap<String, String> {
        let Some(value) = self.get("selector") else {
            return BTreeMap::new();
        };
        let label =
            |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        let labels = value.as_object();
        match labels.and_then(|it| it.iter().map(label).collect()) {
            Some(labels) => labels,
            None => {
                self.fault(".selector must be a map of labels to strings");
                BTreeMap::new()
            }
        }
    }

    fn remove_keys(&mut self) -> BTreeSet<String> {
        let Some(value) = self.get("removeKeys") else {
            return BTreeSet::new();
        };
        let keys = value.as_array();
        let text = |it: &Value| it.as_str().map(str::to_owned);
        match keys.and_then(|it| it.iter().map(text).collect()) {
            Some(keys) => keys,
            None => {
                self.fault(".removeKeys must be a list of label keys");
                BTreeSet::new()
            }
        }
    }

    fn refuse_others(&mut self) {
        let is_known = |name: &str| ["name", "selector", "removeKeys"].contains(&name);
        let unknown = self.fields.keys().filter(|name| !is_known(name));
        let fault =
            |name| format!(".{name} is unknown; the fields are name, selector and removeKeys");
        let faults: Vec<_> = unknown.map(fault).collect();
        self.faults.extend(faults);
    }
}

fn marked(input: &Input<'_>, namespace: &str) -> Vec<LoadBalancer> {
    let services = input.in_namespace::<Service>(namespace);
    let is_marked = |service: &Service| {
        let labels = &service.metadata.labels;
        let mut marks = MARKS.iter().filter_map(|mark| labels.get(*mark));
        marks.any(|value| value == PRODUCTION)
    };
    let marked = services.filter(|service| is_marked(service));
    let load_balancer = |service: &Service| LoadBalancer {
        object: service.object_ref(),
        pods: PodSelection::OfObject,
    };
    marked.map(|service| load_balancer(service)).collect()
}

fn find<'a>(input: &Input<'a>, load_balancer: &LoadBalancer) -> Result<Balanced<'a>, Fault> {
    let LoadBalancer { object, pods } = load_balancer;
    let fault = |reason, why: &str| Fault::new(reason, format!("{object} {why}"));
    let Some(service) = input.find::<Service>(object) else {
        return Err(fault(Reason::BackendNotFound, input.absence(object)));
    };
    if is_external(service) {
        let why = "is of type ExternalName, which has no pods; name a Service with pods";
        return Err(fault(Reason::InvalidKind, why));
    }
    let labels = match pods {
        PodSelection::OfObject => None,
        PodSelection::Labels(labels) => Some(labels.clone()),
        PodSelection::WithoutKeys(keys) => Some(without(service, keys)?),
    };
    Ok(Balanced {
        ports: &service.spec.ports,
        labels,
    })
}

/// Returns the selector of a Service without some keys. An empty result is refused: it would select all pods.
fn without(service: &Service, keys: &BTreeSet<String>) -> Result<BTreeMap<String, String>, Fault> {
    let field = format!("{}.removeKeys", path(GVK));
    let invalid = |why: String| Fault::new(Reason::Invalid, why);
    let name = service.object_ref();
    if service.spec.selector.is_empty() {
        let why = format!("{field}: {name} has no selector to remove keys from; omit removeKeys");
        return Err(invalid(why));
    }
    let mut labels = BTreeMap::clone(&service.spec.selector);
    labels.retain(|key, _| !keys.contains(key));
    if labels.is_empty() {
        let why =
            format!("{field}: it removes every key of the selector of {name}; keep at least one");
        return Err(invalid(why));
    }
    Ok(labels)
}

/// Reports whether a Service is a DNS name without endpoints.
pub(super) fn is_external(service: &Service) -> bool {
    service.spec.kind.as_deref() == Some("ExternalName")
}
