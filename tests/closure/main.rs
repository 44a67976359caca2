//! Requirements of a Gateway's closure: translating it gives the same result for the Gateway as translating the
//! cluster; it contains only those Secrets, and of them only those keys, that
//! accepted objects of the Gateway use; and incremental updates give the same closure
//! as a new start.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod api_versions;
mod backends;
mod budgets;
mod contents;
mod credentials;
mod filters;
mod inherited_policies;
mod limits;
mod listener_sets;
mod objects;
mod permitted;
mod properties;
mod refused;
mod releases;
mod round_trip;
mod secrets;
mod stories;
mod strangers;
mod telemetry_policies;
mod traffic_policies;
mod xbackends;

use portcullis::api::{Kind, Object};
use portcullis::snapshot::Snapshot;
use serde_json::Value;

/// Decodes an object without validation: closures must accept objects that no API server would store.
fn decode(value: &Value) -> Object {
    let text = |name: &str| value[name].as_str().unwrap();
    let kind = Kind::find_streamed(text("apiVersion"), text("kind")).unwrap();
    kind.decode(value).unwrap()
}

fn snapshot(values: impl IntoIterator<Item = Value>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for value in values {
        snapshot.insert(decode(&value));
    }
    snapshot
}
