//! `authorization`: which clients may send which requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::Method;

use crate::api::access_policy::{AccessMatch, Authorization, AuthorizationRule, ClaimMatch};
use crate::api::http_route::HttpMatch;
use crate::ir::ObjectRef;
use crate::ir::authorization::{self as ir, Action, ClaimCondition, RequestConditions};
use crate::ir::route::Match;

use super::super::condition;
use super::super::policy::Content;
use super::ip_rules::cidrs;
use crate::translate::reason::{Fault, all, both, invalid};

/// Parses the section of a policy.
pub(super) fn read(policy: &ObjectRef, section: &Authorization) -> Result<Content, Fault> {
    let Authorization { rules, default } = section;
    let mut names = BTreeSet::new();
    let rules = rules.iter().enumerate().map(|(index, rule)| {
        let field = format!("spec.authorization.rules[{index}]");
        match names.insert(&rule.name) {
            true => self::rule(rule, &field),
            false => invalid(format!("{field}.name: {:?} is not unique", rule.name)),
        }
    });
    let default = default.as_deref().unwrap_or("Deny");
    let default = action(default, "spec.authorization.default");
    let (rules, default) = both(all(rules), default)?;
    Ok(Content::Authorization(Arc::new(ir::Authorization {
        policy: policy.clone(),
        rules,
        default,
    })))
}

fn action(text: &str, field: &str) -> Result<Action, Fault> {
    match text {
        "Allow" => Ok(Action::Allow),
        "Deny" => Ok(Action::Deny),
        other => invalid(format!("{field}: {other:?} is neither Allow nor Deny")),
    }
}

fn rule(rule: &AuthorizationRule, field: &str) -> Result<ir::AuthorizationRule, Fault> {
    let AuthorizationRule {
        name,
        action,
        condition,
    } = rule;
    let none = AccessMatch::default();
    let AccessMatch {
        methods,
        paths,
        headers,
        cidrs,
        clients,
        claims,
    } = condition.as_ref().unwrap_or(&none);
    let field_of_match = format!("{field}.match");
    let of_paths = paths.iter().map(Some);
    let of_paths: Vec<_> = match (paths.is_empty(), headers.is_empty()) {
        (true, true) => Vec::new(),
        // A match without a path is one of every path.
        (true, false) => vec![None],
        (false, _) => of_paths.collect(),
    };
    let matches = of_paths.into_iter().map(|path| {
        let one = HttpMatch {
            path: path.cloned(),
            headers: headers.clone(),
            ..HttpMatch::default()
        };
        condition::read(&one, &field_of_match)
    });
    let matches = both(
        self::methods(methods, &field_of_match),
        all::<Match, Vec<_>>(matches),
    );
    let addresses = self::cidrs(cidrs, &format!("{field_of_match}.cidrs"));
    let action = self::action(action, &format!("{field}.action"));
    let ((methods, matches), (addresses, action)) = both(matches, both(addresses, action))?;
    Ok(ir::AuthorizationRule {
        name: name.as_str().into(),
        action,
        requests: RequestConditions {
            methods: some(methods),
            matches: some(matches),
        },
        cidrs: (!cidrs.is_empty()).then_some(addresses),
        clients: some(texts(clients)),
        claims: claims.iter().map(claim).collect(),
    })
}

fn methods(methods: &[String], field: &str) -> Result<Vec<Method>, Fault> {
    let method = |method: &String| {
        let one = HttpMatch {
            method: Some(method.as_str().into()),
            ..HttpMatch::default()
        };
        let read = condition::read(&one, field)?;
        Ok(read.others.method.clone())
    };
    let methods: Vec<_> = all(methods.iter().map(method))?;
    Ok(methods.into_iter().flatten().collect())
}

fn claim(claim: &ClaimMatch) -> ClaimCondition {
    ClaimCondition {
        name: claim.name.as_str().into(),
        values: texts(&claim.values).into(),
    }
}

fn texts(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

/// Returns the conditions of a field; `None` if it has none, so that all requests meet it.
fn some<T>(conditions: Vec<T>) -> Option<Box<[T]>> {
    (!conditions.is_empty()).then(|| conditions.into())
}
