//! HTTPRoutes: where they attach, and their rules from matches, filters, backendRefs and timeouts.

use std::sync::Arc;

use crate::api::duration;
use crate::api::http_route::{HttpFilter, HttpRoute, HttpRule, HttpTimeouts};
use crate::api::reference::ParentRef;
use crate::ir::route::{Match, PathMatch, Timeouts};
use crate::ir::{Filter, RouteKind, Rule};
use crate::snapshot::{Objects, Snapshot};

use super::listener::Protocol;
use super::reason::{Fault, Reason};
use super::route::{RouteBuilder, RouteObject, RuleParts};
use super::{filter, http_match};

impl RouteObject for HttpRoute {
    const ROUTE_KIND: RouteKind = RouteKind::Http;
    const PROTOCOLS: &'static [Protocol] = &[Protocol::Http, Protocol::Https];

    fn all(snapshot: &Snapshot) -> &Objects<Self> {
        &snapshot.http_routes
    }

    fn parent_refs(&self) -> &[ParentRef] {
        &self.spec.parent_refs
    }

    fn use_default_gateways(&self) -> Option<&str> {
        self.spec.use_default_gateways.as_deref()
    }

    fn hostnames(&self) -> &[String] {
        &self.spec.hostnames
    }

    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>> {
        // The API's default is one rule that matches every path and has no backend.
        let default = [HttpRule::default()];
        let rules = if self.spec.rules.is_empty() {
            &default[..]
        } else {
            &self.spec.rules
        };
        let rules = rules.iter().enumerate();
        rules
            .filter_map(|(index, spec)| rule(builder, index, spec).map(Arc::new))
            .collect()
    }
}

fn rule(builder: &mut RouteBuilder<'_>, index: usize, spec: &HttpRule) -> Option<Rule> {
    let field = format!("spec.rules[{index}]");
    let matches = match http_match::translate(&spec.matches, &field) {
        Ok(matches) => matches,
        Err(fault) => {
            builder.drop_rule(fault);
            return None;
        }
    };
    let prefix = only_prefix(&matches).cloned();
    let filters =
        |filters: &[HttpFilter], field: &str| filter::translate(filters, field, prefix.as_ref());
    let forward = builder.forward(&spec.backend_refs, &field, spec.name.as_deref(), filters);
    Some(builder.rule(RuleParts {
        index,
        name: spec.name.as_deref(),
        matches,
        forward,
        behaviour: behaviour(spec, &field, prefix.as_ref()),
    }))
}

fn behaviour(
    spec: &HttpRule,
    field: &str,
    prefix: Option<&Arc<str>>,
) -> Result<(Vec<Filter>, Timeouts), Fault> {
    let HttpRule {
        filters,
        timeouts: limits,
        retry,
        session_persistence,
        name: _,
        matches: _,
        backend_refs: _,
    } = spec;
    let unserved = |name: &str| {
        let message = format!("{field}.{name} is not served by this version; remove it");
        Err(Fault::new(Reason::UnsupportedValue, message))
    };
    if retry.is_some() {
        return unserved("retry");
    }
    if session_persistence.is_some() {
        return unserved("sessionPersistence");
    }
    let filters = filter::translate(filters, field, prefix)?;
    let limits = limits
        .as_ref()
        .map(|limits| timeouts(limits, field))
        .transpose()?;
    Ok((filters, limits.unwrap_or_default()))
}

/// The path prefix of a rule with exactly one match, which is what a prefix can be replaced in.
fn only_prefix(matches: &[Match]) -> Option<&Arc<str>> {
    match matches {
        [
            Match {
                path: PathMatch::Prefix(prefix),
                ..
            },
        ] => Some(prefix),
        _ => None,
    }
}

fn timeouts(limits: &HttpTimeouts, field: &str) -> Result<Timeouts, Fault> {
    let HttpTimeouts {
        request,
        backend_request,
    } = limits;
    let read = |text: &Option<String>, name: &str| {
        let Some(text) = text else {
            return Ok(None);
        };
        let limit = duration::parse(text).ok_or_else(|| {
            let message = format!(
                "{field}.timeouts.{name}: {text:?} is not a duration such as 1h30m, 10s or 500ms"
            );
            Fault::new(Reason::UnsupportedValue, message)
        })?;
        Ok(Some(limit).filter(|limit| !limit.is_zero()))
    };
    Ok(Timeouts {
        request: read(request, "request")?,
        backend_request: read(backend_request, "backendRequest")?,
    })
}
