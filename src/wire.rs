//! The stream protocol between controller and pods: lines of JSON over one bidirectional HTTP/2 request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Audience of the ServiceAccount tokens that pods present.
pub const AUDIENCE: &str = "portcullis.dev/controller";
/// Request header with the [`Position`] of the pod, such as `5f2c9a…/17`.
pub const POSITION: &str = "portcullis-position";
/// Maximum length of a line in bytes, without its line feed. An object in etcd has at most 1.5 MiB, and JSON may escape
/// it.
pub const MAX_LINE: usize = 8 << 20;

/// Returns the path of a Gateway's stream.
///
/// The pod sends `POST` with its ServiceAccount token as bearer token and, if it already has a configuration, the
/// header [`POSITION`]. The response body carries [`Update`]s for the lifetime of the connection. The request body
/// carries [`Report`]s. Readers skip lines of unknown kinds, so that versions can be mixed.
pub fn path(namespace: &str, gateway: &str) -> String {
    format!("/v1alpha1/gateways/{namespace}/{gateway}/stream")
}

/// A state of a Gateway's objects, as numbered by one controller process. Revisions of different instances cannot be
/// compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Controller process; random, chosen at startup.
    pub instance: String,
    /// Increases with each change of the Gateway's objects.
    pub revision: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.instance, self.revision)
    }
}

impl FromStr for Position {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.rsplit_once('/');
        let (instance, revision) = parts.ok_or("must be INSTANCE/REVISION")?;
        let revision = revision
            .parse()
            .map_err(|_| "the revision is not a number")?;
        Ok(Self {
            instance: instance.to_owned(),
            revision,
        })
    }
}

/// The secrets of session tokens: texts of at least 32 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSecrets {
    /// That of new tokens.
    pub secret: String,
    /// Another one, whose tokens are accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
}

/// A line from the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Update {
    /// The first line. The updates that follow are changes to revision `base`, or the full state if there is no `base`.
    /// Sent again without a base when the controller no longer has the changes that the pod lacks.
    Begin {
        /// Controller process.
        instance: String,
        /// Revision that the pod has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<u64>,
    },
    /// The secrets of the Gateway's session tokens. All of its pods share them.
    SessionSecret(SessionSecrets),
    /// Creates or replaces an object: canonical JSON with `apiVersion` and `kind`.
    Put(Value),
    /// Deletes an object.
    Delete(Deleted),
    /// Atomically applies the updates since the last commit.
    Commit {
        /// Revision of the new state.
        revision: u64,
    },
    /// Address of the leader as `ADDRESS:PORT`. The leader needs the reports, because only the leader writes
    /// conditions. Absent if this controller is the leader, or if the address is unknown.
    Leader {
        /// The address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    },
    /// The ready pods of the Gateway, which share limits, and the HTTP/3 ports that all of them have.
    Pods(ReadyPods),
}

/// The ready pods of a Gateway, in the order that all of them have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyPods {
    /// Name of the pod that this is sent to.
    pub own: String,
    /// Addresses of the ready pods, by name.
    pub ready: BTreeMap<String, IpAddr>,
    /// Ports whose HTTP/3 clients may learn of, as listeners declare them: all ready pods have bound the QUIC port, and the
    /// Services have it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub http3: BTreeSet<u16>,
}

/// Name of a deleted object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A line from a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// The state in service, after its ports are bound and its copy is written.
    Serves(Serves),
    /// A key set that should be fetched again, since a token names a key that it lacks. The controller decides when.
    RefreshKeySet(KeySetName),
}

/// Name of a key set among the objects of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySetName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// State that a pod serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Serves {
    /// Position of the state in service, or of an earlier one: a restarted container begins with no earlier state.
    #[serde(flatten)]
    pub position: Position,
    /// TCP and UDP ports that could not be bound, as listeners declare them, with the error. For controllers that do not know
    /// `binds`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unbound: BTreeMap<u16, String>,
    /// The same by transport, and the QUIC ports; `None` from pods that do not tell transports apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binds: Option<Binds>,
    /// Problems with received objects, such as an unknown kind. The pod bounds their number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Why the position stays that of an earlier state, if that is not only for the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
}

