//! What all kinds of routes with rules have in common. Must not know the matches of a kind.

use serde::{Deserialize, Serialize};

use super::filter::HttpFilter;
use super::meta::Resource;
use super::reference::{BackendRef, Found, ParentRefs, Role};
use crate::ir::sharing::Text;

/// Spec of a route with rules of this type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteSpec<R> {
    /// Parents, at most 32.
    pub parent_refs: ParentRefs,
    /// `All` also attaches the route to default Gateways; `None` is the default (GEP-3793). Boxed, since few routes have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_default_gateways: Option<Box<Text>>,
    /// Hostnames, at most 16; empty means the listeners'.
    pub hostnames: Box<[Text]>,
    /// Rules, at most 16.
    pub rules: Box<[R]>,
}

impl<R> RouteSpec<R> {
    /// Returns `useDefaultGateways`.
    pub fn default_gateways(&self) -> Option<&str> {
        self.use_default_gateways.as_ref().map(|scope| &***scope)
    }
}

impl<R: RouteRule> RouteSpec<R> {
    /// Visits the fields that refer to other objects, in their order.
    pub fn references(&self, found: &mut Found<'_>) {
        for parent in &*self.parent_refs {
            found(parent.in_role(Role::Parent));
        }
        for (filters, backend_refs) in self.rules.iter().map(R::references) {
            filters.iter().for_each(|it| it.references(found));
            for backend in backend_refs {
                found(backend.in_role(Role::Backend));
                backend.filters.iter().for_each(|it| it.references(found));
            }
        }
    }
}

/// A kind of route with rules.
pub trait RouteResource: Resource {
    /// Type of its rules.
    type Rule: RouteRule;

    /// Returns the spec.
    fn spec(&self) -> &RouteSpec<Self::Rule>;
}

/// A rule, as far as it refers to objects.
pub trait RouteRule {
    /// Returns the fields with references: filters and backendRefs.
    fn references(&self) -> (&[HttpFilter], &[BackendRef<HttpFilter>]);
}
