//! What policies for Gateways, ListenerSets and routes have in common (GEP-713, inherited policies): targets in their own
//! namespace, a strategy, and the readable parts of one that is not valid. Must not know what policies are for.

use serde::{Deserialize, Serialize};

use super::meta::Resource;
use super::reference::{Found, ReferenceField, Role, shapes};

/// A policy that applies to its target and to everything below it.
pub trait InheritedPolicy: Resource {
    /// Returns the targets.
    fn target_refs(&self) -> &[SectionTargetRef];

    /// Reports whether what it sets cannot be replaced below.
    fn overrides(&self) -> bool;

    /// Returns the further targets of a later version that is not valid, if this kind protects requests.
    fn pending(&self) -> Option<&Self> {
        None
    }
}

/// Implements [`InheritedPolicy`] for a kind with targets and a strategy in its spec. A kind that protects requests names its
/// field for a later version.
macro_rules! inherited {
    ($kind:ty $(, $pending:ident)?) => {
        impl InheritedPolicy for $kind {
            fn target_refs(&self) -> &[SectionTargetRef] {
                &self.spec.target_refs
            }

            fn overrides(&self) -> bool {
                self.spec.strategy == Strategy::Overrides
            }

            $(fn pending(&self) -> Option<&Self> {
                self.$pending.as_deref()
            })?
        }
    };
}
pub(super) use inherited;

/// A target of a policy, in its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SectionTargetRef {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// A listener, or a rule of a route; absent means the whole object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

shapes! {
    SectionTargetRef: it => None, None;
}

/// Visits the targets of a policy.
pub(super) fn targets(of_policy: &[SectionTargetRef], found: &mut Found<'_>) {
    for target in of_policy {
        found(target.in_role(Role::Target));
    }
}

/// How a policy relates to those below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Strategy {
    /// More specific policies may replace what it sets.
    #[default]
    Defaults,
    /// They may not.
    Overrides,
}

/// The readable parts of a policy that is not valid, besides its targets and its strategy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Unreadable {
    /// Why it is not valid.
    pub reason: String,
    /// The other fields that the spec sets, by their names.
    pub sections: Vec<String>,
}
