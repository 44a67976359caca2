//! What controller and pods say to each other: lines of JSON over one HTTP/2 request, both ways. Knows neither who may
//! connect nor what objects mean.
//!
//! The pod sends `POST` to [`path`], with its ServiceAccount token as bearer token and, when it has a configuration
//! already, [`POSITION`]. The body of the response is [`Update`]s for as long as the connection lasts; the body of the
//! request is [`Report`]s. Lines of a kind that the reader does not know are skipped, so that versions can be mixed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The audience of the ServiceAccount tokens that pods present.
pub const AUDIENCE: &str = "portcullis.dev/controller";
/// The header of a request that tells the [`Position`] that the pod has, such as `5f2c9a…/17`.
pub const POSITION: &str = "portcullis-position";
/// The longest line, in bytes, without its line feed: an object of etcd has at most 1.5 MiB, and JSON may escape it.
pub const MAX_LINE: usize = 8 << 20;

/// The path of a Gateway's stream.
pub fn path(namespace: &str, gateway: &str) -> String {
    format!("/v1alpha1/gateways/{namespace}/{gateway}/stream")
}

/// One state of a Gateway's objects, as one controller process has numbered it. States of different instances cannot be
/// compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The controller process, chosen at random when it starts.
    pub instance: String,
    /// Grows with each change of the Gateway's objects.
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
        let revision = revision.parse().map_err(|_| "the revision is no number")?;
        Ok(Self {
            instance: instance.to_owned(),
            revision,
        })
    }
}

/// A line from the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Update {
    /// The first line. What follows changes the objects of the revision `base`, or makes up everything when there is none.
    /// Comes again, without a base, when a pod is so far behind that everything is less than what it has missed.
    Begin {
        /// The controller process.
        instance: String,
        /// The revision that the pod has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<u64>,
    },
    /// An object is new or has changed: its canonical JSON, with `apiVersion` and `kind`.
    Put(Value),
    /// An object is gone.
    Delete(Deleted),
    /// What has come since the last commit is complete and takes effect together.
    Commit {
        /// Its number.
        revision: u64,
    },
    /// Where the leader serves, which alone writes conditions and so wants the reports: `ADDRESS:PORT`; absent when this is
    /// the leader, or when nobody knows.
    Leader {
        /// Its address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    },
}

/// The name of an object that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// API group, empty for the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A line from a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// What it serves, after binding.
    Serves(Serves),
}

/// What a pod serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Serves {
    /// The state of its Gateway's objects.
    #[serde(flatten)]
    pub position: Position,
    /// Ports that could not be bound, as listeners declare them, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unbound: BTreeMap<u16, String>,
    /// What is wrong with objects that it was given, such as a kind that it cannot read. Bounded by the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_have_these_shapes() {
        let shown = |update: &Update| serde_json::to_value(update).unwrap();
        let instance = || "5f2c".to_owned();
        let begin = |base| Update::Begin {
            instance: instance(),
            base,
        };
        assert_eq!(shown(&begin(None)), json!({"begin": {"instance": "5f2c"}}));
        assert_eq!(
            shown(&begin(Some(3))),
            json!({"begin": {"instance": "5f2c", "base": 3}})
        );
        assert_eq!(
            shown(&Update::Commit { revision: 4 }),
            json!({"commit": {"revision": 4}})
        );
        assert_eq!(
            shown(&Update::Leader { address: None }),
            json!({"leader": {}})
        );
        let serves = Serves {
            position: Position {
                instance: instance(),
                revision: 4,
            },
            unbound: [(80, "taken".to_owned())].into(),
            problems: Vec::new(),
        };
        assert_eq!(
            serde_json::to_value(Report::Serves(serves)).unwrap(),
            json!({"serves": {"instance": "5f2c", "revision": 4, "unbound": {"80": "taken"}}})
        );
    }

    #[test]
    fn positions_are_read_as_they_are_written() {
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
