//! What the author of a reference probably meant: the name of an object, a listener or a port that resembles one that does
//! not exist. Reads the messages of problems, so that no step of the translation has to know names that it does not look up.
//! Only adds advice to messages: decides nothing.

use std::collections::BTreeSet;

use crate::api::{Kind, nearest};
use crate::ir::ObjectRef;
use crate::status::{ListenerStatus, StatusReport};

/// What messages say after the name of an object that is absent.
const ABSENT: &str = " does not exist";
/// What messages say between the name of an object and that of a part which it lacks.
const LACKS: [&str; 2] = [" has no listener named ", " has no port named "];

/// Names that a reference may mean.
pub trait Names {
    /// Returns the names of the objects of a kind in a namespace.
    fn objects(&self, kind: &Kind, namespace: &str) -> Vec<String>;

    /// Returns the names of the listeners or ports of an object.
    fn parts(&self, object: &ObjectRef) -> Vec<String>;
}

/// The names that a process knows which has no objects: those of Gateways, ListenerSets and their listeners, and of routes.
impl Names for StatusReport {
    fn objects(&self, kind: &Kind, namespace: &str) -> Vec<String> {
        let parents = self.gateways.keys().chain(self.listener_sets.keys());
        let all = parents.chain(self.routes.keys());
        let of_kind = all.filter(|it| *it.kind == *kind.kind && *it.namespace == *namespace);
        of_kind.map(|it| it.name.to_string()).collect()
    }

    fn parts(&self, object: &ObjectRef) -> Vec<String> {
        let of_gateway = self.gateways.get(object).map(|it| &it.listeners);
        let of_set = || self.listener_sets.get(object).map(|it| &it.listeners);
        let listeners = of_gateway.or_else(of_set).into_iter().flatten();
        let name = |listener: &ListenerStatus| listener.name.to_string();
        listeners.map(name).collect()
    }
}

/// Returns the message of a problem, with the names that resemble those of absent objects and parts.
pub(super) fn advised(names: &dyn Names, message: String) -> String {
    match advice(names, &message) {
        Some(advice) => format!("{message}; {advice}"),
        None => message,
    }
}

/// Returns which names resemble those of absent objects and parts in the message of a problem; `None` if there are none.
pub fn advice(names: &dyn Names, message: &str) -> Option<String> {
    let absent = message.match_indices(ABSENT);
    let objects = absent.filter_map(|(at, _)| similar_object(names, &message[..at]));
    let lacks = LACKS.iter().filter_map(|lacks| message.split_once(lacks));
    let parts = lacks.filter_map(|(object, part)| similar_part(names, object, part));
    let meant: BTreeSet<String> = objects.chain(parts).collect();
    if meant.is_empty() {
        return None;
    }
    let meant: Vec<_> = meant.into_iter().collect();
    Some(format!("did you mean {}?", meant.join(" and ")))
}

/// Returns the name of an object that resembles the absent one at the end of a text.
fn similar_object(names: &dyn Names, text: &str) -> Option<String> {
    let (kind, absent) = named(text)?;
    let all = names.objects(kind, &absent.namespace);
    let others = all.iter().filter(|name| **name != *absent.name);
    nearest(&absent.name, others.map(String::as_str)).map(str::to_owned)
}

/// Returns the name of a part that resembles the one at the beginning of `part`, of the object at the end of `object`.
fn similar_part(names: &dyn Names, object: &str, part: &str) -> Option<String> {
    let (_, object) = named(object)?;
    let all = names.parts(&object);
    let absent = part.split([' ', ';', ',']).next()?;
    nearest(absent, all.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns the object whose name is at the end of a text, as `Kind namespace/name`.
fn named(text: &str) -> Option<(&'static Kind, ObjectRef)> {
    let text = text.strip_suffix(", which").unwrap_or(text);
    let mut words = text.rsplitn(3, ' ');
    let (name, kind) = (words.next()?, words.next()?);
    let kind = Kind::all().iter().find(|known| known.kind == kind)?;
    let (namespace, name) = match kind.namespaced {
        true => name.split_once('/')?,
        false => ("", name),
    };
    Some((kind, ObjectRef::new(kind.group, kind.kind, namespace, name)))
}
