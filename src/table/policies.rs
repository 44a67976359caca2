//! What policies require of the requests of a listener or a rule, with state that survives configuration changes. Must not
//! know how a request arrives.

use std::sync::Arc;

use super::authentication::{Authentication, Authenticators};
use super::authorization::{self, AuthorizedRequest};
use super::limits::{CountedLimits, LimitPhase, LimitedRequest, Limiters, OverLimit, WithinLimits};
use super::protected;
use crate::ir::authorization::Action;
use crate::ir::limit::Limits;
use crate::ir::policy::{Enforced, Policies as IrPolicies};
use crate::ir::protected_headers::ProtectedHeaders;
use crate::runtime::monotonic;

/// The state of all policies in service.
#[derive(Clone, Debug, Default)]
pub(super) struct PolicyStates {
    pub(super) limiters: Limiters,
    pub(super) authenticators: Authenticators,
}

/// What policies require of the requests of a listener or a rule.
#[derive(Debug)]
pub struct Policies {
    /// What they require.
    pub ir: Arc<IrPolicies>,
    limits: Option<CountedLimits>,
    authentication: Option<Authentication>,
    /// The headers that only the proxy may say, or that it decides by.
    pub(super) protected: Option<Arc<ProtectedHeaders>>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
pub enum LimitRefusal<'a> {
    /// It is over a limit.
    Exceeded(OverLimit<'a>),
    /// A policy is broken.
    Broken,
}

/// A policy is broken: nothing may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenPolicy;

impl Policies {
    pub(super) fn new(ir: &Arc<IrPolicies>, states: &PolicyStates) -> Arc<Self> {
        let limits = valid(ir.limits.as_ref());
        let limits = limits.map(|limits| CountedLimits::new(limits, &states.limiters));
        let authentication = valid(ir.authentication.as_ref());
        let authentication = authentication.map(|it| states.authenticators.get(it));
        Arc::new(Self {
            protected: protected::of_policies(ir, authentication.as_ref()),
            limits,
            authentication,
            ir: ir.clone(),
        })
    }

    /// Returns the limits, if there are any that can be used.
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.as_ref().map(|limits| &*limits.ir)
    }

    /// Reports whether limits count by the identity of clients.
    pub fn limit_identities(&self) -> bool {
        let limits = self.limits.as_ref();
        limits.is_some_and(|limits| limits.need_identity)
    }

    /// Counts a request now, by the limits of a phase, and adds that to what it counts as.
    ///
    /// # Errors
    /// When the request is over a limit, or a policy is broken.
    pub fn admit<'a>(
        &'a self,
        request: &LimitedRequest<'_>,
        phase: LimitPhase<'_>,
        within: &mut WithinLimits<'a>,
    ) -> Result<(), LimitRefusal<'a>> {
        match (&self.limits, &self.ir.limits) {
            (Some(limits), _) => {
                let admitted = limits.admit(request, phase, monotonic::nanos(), within);
                admitted.map_err(LimitRefusal::Exceeded)
            }
            (None, None) => Ok(()),
            (None, Some(_)) => Err(LimitRefusal::Broken),
        }
    }

    /// Returns the credentials that requests need; `None` if they need none.
    ///
    /// # Errors
    /// When a policy is broken.
    #[inline]
    pub fn authentication(&self) -> Result<Option<&Authentication>, BrokenPolicy> {
        match (&self.authentication, &self.ir.authentication) {
            (None, Some(_)) => Err(BrokenPolicy),
            (authentication, _) => Ok(authentication.as_ref()),
        }
    }

    /// Reports whether a client may send a request, which is put together only if there are rules to look at it.
    ///
    /// # Errors
    /// When a policy is broken.
    pub fn permits<'a>(
        &self,
        request: impl FnOnce() -> AuthorizedRequest<'a>,
    ) -> Result<bool, BrokenPolicy> {
        match &self.ir.authorization {
            None => Ok(true),
            Some(Enforced::Valid(rules)) => {
                Ok(authorization::decide(rules, &request()) == Action::Allow)
            }
            Some(Enforced::Broken(_)) => Err(BrokenPolicy),
        }
    }
}

fn valid<T>(section: Option<&Enforced<T>>) -> Option<&Arc<T>> {
    match section {
        Some(Enforced::Valid(required)) => Some(required),
        Some(Enforced::Broken(_)) | None => None,
    }
}
