//! Targets that only one of two versions of a policy has. Those that only a later version has, which is not valid, are refused
//! beside the version that stays in service. Those that a later version no longer has can stay for a while, under the rules that
//! they had. Must not know what policies are for.

use std::mem;
use std::sync::Arc;

use super::access_policy::AccessPolicy;
use super::backend_tls_override::BackendTlsOverride;
use super::client_policy::ClientPolicy;
use super::inherited_policy::SectionTargetRef;
use super::meta::{ObjectMeta, Resource};
use super::object::Object;
use super::policy::{BackendTlsPolicy, PolicyTargetRef};
use super::rate_limit_policy::RateLimitPolicy;
use super::reference::Role;

/// Applies a function to two versions of a policy that protects; `None` for other objects.
macro_rules! pair {
    ($one:expr, $other:expr, $function:ident $(, $argument:expr)*) => {
        match ($one, $other) {
            (Object::AccessPolicy(one), Object::AccessPolicy(other)) => {
                Some($function(one, other $(, $argument)*))
            }
            (Object::ClientPolicy(one), Object::ClientPolicy(other)) => {
                Some($function(one, other $(, $argument)*))
            }
            (Object::RateLimitPolicy(one), Object::RateLimitPolicy(other)) => {
                Some($function(one, other $(, $argument)*))
            }
            (Object::BackendTlsPolicy(one), Object::BackendTlsPolicy(other)) => {
                Some($function(one, other $(, $argument)*))
            }
            (Object::BackendTlsOverride(one), Object::BackendTlsOverride(other)) => {
                Some($function(one, other $(, $argument)*))
            }
            _ => None,
        }
    };
}

impl Object {
    /// Returns this valid object with the targets that only a later version has. `stand_in` takes the place of that version,
    /// which is not valid.
    pub fn with_pending(&self, stand_in: &Self) -> Self {
        let with_pending = pair!(self, stand_in, with_pending);
        with_pending.unwrap_or_else(|| self.clone())
    }

    /// Returns this version of a policy with the targets that only the previous one has, if both have the same rules; `None` if
    /// they have not, if there are none, or if objects of the kind protect nothing.
    pub fn with_targets_of(&self, previous: &Self) -> Option<Self> {
        pair!(self, previous, with_targets_of)?
    }

    /// Returns this version of a policy for nothing but the targets that the later one lacks, under another name; `None` if there
    /// are none, or if objects of the kind protect nothing.
    pub fn for_targets_without(&self, later: &Self, name: &str) -> Option<Self> {
        pair!(self, later, for_targets_without, name)?
    }

    /// Returns what follows for the targets that only a later version has; `None` if there are none.
    pub fn pending_outcome(&self) -> Option<String> {
        let pending = self.pending()?;
        Some(format!(
            "where only the new one applies, {}",
            pending.refused()
        ))
    }

    /// Returns the stand-in for the targets that only a later version has.
    fn pending(&self) -> Option<Self> {
        match self {
            Self::AccessPolicy(policy) => object(&policy.pending),
            Self::ClientPolicy(policy) => object(&policy.pending),
            Self::RateLimitPolicy(policy) => object(&policy.pending),
            Self::BackendTlsPolicy(policy) => object(&policy.pending),
            Self::BackendTlsOverride(policy) => object(&policy.pending),
            _ => None,
        }
    }
}

fn object<P>(policy: &Option<Box<P>>) -> Option<Object>
where
    P: Clone,
    Arc<P>: Into<Object>,
{
    policy.as_deref().map(|it| Arc::new(it.clone()).into())
}

/// A policy that protects requests.
trait Protecting: Clone + PartialEq + Resource {
    type Target: ProtectedTarget;

    fn targets(&self) -> &[Self::Target];

    fn targets_mut(&mut self) -> &mut Vec<Self::Target>;

    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    fn pending(&mut self) -> &mut Option<Box<Self>>;
}

