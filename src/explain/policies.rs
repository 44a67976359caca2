//! Text for what policies require of requests, and the order of the phases. Must not know the policies themselves.

use std::sync::Arc;

use http::{HeaderName, Method};

use super::describe::{auth_protocol, header_changes};
use super::explanation::Explanation;
use super::matches::{Values, conditions};
use crate::ir::ObjectRef;
use crate::ir::auth_call::{ExternalPolicy, SignIn};
use crate::ir::authentication::{Authentication, KeyPlace, Require};
use crate::ir::authorization::{Authorization, AuthorizationRule, RequestConditions};
use crate::ir::cidr::CidrSet;
use crate::ir::compression::Compression;
use crate::ir::error_page::{ErrorPage, PageContent, PageSource, PageVariant};
use crate::ir::filter::HeaderChanges;
use crate::ir::limit::{Cost, IdentityPart, KeyPart, Limit, Limits, Scope};
use crate::ir::oidc::Oidc;
use crate::ir::policy::{Enforced, IpRules, Phase, Policies};
use crate::ir::route_defaults::RouteDefaults;
use crate::ir::token::Provider;

/// Maximum number of CIDRs or clients of a list that are shown.
const MAX_LISTED: usize = 10;

/// Describes the authorization server of a policy.
type AuthServer<'a> = &'a dyn Fn(&ObjectRef) -> String;