/// Results of binding, by transport. Ports are those that listeners declare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binds {
    /// TCP ports that could not be bound, with the error.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tcp: BTreeMap<u16, String>,
    /// UDP ports of UDP listeners that could not be bound, with the error.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub udp: BTreeMap<u16, String>,
    /// All QUIC ports, with the error of each that could not be bound.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quic: BTreeMap<u16, Option<String>>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn updates_have_the_documented_format() {
        let shown = |update: &Update| serde_json::to_value(update).unwrap();
        let begin = |base| Update::Begin {
            instance: "5f2c".to_owned(),
            base,
        };
        assert_eq!(shown(&begin(None)), json!({"begin": {"instance": "5f2c"}}));
        assert_eq!(
            shown(&begin(Some(3))),
            json!({"begin": {"instance": "5f2c", "base": 3}})
        );
        let secrets = |accepted: Option<&str>| {
            Update::SessionSecret(SessionSecrets {
                secret: "s".to_owned(),
                accepted: accepted.map(str::to_owned),
            })
        };
        assert_eq!(
            shown(&secrets(None)),
            json!({"sessionSecret": {"secret": "s"}})
        );
        assert_eq!(
            shown(&secrets(Some("t"))),
            json!({"sessionSecret": {"secret": "s", "accepted": "t"}})
        );
        assert_eq!(
            shown(&Update::Commit { revision: 4 }),
            json!({"commit": {"revision": 4}})
        );
        assert_eq!(
            shown(&Update::Leader { address: None }),
            json!({"leader": {}})
        );
        let pods = ReadyPods {
            own: "a".to_owned(),
            ready: [("a".to_owned(), [10, 0, 0, 1].into())].into(),
            http3: BTreeSet::new(),
        };
        assert_eq!(
            shown(&Update::Pods(pods.clone())),
            json!({"pods": {"own": "a", "ready": {"a": "10.0.0.1"}}})
        );
        let with_http3 = ReadyPods {
            http3: [443].into(),
            ..pods
        };
        assert_eq!(
            shown(&Update::Pods(with_http3)),
            json!({"pods": {"own": "a", "ready": {"a": "10.0.0.1"}, "http3": [443]}})
        );
    }

    #[test]
    fn reports_have_the_documented_format() {
        let serves = Serves {
            position: Position {
                instance: "5f2c".to_owned(),
                revision: 4,
            },
            unbound: [(80, "taken".to_owned())].into(),
            binds: Some(Binds {
                tcp: [(80, "taken".to_owned())].into(),
                udp: BTreeMap::new(),
                quic: [(443, None), (8443, Some("taken".to_owned()))].into(),
            }),
            problems: Vec::new(),
            behind: Some("read-only".to_owned()),
        };
        let line = json!({"serves": {
            "instance": "5f2c", "revision": 4, "unbound": {"80": "taken"}, "behind": "read-only",
            "binds": {"tcp": {"80": "taken"}, "quic": {"443": null, "8443": "taken"}},
        }});
        let report = Report::Serves(serves);
        assert_eq!(serde_json::to_value(&report).unwrap(), line);
        let read: Report = serde_json::from_slice(line.to_string().as_bytes()).unwrap();
        assert_eq!(read, report);
        let key_set = KeySetName {
            namespace: "shop".to_owned(),
            name: "https://login.example.com/keys".to_owned(),
        };
        assert_eq!(
            serde_json::to_value(Report::RefreshKeySet(key_set)).unwrap(),
            json!({"refreshKeySet": {"namespace": "shop", "name": "https://login.example.com/keys"}})
        );
    }

    /// Pods and controllers of the previous version.
    #[test]
    fn lines_without_transports_and_http3_are_read() {
        let line =
            br#"{"serves": {"instance": "5f2c", "revision": 4, "unbound": {"80": "taken"}}}"#;
        let Ok(Report::Serves(serves)) = serde_json::from_slice(line) else {
            panic!("it is not read");
        };
        assert_eq!((serves.unbound.len(), serves.binds), (1, None));
        let line = br#"{"pods": {"own": "a", "ready": {"a": "10.0.0.1"}}}"#;
        let Ok(Update::Pods(pods)) = serde_json::from_slice(line) else {
            panic!("it is not read");
        };
        assert!(pods.http3.is_empty());
    }

    #[test]
    fn position_round_trips_through_text() {
        let position = Position {
            instance: "5f2c".to_owned(),
            revision: 17,
        };
        assert_eq!(position.to_string().parse(), Ok(position));
        for other in ["", "5f2c", "5f2c/", "5f2c/x", "5f2c/-1"] {
            assert!(other.parse::<Position>().is_err(), "{other}");
        }
    }
}
