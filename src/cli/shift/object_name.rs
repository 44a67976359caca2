//! The name of a ReleaseBackend on the command line and in messages.

use std::fmt;
use std::str::FromStr;

use crate::settings::NamespacedName;

/// Namespace and name of a ReleaseBackend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectName {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl FromStr for ObjectName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let NamespacedName { namespace, name } = text.parse()?;
        Ok(Self { namespace, name })
    }
}

impl ObjectName {
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseBackend {}", self.path())
    }
}
