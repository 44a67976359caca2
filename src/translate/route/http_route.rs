//! HTTPRoutes: their rules, from matches, filters, backendRefs and timeouts.

use std::sync::Arc;

use crate::api::filter::HttpFilter;
use crate::api::http_route::{HttpRoute, HttpRule};
use crate::ir::route::{Match, PathMatch, RuleOptions};
use crate::ir::sharing::Text;
use crate::ir::{RouteKind, Rule, RuleId};

use super::extension;
use super::route::{RouteBuilder, RouteObject, RuleParts, RuleSettings};
use crate::translate::http_match;
use crate::translate::policy::session_persistence;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{Fault, both};
use crate::translate::{filter, retry, timeouts};

impl RouteObject for HttpRoute {
    const ROUTE_KIND: RouteKind = RouteKind::Http;
    const PROTOCOLS: &'static [Protocol] = &[Protocol::Http, Protocol::Https];

    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>> {
        // The default of the API: one rule that matches every path and has no backend.
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
    let matches = match http_match::translate(&spec.matches, &field, &mut builder.patterns) {
        Ok(matches) => matches,
        Err(fault) => {
            builder.drop_rule(fault);
            return None;
        }
    };
    let prefix = only_prefix(&matches).cloned();
    let name = spec.name.as_deref();
    let filters = |builder: &mut RouteBuilder<'_>, filters: &[HttpFilter], field: &str| {
        let extensions = extension::resolve(builder, filters, field)?;
        filter::translate(
            filters,
            field,
            prefix.as_ref(),
            &extensions,
            &mut |reference, field, requests| builder.resolve(reference, field, name, requests),
        )
    };
    let forward = builder.forward(&spec.backend_refs, &field, name, filters);
    let id = builder.rule_id(index, name);
    let settings = settings(builder, spec, &id, &matches, &field);
    Some(builder.rule(RuleParts {
        id,
        matches,
        forward,
        settings,
    }))
}

fn settings(
    builder: &mut RouteBuilder<'_>,
    spec: &HttpRule,
    id: &RuleId,
    matches: &[Match],
    field: &str,
) -> Result<RuleSettings, Fault> {
    let HttpRule {
        filters,
        timeouts,
        retry,
        session_persistence,
        name,
        matches: _,
        backend_refs: _,
    } = spec;
    builder.check_fields(id.index)?;
    let timeouts = timeouts.as_ref();
    let timeouts = timeouts.map(|spec| timeouts::translate(spec, &format!("{field}.timeouts")));
    let session = session_persistence.as_ref();
    let session = session.map(|spec| session_persistence::of_rule(spec, id, field));
    let extensions = extension::resolve(builder, filters, field);
    let filters = extensions.and_then(|extensions| {
        let resolve = &mut |reference: &_, field: &_, requests| {
            builder.resolve(reference, field, name.as_deref(), requests)
        };
        filter::translate(filters, field, only_prefix(matches), &extensions, resolve)
    });
    let retry = retry.as_ref();
    let retry = retry.map(|spec| retry::translate(spec, &format!("{field}.retry")));
    let others = both(retry.transpose(), session.transpose());
    let (filters, (timeouts, (retry, session))) =
        both(filters, both(timeouts.transpose(), others))?;
    Ok(RuleSettings {
        filters,
        options: RuleOptions {
            timeouts: timeouts.unwrap_or_default(),
            retry,
            session,
        },
    })
}

/// Returns the path prefix of a rule with exactly one match. Only such a prefix can be replaced.
fn only_prefix(matches: &[Match]) -> Option<&Text> {
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
