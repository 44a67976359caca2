//! Decides by the rules of a policy whether a request passes. Does not allocate. Must not know where names come from.

use std::net::IpAddr;

use super::authentication::Claims;
use super::matcher::{RequestView, fits};
use crate::ir::authorization::{
    Action, Authorization, AuthorizationRule, ClaimCondition, RequestConditions,
};

/// The parts of a request that rules look at.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizedRequest<'a> {
    /// Address of the client.
    pub client: IpAddr,
    /// The names that the client has proven: of a user, and of an API key.
    pub names: [Option<&'a str>; 2],
    /// What its token says.
    pub claims: Option<&'a Claims>,
    /// The request.
    pub view: RequestView<'a>,
}

/// Returns what the first rule says that a request meets.
pub(super) fn decide(authorization: &Authorization, request: &AuthorizedRequest<'_>) -> Action {
    let mut rules = authorization.rules.iter();
    let rule = rules.find(|rule| is_met(rule, request));
    rule.map_or(authorization.default, |rule| rule.action)
}

fn is_met(rule: &AuthorizationRule, request: &AuthorizedRequest<'_>) -> bool {
    let RequestConditions { methods, matches } = &rule.requests;
    let view = &request.view;
    let is_client = |name: &str| request.names.contains(&Some(name));
    let claims = |claim: &ClaimCondition| {
        let claims = request.claims;
        claims.is_some_and(|claims| claims.has(&claim.name, &claim.values))
    };
    methods
        .as_ref()
        .is_none_or(|methods| methods.contains(view.method))
        && rule
            .cidrs
            .as_ref()
            .is_none_or(|cidrs| cidrs.contains(request.client))
        && rule
            .clients
            .as_ref()
            .is_none_or(|names| names.iter().any(|name| is_client(name)))
        && rule.claims.iter().all(claims)
        && matches
            .as_ref()
            .is_none_or(|matches| matches.iter().any(|it| fits(it, view)))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::ir::ObjectRef;
    use crate::ir::canonical_path::CanonicalPath;
    use crate::ir::cidr;
    use crate::ir::route::PathMatch;

    fn rule(action: Action) -> AuthorizationRule {
        AuthorizationRule {
            name: "rule".into(),
            action,
            requests: RequestConditions::default(),
            cidrs: None,
            clients: None,
            claims: Box::default(),
        }
    }

    fn decided(
        rules: &[AuthorizationRule],
        (method, path): (Method, &str),
        names: [Option<&str>; 2],
    ) -> Action {
        let authorization = Authorization {
            policy: ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", "policy"),
            rules: rules.into(),
            default: Action::Deny,
        };
        let request = AuthorizedRequest {
            client: [192, 0, 2, 1].into(),
            names,
            claims: None,
            view: RequestView {
                host: "a.com",
                method: &method,
                path: CanonicalPath::new(path).unwrap(),
                query: None,
                headers: &HeaderMap::new(),
                added: &[],
                upgrade: None,
            },
        };
        decide(&authorization, &request)
    }

    #[test]
    fn first_rule_whose_conditions_all_hold_decides() {
        let reads = RequestConditions {
            methods: Some([Method::GET, Method::HEAD].into()),
            matches: None,
        };
        let admin = RequestConditions {
            methods: None,
            matches: Some([PathMatch::Prefix("/admin".into()).into()].into()),
        };
        let rules = [
            AuthorizationRule {
                requests: admin,
                clients: Some(["alice".into(), "shop".into()].into()),
                ..rule(Action::Allow)
            },
            AuthorizationRule {
                cidrs: Some(
                    [cidr::parse("198.51.100.0/24").unwrap()]
                        .into_iter()
                        .collect(),
                ),
                ..rule(Action::Allow)
            },
            AuthorizationRule {
                requests: RequestConditions {
                    matches: Some([PathMatch::Prefix("/admin".into()).into()].into()),
                    ..RequestConditions::default()
                },
                ..rule(Action::Deny)
            },
            AuthorizationRule {
                requests: reads,
                ..rule(Action::Allow)
            },
        ];
        let (alice, shop) = ([Some("alice"), None], [Some("bob"), Some("shop")]);
        for (method, path, names, expected) in [
            (Method::POST, "/admin/a", alice, Action::Allow),
            (Method::GET, "/admin", shop, Action::Allow),
            (Method::GET, "/admin", [Some("bob"), None], Action::Deny),
            (Method::GET, "/admin", [None; 2], Action::Deny),
            (Method::GET, "/administration", [None; 2], Action::Allow),
            (Method::HEAD, "/", [None; 2], Action::Allow),
            (Method::POST, "/", alice, Action::Deny),
        ] {
            let found = decided(&rules, (method.clone(), path), names);
            assert_eq!(found, expected, "{method} {path} {names:?}");
        }
        let no_rules = decided(&[], (Method::GET, "/"), alice);
        assert_eq!(no_rules, Action::Deny);
    }
}
