//! The credentials that policies bring to Gateways: those of policies that have an effect there, within the budget of their
//! namespace. Translations and closures decide it here, so that pods get what their Gateway serves. Must not know what
//! credentials say.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::api::access_policy::AccessPolicy;
use crate::api::reference::Credential;
use crate::ir::ObjectRef;

use super::InheritedPolicies;
use super::attachments::Attachments;
use super::credential::Named;
use super::index::Refusals;
use super::path::Levels;
use super::policy::Policy;
use super::reach::{Distinguish, Known, Reach};
use crate::translate::budgets::{Budgets, Demand, Limits};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::reason::{Fault, Reason};
use crate::translate::reference_grant;
use crate::translate::source::Source;

/// Maximum size of the keys and values that the policies of one namespace bring to one Gateway: that of four Secrets of the
/// greatest size that Kubernetes stores, or of some 60,000 API keys with the names of their clients. A pod needs three times
/// as much memory.
const MAX_OF_NAMESPACE: usize = 4 << 20;

/// What policies bring, and which of them get it.
pub(in crate::translate) struct Credentials {
    policies: Memo<Brought>,
    budgets: Budgets,
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            policies: Memo::default(),
            budgets: Budgets::new(Limits {
                of_namespace: MAX_OF_NAMESPACE,
                // With a limit for all namespaces, one could take what another one has.
                of_gateway: usize::MAX,
            }),
        }
    }
}

/// What a policy brings to the Gateways on which it has an effect.
#[derive(PartialEq, Eq)]
struct Brought {
    /// The objects that it may name, each with its size.
    named: Vec<(Named, usize)>,
    demand: Demand,
}

/// What may differ after a change.
#[derive(Default)]
pub(in crate::translate) struct Decided {
    /// The policies that bring something else, or to other Gateways.
    pub(in crate::translate) policies: BTreeSet<ObjectRef>,
    /// The objects that they name or named.
    pub(in crate::translate) objects: BTreeSet<ObjectRef>,
}

impl Credentials {
    /// Decides again what policies bring that have changed, or whose effect has.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        policies: &InheritedPolicies,
        attachments: &dyn Attachments,
    ) -> Decided {
        let index = &policies.index;
        let known = Known::new(input, index, attachments);
        let mut names = self.policies.outdated(changes);
        names.extend(changes.of::<AccessPolicy>());
        let mut decided = Decided::default();
        for name in names {
            let brought = || Brought::of(input, &known, index.get(&name)?);
            let previous = self
                .policies
                .replace(&name, input.reading(brought))
                .previous;
            let now = self.policies.get(&name);
            if previous.as_ref() != now {
                let demand = now.map(|now| now.demand.clone());
                self.budgets.replace(&name, demand);
                decided
                    .objects
                    .extend(previous.iter().flat_map(Brought::objects));
                decided.policies.insert(name);
            }
        }
        decided.policies.extend(self.budgets.decide());
        let brought = decided
            .policies
            .iter()
            .filter_map(|it| self.policies.get(it));
        decided.objects.extend(brought.flat_map(Brought::objects));
        decided
    }

    /// Returns on which Gateways these policies get no credentials although they have an effect, and why.
    pub(in crate::translate) fn refusals(&self, policies: BTreeSet<ObjectRef>) -> Refusals {
        let of_policy = |policy: ObjectRef| {
            let brought = self.policies.get(&policy).into_iter();
            let gateways = brought.flat_map(|brought| &brought.demand.gateways);
            let refused = gateways
                .filter_map(|gateway| Some((gateway.clone(), self.refusal(&policy, gateway)?)));
            let refused: BTreeMap<_, _> = refused.collect();
            (policy, refused)
        };
        policies.into_iter().map(of_policy).collect()
    }

    /// Returns why a policy gets none of the credentials that it names on a Gateway, if it gets none.
    pub(in crate::translate) fn withheld(
        &self,
        policy: &ObjectRef,
        gateway: &ObjectRef,
    ) -> Option<String> {
        let brought = self.policies.get(policy)?;
        if !brought.demand.gateways.contains(gateway) {
            return Some(format!("it has no effect on {gateway}"));
        }
        let refusal = self.refusal(policy, gateway);
        refusal.map(|refusal| refusal.message)
    }

    /// Returns what policies read from an object on a Gateway.
    pub(in crate::translate) fn read_from(
        &self,
        object: &ObjectRef,
        gateway: &ObjectRef,
    ) -> Vec<Credential> {
        let policies = self.policies.readers_of(&Source::Object(object.clone()));
        let getting = policies.filter(|policy| self.withheld(policy, gateway).is_none());
        let named = getting.filter_map(|policy| self.policies.get(policy));
        let named = named.flat_map(|brought| &brought.named);
        let named = named.filter(|(named, _)| named.object == *object);
        named.map(|(named, _)| named.credential).collect()
    }

    /// Returns why a policy exceeds the budget of its namespace on a Gateway, if it does.
    fn refusal(&self, policy: &ObjectRef, gateway: &ObjectRef) -> Option<Fault> {
        let (cost, _) = self.budgets.exceeded(policy, gateway)?;
        let named = self.policies.get(policy)?.named.iter();
        let (Named { field, object, .. }, size) = named.min_by_key(|(_, size)| Reverse(*size))?;
        let namespace = &policy.namespace;
        let [size, cost] = [*size, cost].map(|size| size.div_ceil(1024));
        let limit = MAX_OF_NAMESPACE / 1024;
        let message = format!(
            "{field}: {object} has {size} KiB of credentials, and the policy names {cost} KiB in all; with those of older \
             policies, namespace {namespace} would bring more than {limit} KiB to {gateway}, the limit for a namespace; name \
             fewer or smaller objects"
        );
        Some(Fault::new(Reason::CredentialLimitExceeded, message))
    }
}

impl Brought {
    /// Returns what a policy brings; `None` if it names nothing, or if what it names is withheld.
    fn of(input: &Input<'_>, known: &Known<'_>, policy: &Policy) -> Option<Self> {
        if policy.named.is_empty() || policy.withheld.is_some() {
            return None;
        }
        let is_permitted = |named: &&Named| {
            reference_grant::check(input, &policy.name, &named.object, &named.field).is_ok()
        };
        let named = policy.named.iter().filter(is_permitted);
        let named: Vec<_> = named.map(|it| (it.clone(), it.size(input))).collect();
        let demand = Demand {
            created: policy.age().0,
            cost: named.iter().map(|(_, size)| size).sum(),
            gateways: effective_on(known, policy),
        };
        Some(Self { named, demand })
    }

    fn objects(&self) -> impl Iterator<Item = ObjectRef> {
        self.named.iter().map(|(named, _)| named.object.clone())
    }
}

/// Returns the Gateways on which a section of a policy has an effect. One whose listener or rule does not exist refuses requests
/// whatever its credentials are.
fn effective_on(known: &Known<'_>, policy: &Policy) -> Vec<ObjectRef> {
    let mut gateways = BTreeSet::new();
    for target in &policy.targets {
        let reach = Reach::new(known, target, Distinguish::Requests);
        for path in reach.paths().filter(|_| !reach.is_missing) {
            let levels = Levels::new(known.index, path, known);
            let mut sections = policy.sections.keys();
            if sections.any(|section| levels.obstacle(*section, policy, target).is_none()) {
                gateways.insert(path.gateway.clone());
            }
        }
    }
    gateways.into_iter().collect()
}
