//! What the author of a reference probably meant: the name of an object, a listener or a port that resembles one that does
//! not exist. Reads the messages of problems, so that no step of the translation has to know names that it does not look up.
//! Only adds advice to messages: decides nothing.

use std::collections::BTreeSet;

use crate::api::{Kind, Object, nearest};
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

/// What messages say after the name of an object that is absent.
const ABSENT: &str = " does not exist";
/// What messages say between the name of an object and that of a part which it lacks.
const LACKS: [&str; 2] = [" has no listener named ", " has no port named "];

/// Returns the message of a problem, with the names that resemble those of absent objects and parts.
pub(in crate::cli) fn advised(snapshot: &Snapshot, message: String) -> String {
    let absent = message.match_indices(ABSENT);
    let objects = absent.filter_map(|(at, _)| similar_object(snapshot, &message[..at]));
    let lacks = LACKS.iter().filter_map(|lacks| message.split_once(lacks));
    let parts = lacks.filter_map(|(object, part)| similar_part(snapshot, object, part));
    let meant: BTreeSet<String> = objects.chain(parts).collect();
    if meant.is_empty() {
        return message;
    }
    let meant: Vec<_> = meant.into_iter().collect();
    format!("{message}; did you mean {}?", meant.join(" and "))
}

/// Returns the name of an object that resembles the absent one at the end of a text.
fn similar_object(snapshot: &Snapshot, text: &str) -> Option<String> {
    let (kind, absent) = named(text)?;
    let keys = snapshot.keys(kind);
    let others = keys
        .iter()
        .filter(|key| *key.namespace == *absent.namespace && *key.name != *absent.name);
    nearest(&absent.name, others.map(|key| &*key.name)).map(str::to_owned)
}

/// Returns the name of a part that resembles the one at the beginning of `part`, of the object at the end of `object`.
fn similar_part(snapshot: &Snapshot, object: &str, part: &str) -> Option<String> {
    let (_, object) = named(object)?;
    let names: Vec<String> = match snapshot.object(&object)? {
        Object::Gateway(gateway) => {
            let listeners = gateway.spec.listeners.iter();
            listeners.map(|it| it.name.to_string()).collect()
        }
        Object::ListenerSet(set) => {
            let listeners = set.spec.listeners.iter();
            listeners.map(|it| it.name.to_string()).collect()
        }
        Object::Service(service) => {
            let ports = service.spec.ports.iter();
            ports
                .filter_map(|it| Some(it.name.as_ref()?.to_string()))
                .collect()
        }
        _ => return None,
    };
    let absent = part.split([' ', ';', ',']).next()?;
    nearest(absent, names.iter().map(String::as_str)).map(str::to_owned)
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
