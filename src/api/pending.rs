//! The version of a policy before one that is not valid. It stays in service, but says nothing of the targets that only the
//! later version has: their requests are refused. Must not know what policies are for.

use std::sync::Arc;

use super::access_policy::AccessPolicy;
use super::backend_tls_override::BackendTlsOverride;
use super::client_policy::ClientPolicy;
use super::inherited_policy::SectionTargetRef;
use super::object::Object;
use super::policy::{BackendTlsPolicy, PolicyTargetRef};
use super::rate_limit_policy::RateLimitPolicy;

impl Object {
    /// Returns this valid object with the targets that only a later version has. `stand_in` takes the place of that version,
    /// which is not valid.
    pub fn with_pending(&self, stand_in: &Self) -> Self {
        match (self, stand_in) {
            (Self::AccessPolicy(it), Self::AccessPolicy(later)) => with_pending(it, later).into(),
            (Self::ClientPolicy(it), Self::ClientPolicy(later)) => with_pending(it, later).into(),
            (Self::RateLimitPolicy(it), Self::RateLimitPolicy(later)) => {
                with_pending(it, later).into()
            }
            (Self::BackendTlsPolicy(it), Self::BackendTlsPolicy(later)) => {
                with_pending(it, later).into()
            }
            (Self::BackendTlsOverride(it), Self::BackendTlsOverride(later)) => {
                with_pending(it, later).into()
            }
            _ => self.clone(),
        }
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
trait Protecting: Clone {
    type Target: Target;

    fn targets(&mut self) -> &mut Vec<Self::Target>;

    fn pending(&mut self) -> &mut Option<Box<Self>>;
}

/// Implements [`Protecting`] for kinds with this type of targets.
macro_rules! protecting {
    ($target:ty: $($kind:ty),+) => {
        $(impl Protecting for $kind {
            type Target = $target;

            fn targets(&mut self) -> &mut Vec<$target> {
                &mut self.spec.target_refs
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
trait Target: Sized {
    /// Reports whether a policy for this target applies to another one.
    fn covers(&self, other: &Self) -> bool;
}

impl Target for SectionTargetRef {
    fn covers(&self, other: &Self) -> bool {
        self.group == other.group
            && self.kind == other.kind
            && self.name == other.name
            && is_part(&self.section_name, &other.section_name)
    }
}

impl Target for PolicyTargetRef {
    fn covers(&self, other: &Self) -> bool {
        self.group == other.group
            && self.kind == other.kind
            && self.namespace == other.namespace
            && self.name == other.name
            && is_part(&self.section_name, &other.section_name)
            && is_part(&self.from, &other.from)
    }
}

/// Reports whether a part of an object belongs to another part. None is the whole object.
fn is_part<T: PartialEq>(of: &Option<T>, part: &Option<T>) -> bool {
    of.is_none() || of == part
}

fn with_pending<P: Protecting>(valid: &Arc<P>, later: &Arc<P>) -> Arc<P> {
    let (mut valid, mut later) = (P::clone(valid), P::clone(later));
    let known = valid.targets();
    let targets = later.targets();
    targets.retain(|target| !known.iter().any(|it| it.covers(target)));
    let has_more = !targets.is_empty();
    *valid.pending() = has_more.then(|| Box::new(later));
    Arc::new(valid)
}