/// Implements [`Protecting`] for kinds with this type of targets.
macro_rules! protecting {
    ($target:ty: $($kind:ty),+) => {
        $(impl Protecting for $kind {
            type Target = $target;

            fn targets(&self) -> &[$target] {
                &self.spec.target_refs
            }

            fn targets_mut(&mut self) -> &mut Vec<$target> {
                &mut self.spec.target_refs
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            fn pending(&mut self) -> &mut Option<Box<Self>> {
                &mut self.pending
            }
        })+
    };
}

protecting!(SectionTargetRef: AccessPolicy, ClientPolicy, RateLimitPolicy);
protecting!(PolicyTargetRef: BackendTlsPolicy, BackendTlsOverride);

/// A target of a policy.
trait ProtectedTarget: Clone {
    /// Reports whether a policy for this target applies to another one.
    fn covers(&self, other: &Self) -> bool;
}

impl ProtectedTarget for SectionTargetRef {
    fn covers(&self, other: &Self) -> bool {
        self.in_role(Role::Target) == other.in_role(Role::Target)
            && is_part(&self.section_name, &other.section_name)
    }
}

impl ProtectedTarget for PolicyTargetRef {
    fn covers(&self, other: &Self) -> bool {
        self.in_role(Role::Target) == other.in_role(Role::Target)
            && is_part(&self.section_name, &other.section_name)
            && is_part(&self.from, &other.from)
    }
}

/// Reports whether a part of an object belongs to another part. None is the whole object.
fn is_part<T: PartialEq>(of: &Option<T>, part: &Option<T>) -> bool {
    of.is_none() || of == part
}

fn with_pending<P>(valid: &Arc<P>, later: &Arc<P>) -> Object
where
    P: Protecting,
    Arc<P>: Into<Object>,
{
    let more = uncovered(later.targets(), valid.targets());
    let mut valid = P::clone(valid);
    *valid.pending() = (!more.is_empty()).then(|| {
        let mut later = P::clone(later);
        *later.targets_mut() = more;
        Box::new(later)
    });
    Arc::new(valid).into()
}

fn with_targets_of<P>(policy: &Arc<P>, previous: &Arc<P>) -> Option<Object>
where
    P: Protecting,
    Arc<P>: Into<Object>,
{
    // Few changes remove targets: only these need a copy of the policy.
    let more = uncovered(previous.targets(), policy.targets());
    (!more.is_empty() && has_rules_of::<P>(policy, previous)).then(|| {
        let mut policy = P::clone(policy);
        policy.targets_mut().extend(more);
        Arc::new(policy).into()
    })
}

/// Reports whether two versions of a policy differ in nothing but their targets, and in metadata that decide nothing.
fn has_rules_of<P: Protecting>(policy: &P, previous: &P) -> bool {
    let mut previous = previous.clone();
    *previous.targets_mut() = policy.targets().to_vec();
    let metadata = previous.metadata_mut();
    *metadata = ObjectMeta {
        // With such fields, requests are refused.
        unknown_fields: mem::take(&mut metadata.unknown_fields),
        ..policy.meta().clone()
    };
    previous == *policy
}

fn for_targets_without<P>(policy: &Arc<P>, later: &Arc<P>, name: &str) -> Option<Object>
where
    P: Protecting,
    Arc<P>: Into<Object>,
{
    let more = uncovered(policy.targets(), later.targets());
    (!more.is_empty()).then(|| {
        let mut policy = P::clone(policy);
        *policy.targets_mut() = more;
        policy.metadata_mut().name = name.into();
        Arc::new(policy).into()
    })
}

/// Returns the targets that none of the known ones covers.
fn uncovered<T: ProtectedTarget>(targets: &[T], known: &[T]) -> Vec<T> {
    let is_uncovered = |target: &&T| !known.iter().any(|it| it.covers(target));
    targets.iter().filter(is_uncovered).cloned().collect()
}
