//! The names of objects, listeners and ports that a reference may mean.

use crate::api::{Kind, Object};
use crate::explain::Names;
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

impl Names for Snapshot {
    fn objects(&self, kind: &Kind, namespace: &str) -> Vec<String> {
        let keys = self.keys(kind).into_iter();
        let of_namespace = keys.filter(|key| *key.namespace == *namespace);
        of_namespace.map(|key| key.name.to_string()).collect()
    }

    fn parts(&self, object: &ObjectRef) -> Vec<String> {
        match self.object(object) {
            Some(Object::Gateway(gateway)) => {
                let listeners = gateway.spec.listeners.iter();
                listeners.map(|it| it.name.to_string()).collect()
            }
            Some(Object::ListenerSet(set)) => {
                let listeners = set.spec.listeners.iter();
                listeners.map(|it| it.name.to_string()).collect()
            }
            Some(Object::Service(service)) => {
                let ports = service.spec.ports.iter();
                ports
                    .filter_map(|it| Some(it.name.as_ref()?.to_string()))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}
