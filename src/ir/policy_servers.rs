//! The backends that policies name themselves: authorization servers and servers of error pages. Must not know what they are
//! for.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::target::BackendTarget;

/// The servers that a policy names, in its order, by the Gateway that sends the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyServers(pub BTreeMap<ObjectRef, Vec<BackendTarget>>);

impl Serialize for PolicyServers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let servers = self.0.iter();
        serializer.collect_map(servers.map(|(gateway, targets)| (gateway.to_string(), targets)))
    }
}
