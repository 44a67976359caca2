//! TLSRoutes, TCPRoutes and UDPRoutes: a rule of each forwards everything that reaches it.

use std::sync::Arc;

use crate::api::filter::HttpFilter;
use crate::api::l4_route::{L4Rule, TcpRoute, TlsRoute, UdpRoute};
use crate::ir::route::PathMatch;
use crate::ir::{RouteKind, Rule};

use super::route::{RouteBuilder, RouteObject, RuleParts, RuleSettings};
use crate::translate::protocol::Protocol;

impl RouteObject for TlsRoute {
    const ROUTE_KIND: RouteKind = RouteKind::Tls;
    const PROTOCOLS: &'static [Protocol] = &[Protocol::Tls];

    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>> {
        rules(builder, &self.spec.rules)
    }
}

impl RouteObject for TcpRoute {
    const ROUTE_KIND: RouteKind = RouteKind::Tcp;
    const PROTOCOLS: &'static [Protocol] = &[Protocol::Tcp];

    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>> {
        rules(builder, &self.spec.rules)
    }
}

impl RouteObject for UdpRoute {
    const ROUTE_KIND: RouteKind = RouteKind::Udp;
    const PROTOCOLS: &'static [Protocol] = &[Protocol::Udp];

    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>> {
        rules(builder, &self.spec.rules)
    }
}

fn rules(builder: &mut RouteBuilder<'_>, rules: &[L4Rule]) -> Vec<Arc<Rule>> {
    let rules = rules.iter().enumerate();
    rules
        .map(|(index, spec)| Arc::new(rule(builder, index, spec)))
        .collect()
}

fn rule(builder: &mut RouteBuilder<'_>, index: usize, spec: &L4Rule) -> Rule {
    let field = format!("spec.rules[{index}]");
    let name = spec.name.as_deref();
    let no_filters = |_: &mut RouteBuilder<'_>, _: &[HttpFilter], _: &str| Ok(Vec::new());
    let forward = builder.forward(&spec.backend_refs, &field, name, no_filters);
    let everything = PathMatch::Prefix("".into()).into();
    builder.rule(RuleParts {
        id: builder.rule_id(index, name),
        matches: vec![everything],
        forward,
        settings: builder
            .check_fields(index)
            .map(|()| RuleSettings::default()),
    })
}
