//! The document of certificates: those of listeners, in order of their ends, each once.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::counters::time;
use super::query::Query;
use crate::table::Table;

/// Maximum number of listeners that are named for a certificate.
const MAX_USERS: usize = 20;

/// A certificate, in order of its end.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    /// In seconds since 1970.
    end: i64,
    source: String,
    fingerprint: &'a str,
}

/// Where a certificate is used.
struct Use<'a> {
    names: &'a [Box<str>],
    listeners: Vec<String>,
}

/// The list of certificates.
pub(super) fn list(table: &Table, query: &Query) -> Value {
    let now = Timestamp::now().as_second();
    let text = |(key, used): &(Key<'_>, Use<'_>)| {
        let (names, listeners) = (used.names.join(" "), used.listeners.join(" "));
        format!("{} {} {names} {listeners}", key.source, key.fingerprint)
    };
    let view = |(key, used): (Key<'_>, Use<'_>)| {
        let shown = used.listeners.len().min(MAX_USERS);
        json!({
            "source": key.source,
            "expires": time(key.end),
            "expiresInSeconds": key.end - now,
            "names": used.names,
            "sha256": key.fingerprint,
            "listeners": used.listeners.len(),
            "usedBy": used.listeners[..shown],
        })
    };
    let part = query.part(by_end(table).into_iter(), text, view);
    json!({"total": part.total, "certificates": part.items})
}

fn by_end(table: &Table) -> BTreeMap<Key<'_>, Use<'_>> {
    let mut all: BTreeMap<Key<'_>, Use<'_>> = BTreeMap::new();
    let ports = table.ir.ports.iter();
    for listener in ports.flat_map(|port| &port.listeners) {
        for one in listener.tls().into_iter().flat_map(|tls| &tls.certificates) {
            let key = Key {
                end: one.not_after,
                source: one.source.to_string(),
                fingerprint: &one.fingerprint,
            };
            let used = all.entry(key).or_insert_with(|| Use {
                names: &one.names,
                listeners: Vec::new(),
            });
            used.listeners.push(listener.key.to_string());
        }
    }
    all
}
