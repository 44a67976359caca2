//! Targets of two versions of a policy. Those that only a later version has, which is not valid, are refused beside the version
//! that stays in service. Those that a later version no longer has can stay for a while under the rules that they had, and so can
//! those that both have. Must not know what policies are for.

use std::sync::Arc;

use super::access_policy::{AccessPolicy, AccessSpec};
use super::backend_tls_policy::{
    BackendTlsOverride, BackendTlsPolicy, BackendTlsSpec, PolicyTargetRef,
};
use super::client_policy::{ClientPolicy, ClientSpec};
use super::inherited_policy::SectionTargetRef;
use super::meta::ObjectMeta;
use super::object::Object;
use super::rate_limit_policy::{RateLimitPolicy, RateLimitSpec};
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

    /// Reports whether this version of a policy has targets that the later one lacks. `false` if objects of the kind protect
    /// nothing.
    pub fn has_targets_without(&self, later: &Self) -> bool {
        pair!(self, later, has_targets_without).unwrap_or_default()
    }

    /// Returns this version of a policy for nothing but the targets that the later one lacks, under another name; `None` if there
    /// are none, or if objects of the kind protect nothing.
    pub fn for_targets_without(&self, later: &Self, name: &str) -> Option<Self> {
        pair!(self, later, for_targets_without, name)?
    }

    /// Returns this version of a policy for nothing but the targets that the later one has, too; `None` if there are none, or if
    /// objects of the kind protect nothing.
    pub fn for_targets_of(&self, later: &Self) -> Option<Self> {
        pair!(self, later, for_targets_of)?
    }

    /// Returns this version of a policy with the metadata of another one; `None` if objects of the kind protect nothing.
    pub fn with_metadata_of(&self, other: &Self) -> Option<Self> {
        pair!(self, other, with_metadata_of)
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
    type Target: ProtectedTarget;

    /// Reports whether two versions differ in nothing but their targets, and in metadata that do not change what is refused.
    fn has_rules_of(&self, other: &Self) -> bool;

    fn targets(&self) -> &[Self::Target];

    fn targets_mut(&mut self) -> &mut Vec<Self::Target>;

    fn metadata(&self) -> &ObjectMeta;

    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    fn pending(&mut self) -> &mut Option<Box<Self>>;
}

/// Implements [`Protecting`] for a kind: its fields besides metadata and spec, its type of spec with the fields besides the
/// targets, and the type of targets. A field that is missing here fails to compile.
macro_rules! protecting {
    ($kind:ident: $($part:ident),+; $spec:ident: $($field:ident),+; $target:ty) => {
        impl Protecting for $kind {
            type Target = $target;

            fn has_rules_of(&self, other: &Self) -> bool {
                let Self { metadata, spec, $($part),+ } = self;
                let $spec { target_refs: _, $($field),+ } = spec;
                // Requests are refused because of unknown fields.
                metadata.unknown_fields == other.metadata.unknown_fields
                    $(&& *$part == other.$part)+
                    $(&& *$field == other.spec.$field)+
            }

            fn targets(&self) -> &[$target] {
                &self.spec.target_refs
            }

            fn targets_mut(&mut self) -> &mut Vec<$target> {
                &mut self.spec.target_refs
            }

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            fn pending(&mut self) -> &mut Option<Box<Self>> {
                &mut self.pending
            }
        }
    };
}

protecting! {
    AccessPolicy: unreadable, pending, withheld;
    AccessSpec: strategy, ip_rules, basic, api_key, jwt, oidc, external, require, authorization;
    SectionTargetRef
}
protecting! {
    ClientPolicy: unreadable, pending;
    ClientSpec: strategy, proxy_protocol, client_ip, timeouts, connections, headers, http2, http3, tls, path;
    SectionTargetRef
}
protecting! {
    RateLimitPolicy: unreadable, pending;
    RateLimitSpec: strategy, rules, response;
    SectionTargetRef
}
protecting! {
    BackendTlsPolicy: unreadable, pending;
    BackendTlsSpec: mode, validation, options;
    PolicyTargetRef
}
protecting! {
    BackendTlsOverride: unreadable, pending;
    BackendTlsSpec: mode, validation, options;
    PolicyTargetRef
}

/// A target of a policy.
trait ProtectedTarget: Clone + PartialEq {
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
    let more: Vec<_> = uncovered(later.targets(), valid.targets())
        .cloned()
        .collect();
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
    (has_targets_without(previous, policy) && policy.has_rules_of(previous)).then(|| {
        let mut joined = P::clone(policy);
        let more = uncovered(previous.targets(), policy.targets());
        joined.targets_mut().extend(more.cloned());
        Arc::new(joined).into()
    })
}

fn has_targets_without<P: Protecting>(policy: &Arc<P>, later: &Arc<P>) -> bool {
    let mut more = uncovered(policy.targets(), later.targets());
    more.next().is_some()
}

fn for_targets_without<P>(policy: &Arc<P>, later: &Arc<P>, name: &str) -> Option<Object>
where
    P: Protecting,
    Arc<P>: Into<Object>,
{
    has_targets_without(policy, later).then(|| {
        let mut rest = P::clone(policy);
        let more = uncovered(policy.targets(), later.targets());
        *rest.targets_mut() = more.cloned().collect();
        rest.metadata_mut().name = name.into();
        Arc::new(rest).into()
    })
}

fn for_targets_of<P>(policy: &Arc<P>, later: &Arc<P>) -> Option<Object>
where
    P: Protecting,
    Arc<P>: Into<Object>,
{
    let whole = covered(policy.targets(), later.targets());
    let parts = covered(later.targets(), policy.targets());
    let parts = parts.filter(|part| !policy.targets().contains(part));
    let common: Vec<_> = whole.chain(parts).cloned().collect();
    (!common.is_empty()).then(|| {
        let mut policy = P::clone(policy);
        *policy.targets_mut() = common;
        Arc::new(policy).into()
    })
}

fn with_metadata_of<P>(policy: &Arc<P>, other: &Arc<P>) -> Object
where
    P: Protecting,
    Arc<P>: Into<Object>,
{
    let mut policy = P::clone(policy);
    *policy.metadata_mut() = other.metadata().clone();
    Arc::new(policy).into()
}

/// Returns the targets that one of the known ones covers.
fn covered<'a, T: ProtectedTarget>(
    targets: &'a [T],
    known: &'a [T],
) -> impl Iterator<Item = &'a T> {
    let is_covered = move |target: &&T| known.iter().any(|it| it.covers(target));
    targets.iter().filter(is_covered)
}

/// Returns the targets that none of the known ones covers.
fn uncovered<'a, T: ProtectedTarget>(
    targets: &'a [T],
    known: &'a [T],
) -> impl Iterator<Item = &'a T> {
    let is_uncovered = move |target: &&T| !known.iter().any(|it| it.covers(target));
    targets.iter().filter(is_uncovered)
}