/// Explains what policies require, if there are any.
pub(super) fn explain(
    explanation: &mut Explanation,
    (policies, server): (Option<&Arc<Policies>>, AuthServer<'_>),
    values: Values,
) {
    let Some(policies) = policies else {
        return;
    };
    let Policies {
        ip_rules,
        limits,
        route,
        authentication,
        authorization,
    } = &**policies;
    explanation.lines("IP rules", ip_rules.as_ref().map(shown_ip_rules));
    explanation.lines(
        "limits",
        limits
            .iter()
            .flat_map(|it| shown_limits(it, authentication.as_ref(), values)),
    );
    explanation.lines("policies", route.iter().flat_map(|it| shown_defaults(it)));
    let credentials = authentication.iter();
    let credentials = credentials.flat_map(|it| shown_credentials(it, server));
    explanation.lines("credentials", credentials);
    let rules = authorization.iter().flat_map(|it| shown_rules(it, values));
    explanation.lines("authorization", rules);
    let order = Phase::ALL.map(Phase::name);
    explanation.line("order", order.join(", then "));
}

fn shown_ip_rules(rules: &Enforced<IpRules>) -> String {
    let IpRules {
        allow,
        deny,
        policies,
    } = match rules {
        Enforced::Valid(rules) => &**rules,
        Enforced::Broken(why) => return format!("every request gets 500: {why}"),
    };
    let allow = match allow {
        Some(allow) => format!("only {}", cidrs(allow)),
        None => "every address".to_owned(),
    };
    let deny = match deny.is_empty() {
        true => String::new(),
        false => format!(", but not {}", cidrs(deny)),
    };
    let policies: Vec<_> = policies.iter().map(ToString::to_string).collect();
    format!("{allow}{deny} ({})", policies.join(", "))
}

/// Timeouts and retries are shown with those of the rule.
fn shown_defaults(defaults: &RouteDefaults) -> Vec<String> {
    let RouteDefaults {
        max_body,
        buffered_body,
        timeouts: _,
        retry: _,
        request_headers,
        response_headers,
        compression,
        error_pages,
        stream_idle,
        policies,
    } = defaults;
    let body = max_body.map(|bytes| format!("request bodies of {bytes} bytes at most"));
    let changes = |what: &str, changes: &Option<HeaderChanges>| {
        let changes = changes.as_ref();
        changes.map_or_else(Vec::new, |changes| header_changes(what, changes))
    };
    let buffered = buffered_body.map(|bytes| {
        format!("request bodies are read before a backend is asked, {bytes} bytes at most")
    });
    let mut lines: Vec<_> = body.into_iter().chain(buffered).collect();
    lines.extend(changes("request header", request_headers));
    lines.extend(changes("response header", response_headers));
    lines.extend(stream_idle.map(|time| match time.is_zero() {
        true => "idle streams stay open".to_owned(),
        false => format!("idle streams end after {time:?}"),
    }));
    lines.extend(compression.as_ref().map(shown_compression));
    lines.extend(error_pages.iter().map(shown_page));
    let names: Vec<_> = policies.iter().map(ToString::to_string).collect();
    lines.push(format!("from {}", names.join(", ")));
    lines
}

fn shown_page(page: &ErrorPage) -> String {
    let ErrorPage {
        codes,
        source,
        content,
        keeps_status,
    } = page;
    let codes: Vec<_> = codes.iter().map(u16::to_string).collect();
    let (page, other_status) = match content {
        PageContent::Variants(variants) => {
            let types: Vec<_> = variants.iter().map(PageVariant::media_type).collect();
            (types.join(" or "), ", as 200")
        }
        PageContent::Server(server) => (
            format!("fetched from {}", server.backend),
            ", with the status of the server",
        ),
    };
    let of = match source {
        PageSource::Gateway => "responses of Portcullis",
        PageSource::Backend => "responses of backends",
        PageSource::Any => "all responses",
    };
    let status = if *keeps_status { "" } else { other_status };
    let codes = codes.join(", ");
    format!("error page for {of} with {codes}: {page}{status}")
}

fn shown_compression(compression: &Compression) -> String {
    let Compression {
        encodings,
        content_types,
        min_size,
        level,
    } = compression;
    if encodings.is_empty() {
        return "no compression".to_owned();
    }
    let encodings: Vec<_> = encodings.iter().map(|it| it.name()).collect();
    let (encodings, types) = (encodings.join(", "), content_types.join(", "));
    format!("compression with {encodings}, level {level:?}, from {min_size} bytes, of {types}")
}

fn shown_credentials(
    authentication: &Enforced<Authentication>,
    server: AuthServer<'_>,
) -> Vec<String> {
    let Authentication {
        basic,
        api_key,
        tokens,
        oidc,
        external,
        require,
    } = match authentication {
        Enforced::Valid(authentication) => &**authentication,
        Enforced::Broken(why) => return vec![format!("every request gets 500: {why}")],
    };
    let basic = basic.as_ref().map(|basic| {
        let (users, policy) = (basic.users.len(), &basic.policy);
        let header = sent_as(basic.forward_user.as_ref());
        format!("one of {users} users with a password{header} ({policy})")
    });
    let api_key = api_key.as_ref().map(|api_key| {
        let (keys, policy) = (api_key.keys.len(), &api_key.policy);
        let places = shown_places(&api_key.from);
        let header = sent_as(api_key.forward_client.as_ref());
        let keep = if api_key.keep {
            ", kept for the backend"
        } else {
            ""
        };
        format!("one of {keys} API keys, in {places}{keep}{header} ({policy})")
    });
    let providers = tokens.iter().flat_map(|tokens| {
        let providers = tokens.providers.iter();
        providers.map(|provider| (provider, &tokens.policy))
    });
    let of_tokens: Vec<_> = providers
        .map(|(provider, policy)| shown_provider(provider, policy))
        .collect();
    let of_tokens = (!of_tokens.is_empty()).then(|| of_tokens.join(" or "));
    let separator = match require {
        Require::All => "and",
        Require::Any => "or",
    };
    let permission = external
        .as_ref()
        .map(|it| shown_permission(it, &server(&it.policy)));
    let session = oidc.as_ref().map(|it| shown_sign_in(it));
    let local = basic
        .into_iter()
        .chain(api_key)
        .chain(of_tokens)
        .chain(session);
    let methods = local.chain(permission).zip(0..);
    let methods = methods.map(|(method, index)| match index {
        0 => method,
        _ => format!("{separator} {method}"),
    });
    methods.collect()
}

fn shown_sign_in(oidc: &Oidc) -> String {
    let (issuer, client, policy) = (oidc.issuer(), &oidc.client_id, &oidc.policy);
    let (callback, logout) = (&oidc.redirect_path, &oidc.logout_path);
    let back_channel = oidc.back_channel_logout_path.as_ref();
    let back_channel = back_channel.map_or_else(String::new, |path| {
        format!(", or by the provider at {path}")
    });
    let types = oidc.redirect_only_for.join(" or ");
    let provider = match &oidc.endpoints {
        Some(_) => "",
        None => " (which is not discovered yet: until then nobody can sign in)",
    };
    let parameters: Vec<_> = oidc
        .authorization_parameters
        .keys()
        .map(|it| &**it)
        .collect();
    let parameters = match parameters.is_empty() {
        true => String::new(),
        false => format!(" (with parameters {})", parameters.join(", ")),
    };
    let bearer = match oidc.pass_through_bearer {
        true => "; a bearer token that jwt accepts is enough",
        false => "",
    };
    format!(
        "a session of {issuer}{provider} for client {client}{parameters}, begun by requests that accept {types}, at {callback}, ended at {logout}{back_channel}{bearer} ({policy})"
    )
}

fn shown_permission(external: &ExternalPolicy, server: &str) -> String {
    let ExternalPolicy {
        policy,
        call,
        sign_in,
    } = external;
    let protocol = auth_protocol(call);
    let sign_in = sign_in.as_ref().map(|SignIn { before, after }| {
        let after = after.as_ref().map(|after| format!("{{return}}{after}"));
        format!(
            "; browsers without it sign in at {before}{}",
            after.unwrap_or_default()
        )
    });
    let sign_in = sign_in.unwrap_or_default();
    format!(
        "the permission of the authorization server {server}, asked over {protocol}{sign_in} ({policy})"
    )
}

fn shown_places(places: &[KeyPlace]) -> String {
    let places = places.iter().map(|place| match place {
        KeyPlace::Header(name) => format!("header {name}"),
        KeyPlace::Query(name) => format!("query parameter {name}"),
        KeyPlace::Cookie(name) => format!("cookie {name}"),
    });
    let places: Vec<_> = places.collect();
    places.join(" or ")
}

fn shown_provider(provider: &Provider, policy: &ObjectRef) -> String {
    let (issuer, keys) = (&provider.issuer, provider.keys.len());
    let audiences = match provider.audiences.is_empty() {
        true => String::new(),
        false => format!(" for {}", provider.audiences.join(" or ")),
    };
    let typ = match &provider.token_type {
        None => String::new(),
        Some(typ) => format!(" with typ {typ}"),
    };
    let places = shown_places(&provider.from);
    let keys = match &provider.key_set {
        None => format!("with one of {keys} keys"),
        Some(_) if keys == 0 => "whose keys are not fetched yet (until then 500)".to_owned(),
        Some(set) => format!("with one of {keys} keys of {}", set.name),
    };
    let fetched = match &provider.key_server_tls {
        None => String::new(),
        Some(policy) => format!(", fetched with TLS of {policy}"),
    };
    format!("a token of {issuer}{audiences}{typ}, {keys}{fetched}, in {places} ({policy})")
}

fn shown_rules(authorization: &Enforced<Authorization>, values: Values) -> Vec<String> {
    let Authorization {
        policy,
        rules,
        default,
    } = match authorization {
        Enforced::Valid(authorization) => &**authorization,
        Enforced::Broken(why) => return vec![format!("every request gets 500: {why}")],
    };
    let rules = rules.iter().map(|rule| {
        let (name, conditions) = (&rule.name, shown_conditions(rule, values));
        format!("{name}: {:?} {conditions} ({policy})", rule.action)
    });
    let default = format!("others: {default:?} ({policy})");
    rules.chain([default]).collect()
}

fn shown_conditions(rule: &AuthorizationRule, values: Values) -> String {
    let RequestConditions { methods, matches } = &rule.requests;
    let mut parts = Vec::new();
    if let Some(methods) = methods {
        let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
        parts.push(format!("method {}", methods.join(" or ")));
    }
    if let Some(matches) = matches {
        let matches: Vec<_> = matches.iter().map(|it| conditions(it, values)).collect();
        parts.push(matches.join(" or "));
    }
    if let Some(addresses) = &rule.cidrs {
        parts.push(format!("address in {}", cidrs(addresses)));
    }
    if let Some(clients) = &rule.clients {
        let shown: Vec<&str> = clients.iter().take(MAX_LISTED).map(|it| &**it).collect();
        let more = match clients.len().saturating_sub(MAX_LISTED) {
            0 => String::new(),
            more => format!(", {more} more"),
        };
        parts.push(format!("client {}{more}", shown.join(" or ")));
    }
    for claim in &rule.claims {
        let shown: Vec<&str> = claim.values.iter().map(|it| &**it).collect();
        parts.push(format!("claim {} {}", claim.name, shown.join(" or ")));
    }
    match parts.is_empty() {
        true => "every request".to_owned(),
        false => parts.join(", "),
    }
}

/// Text for the header that names the client to the backend.
fn sent_as(header: Option<&HeaderName>) -> String {
    header.map_or_else(String::new, |name| format!(", named in header {name}"))
}

fn shown_limits(
    limits: &Enforced<Limits>,
    authentication: Option<&Enforced<Authentication>>,
    values: Values,
) -> Vec<String> {
    let Limits {
        policy,
        limits,
        left_out,
        ..
    } = match limits {
        Enforced::Valid(limits) => &**limits,
        Enforced::Broken(why) => return vec![format!("every request gets 500: {why}")],
    };
    let lacking = |limit: &Limit| {
        let required = match authentication {
            Some(Enforced::Valid(required)) => Some(&**required),
            // Its requests get 500 before.
            Some(Enforced::Broken(_)) => return "",
            None => None,
        };
        match limit.lacking_identity(required) {
            Some(_) => {
                "; no policy authenticates requests so that they have it: all count together"
            }
            None => "",
        }
    };
    let left_out = left_out.iter();
    let left_out =
        left_out.map(|why| format!("a rule of mode Audit is left out: {why} ({policy})"));
    let limits = limits.iter().map(|limit| {
        let text = shown_limit(limit, values);
        format!("{text}{} ({policy})", lacking(limit))
    });
    limits.chain(left_out).collect()
}

fn shown_limit(limit: &Limit, values: Values) -> String {
    let mut parts = Vec::new();
    if let Some(rate) = &limit.rate {
        let (requests, seconds, burst) = (rate.requests, rate.per.as_secs(), rate.burst);
        let unit = match &limit.cost {
            Cost::Request => "requests".to_owned(),
            Cost::RequestBytes => "bytes of requests".to_owned(),
            Cost::ResponseBytes => "bytes of responses".to_owned(),
            Cost::ResponseHeader(name) => format!("by header {name} of responses"),
        };
        parts.push(format!("{requests} {unit} in {seconds}s, {burst} at once"));
    }
    if let Some(concurrent) = limit.concurrent {
        parts.push(format!("{concurrent} requests at the same time"));
    }
    let key = limit.key.iter().map(|part| match part {
        KeyPart::ClientIp { v4, v6 } => format!("client address /{v4} or /{v6}"),
        KeyPart::Header(name) => format!("header {name}"),
        KeyPart::Cookie(name) => format!("cookie {name}"),
        KeyPart::Hostname => "host".to_owned(),
    });
    let identity = limit.identity.iter().map(|part| match part {
        IdentityPart::Client => "authenticated client".to_owned(),
        IdentityPart::Claim(name) => format!("claim {name} of the token"),
    });
    let key: Vec<_> = key.chain(identity).collect();
    let name = &limit.name;
    let mut text = format!("{name}: {}", parts.join(", "));
    if !key.is_empty() {
        text.push_str(&format!(" for each {}", key.join(" and ")));
    }
    if limit.scope == Scope::Gateway {
        text.push_str(
            ", by all pods of the Gateway together (without a controller, by this process)",
        );
    }
    if let Some(condition) = &limit.condition {
        text.push_str(&format!(
            ", of requests with {}",
            conditions(condition, values)
        ));
    }
    if !limit.exempt.is_empty() {
        text.push_str(&format!(", except for {}", cidrs(&limit.exempt)));
    }
    if limit.is_audit {
        text.push_str("; only counted");
    }
    text
}

pub(super) fn cidrs(set: &CidrSet) -> String {
    let all: Vec<_> = set.iter().collect();
    let mut shown: Vec<_> = all
        .iter()
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect();
    if all.len() > MAX_LISTED {
        shown.push(format!("{} more", all.len() - MAX_LISTED));
    }
    shown.join(", ")
}
