//! What a Gateway's closure has to be: translating it gives what translating the cluster gives for that Gateway, no Secret
//! is in it that the Gateway's own objects may not use, and following changes ends where starting anew ends.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backends;
mod contents;
mod filters;
mod objects;
mod properties;
mod releases;
mod round_trip;
mod stories;
mod traffic_policies;
mod xbackends;

use portcullis::api::{Kind, Object};
use portcullis::snapshot::Snapshot;
use serde_json::Value;

/// Reads an object without validation: closures have to bear what no API server would store.
fn decode(value: &Value) -> Object {
    let text = |name: &str| value[name].as_str().unwrap();
    let kind = Kind::find(text("apiVersion"), text("kind")).unwrap();
    kind.decode(value).unwrap()
}

fn snapshot(values: impl IntoIterator<Item = Value>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for value in values {
        snapshot.insert(decode(&value));
    }
    snapshot
}
