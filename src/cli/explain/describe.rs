//! Text for parts of the configuration: matches, filters, timeouts, backends. Independent of the request.

use super::traffic;
use crate::ir::cors::{AllowedOrigins, Cors};
use crate::ir::external_auth::{AuthProtocol, ExternalAuth};
use crate::ir::filter::{HeaderChanges, Mirror, PathChange, Redirect, Rewrite, Scheme};
use crate::ir::route::{
    Action, BackendTarget, Match, PathMatch, Retry, Timeouts, ValueMatch, WeightedBackend,
};
use crate::ir::tls::{CipherPolicy, ClientValidationMode, TlsVersion};
use crate::ir::{
    Endpoints, Filter, Ir, Release, Releases, Rule, RuleId, ServerTls, UpstreamProtocol,
};
use crate::table::{Considered, MatchVerdict, Mismatch};

/// Describes a match that was considered, and its result.
pub(super) fn considered(one: &Considered<'_>) -> String {
    let rule = &one.rule.ir;
    let conditions = rule
        .matches
        .get(one.index)
        .map_or_else(String::new, conditions);
    let what = format!(
        "{}, match {} ({conditions}; hostname {})",
        rule_name(&rule.id),
        one.index,
        one.hostname
    );
    match &one.verdict {
        MatchVerdict::Chosen => what,
        MatchVerdict::Outranked => format!("{what}: matches too, but has lower precedence"),
        MatchVerdict::Differs(mismatch) => format!("{what}: {}", differs(mismatch)),
    }
}

/// Returns how far a match is from the request: 0 if it matches too, and most if not even the path begins alike.
pub(super) fn distance(one: &Considered<'_>, path: &str) -> usize {
    /// Above every other distance, so that paths come last.
    const PATH: usize = 1 << 16;
    match &one.verdict {
        MatchVerdict::Chosen | MatchVerdict::Outranked => 0,
        MatchVerdict::Differs(Mismatch::Query(_) | Mismatch::Preflight) => 1,
        MatchVerdict::Differs(Mismatch::Header(_)) => 2,
        MatchVerdict::Differs(Mismatch::Method) => 3,
        MatchVerdict::Differs(Mismatch::Grpc) => 4,
        MatchVerdict::Differs(Mismatch::Path) => {
            let matched = one.rule.ir.matches.get(one.index).map(|it| &it.path);
            let wanted = match matched {
                Some(PathMatch::Exact(wanted) | PathMatch::Prefix(wanted)) => &**wanted,
                Some(PathMatch::Regex(_) | PathMatch::Call(_)) | None => "",
            };
            let same = path.bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b);
            PATH - same.count().min(PATH - 5)
        }
    }
}

fn rule_name(id: &RuleId) -> String {
    match &id.name {
        Some(name) => format!("{} rule {} `{name}`", id.route, id.index),
        None => format!("{} rule {}", id.route, id.index),
    }
}

fn differs(mismatch: &Mismatch<'_>) -> String {
    match mismatch {
        Mismatch::Path => "the path does not match".to_owned(),
        Mismatch::Grpc => {
            "the request is not gRPC, which is a POST with content-type application/grpc or application/grpc-web"
                .to_owned()
        }
        Mismatch::Preflight => {
            "the rule permits no calls of other origins; set access-control-allow-origin with a ResponseHeaderModifier"
                .to_owned()
        }
        Mismatch::Method => "the method does not match".to_owned(),
        Mismatch::Header(name) => format!("header {name} does not match"),
        Mismatch::Query(name) => format!("query parameter {name} does not match"),
    }
}

fn conditions(condition: &Match) -> String {
    let mut parts = vec![match &condition.path {
        PathMatch::Exact(path) => format!("path {path}"),
        PathMatch::Prefix(prefix) if prefix.is_empty() => "any path".to_owned(),
        PathMatch::Prefix(prefix) => format!("path {prefix} and below"),
        PathMatch::Regex(pattern) => format!("path matches {}", pattern.source()),
        PathMatch::Call(call) => {
            let part = |name: &str, condition: &Option<ValueMatch>| match condition {
                None => format!("any {name}"),
                Some(ValueMatch::Exact(text)) => format!("{name} {text}"),
                Some(ValueMatch::Regex(pattern)) => format!("{name} matches {}", pattern.source()),
            };
            let service = part("service", &call.service);
            format!("{service}, {}", part("method", &call.method))
        }
    }];
    parts.extend(condition.grpc.map(|_| "gRPC".to_owned()));
    parts.extend(
        condition
            .method
            .iter()
            .map(|method| format!("method {method}")),
    );
    for header in &condition.headers {
        parts.push(format!(
            "header {}",
            value(header.name.as_str(), &header.value)
        ));
    }
    for query in &condition.query {
        parts.push(format!("query {}", value(&query.name, &query.value)));
    }
    parts.join(", ")
}

fn value(name: &str, value: &ValueMatch) -> String {
    match value {
        ValueMatch::Exact(exact) => format!("{name}={exact}"),
        ValueMatch::Regex(pattern) => format!("{name} matches {}", pattern.source()),
    }
}

/// Describes the certificates and the TLS settings of a listener.
pub(super) fn tls(tls: &ServerTls) -> String {
    let certificates: Vec<String> = tls
        .certificates
        .iter()
        .map(|certificate| format!("{} ({})", certificate.source, certificate.names.join(", ")))
        .collect();
    let version = match tls.min_version {
        TlsVersion::Tls12 => "1.2",
        TlsVersion::Tls13 => "1.3",
    };
    let ciphers = match tls.ciphers {
        CipherPolicy::Default => "default ciphers",
        CipherPolicy::AesGcm => "AES-GCM ciphers only",
    };
    let clients = match tls.client_validation.as_ref().map(|it| it.mode) {
        None => "",
        Some(ClientValidationMode::AllowValidOnly) => "; a valid client certificate is required",
        Some(ClientValidationMode::AllowInsecureFallback) => {
            "; client certificates are verified, but not required"
        }
    };
    format!(
        "{}; version {version} and above, {ciphers}{clients}",
        certificates.join(", ")
    )
}

/// Describes filters, one line per change.
pub(super) fn filters(filters: &[Filter], ir: &Ir) -> Vec<String> {
    filters
        .iter()
        .flat_map(|filter| match filter {
            Filter::RequestHeaders(changes) => header_changes("request header", changes),
            Filter::ResponseHeaders(changes) => header_changes("response header", changes),
            Filter::Redirect(to) => vec![redirect(to)],
            Filter::Rewrite(to) => vec![rewrite(to)],
            Filter::Cors(cors) | Filter::Preflight(cors) => vec![cross_origin(cors)],
            Filter::Mirror(to) => vec![mirror(to) + without_endpoints(&to.target, ir)],
            Filter::ExternalAuth(auth) => {
                vec![external_auth(auth) + without_endpoints(&auth.target, ir)]
            }
        })
        .collect()
}

/// Says that the target of a filter has no endpoint; empty if it has one.
fn without_endpoints(target: &BackendTarget, ir: &Ir) -> &'static str {
    let backend = target.backend().and_then(|id| ir.backend(id));
    match backend.is_some_and(|backend| !has_endpoints(&backend.endpoints)) {
        true => ", which has no ready endpoint",
        false => "",
    }
}

fn header_changes(what: &str, changes: &HeaderChanges) -> Vec<String> {
    // Values are omitted, because they may be credentials.
    let set = changes
        .set
        .iter()
        .map(|(name, _)| format!("set {what} {name}"));
    let add = changes
        .add
        .iter()
        .map(|(name, _)| format!("add {what} {name}"));
    let remove = changes
        .remove
        .iter()
        .map(|name| format!("remove {what} {name}"));
    set.chain(add).chain(remove).collect()
}

fn redirect(to: &Redirect) -> String {
    let mut text = format!("redirect with status {}", to.status.as_u16());
    if let Some(scheme) = to.scheme {
        text.push_str(match scheme {
            Scheme::Http => ", scheme http",
            Scheme::Https => ", scheme https",
        });
    }
    if let Some(hostname) = &to.hostname {
        text.push_str(&format!(", host {hostname}"));
    }
    if let Some(port) = to.port {
        text.push_str(&format!(", port {port}"));
    }
    text.push_str(&path_change(to.path.as_ref()));
    text
}

fn rewrite(to: &Rewrite) -> String {
    let mut text = "rewrite".to_owned();
    if let Some(hostname) = &to.hostname {
        text.push_str(&format!(
            ", host {}",
            String::from_utf8_lossy(hostname.as_bytes())
        ));
    }
    text.push_str(&path_change(to.path.as_ref()));
    text
}

fn cross_origin(cors: &Cors) -> String {
    let origins = match &cors.origins {
        AllowedOrigins::Any => "every origin".to_owned(),
        AllowedOrigins::Listed(origins) if origins.is_empty() => "no origin".to_owned(),
        AllowedOrigins::Listed(origins) => {
            let origins: Vec<_> = origins.iter().map(ToString::to_string).collect();
            origins.join(", ")
        }
    };
    let credentials = if cors.credentials { "with" } else { "without" };
    format!("CORS: respond to preflight requests, allow {origins}, {credentials} credentials")
}

fn mirror(Mirror { target, share }: &Mirror) -> String {
    let (numerator, denominator) = (share.numerator, share.denominator.get());
    let requests = match numerator {
        _ if numerator == denominator => "every request".to_owned(),
        _ => format!("{numerator} of {denominator} requests"),
    };
    match target {
        BackendTarget::Backend(id) => format!("mirror {requests} to {id}"),
        BackendTarget::Invalid(reason) => format!("mirror nothing: {reason}"),
    }
}

fn external_auth(auth: &ExternalAuth) -> String {
    let protocol = match &auth.protocol {
        AuthProtocol::Http(_) => "HTTP",
        AuthProtocol::Grpc(_) => "gRPC",
    };
    match &auth.target {
        BackendTarget::Backend(id) => format!("authorize requests with {id} over {protocol}"),
        BackendTarget::Invalid(reason) => {
            format!("respond 500, because the authorization server cannot be used: {reason}")
        }
    }
}

fn path_change(change: Option<&PathChange>) -> String {
    match change {
        None => String::new(),
        Some(PathChange::Full(path)) => format!(", path {path}"),
        Some(PathChange::Prefix {
            prefix,
            replacement,
        }) => format!(
            ", path prefix {} becomes {replacement}",
            if prefix.is_empty() { "/" } else { prefix }
        ),
    }
}

/// The timeouts that are set.
pub(super) fn timeouts(timeouts: &Timeouts) -> Vec<String> {
    let request = timeouts.request.map(|time| format!("request {time:?}"));
    let backend = timeouts
        .backend_request
        .map(|time| format!("each attempt {time:?}"));
    request.into_iter().chain(backend).collect()
}

/// Describes the retries that the rule permits.
pub(super) fn retry(retry: Option<&Retry>) -> Vec<String> {
    let describe = |retry: &Retry| {
        let codes: Vec<_> = retry.codes.iter().map(u16::to_string).collect();
        let after = if codes.is_empty() {
            "failed connections".to_owned()
        } else {
            format!("failed connections and {}", codes.join(", "))
        };
        let Retry {
            attempts, backoff, ..
        } = retry;
        format!("up to {attempts} after {after}, with a backoff from {backoff:?}")
    };
    retry.map(describe).into_iter().collect()
}

/// Statuses for requests that cannot be forwarded.
struct Refusals {
    invalid: &'static str,
    unavailable: &'static str,
}

const HTTP: Refusals = Refusals {
    invalid: "500",
    unavailable: "503",
};

const GRPC: Refusals = Refusals {
    invalid: "gRPC status UNAVAILABLE",
    unavailable: "gRPC status UNAVAILABLE",
};

const L4: Refusals = Refusals {
    invalid: "a reset connection, or a dropped datagram",
    unavailable: "a reset connection, or a dropped datagram",
};

fn refusals(rule: &Rule) -> &'static Refusals {
    match &*rule.id.route.kind {
        "GRPCRoute" => &GRPC,
        "TLSRoute" | "TCPRoute" | "UDPRoute" => &L4,
        _ => &HTTP,
    }
}

/// Describes the weighted backends with their endpoints, or why there are none.
pub(super) fn action(rule: &Rule, ir: &Ir) -> Vec<String> {
    let refusals = refusals(rule);
    let shares = match &rule.action {
        Action::Invalid(reason) => {
            return vec![format!(
                "none: every request gets {}: {reason}",
                refusals.invalid
            )];
        }
        Action::Forward(_) if redirects(rule) => return Vec::new(),
        Action::Forward(shares) => shares,
    };
    let total: u64 = shares.iter().map(|share| u64::from(share.weight)).sum();
    if total == 0 {
        return vec![format!(
            "none with a weight: every request gets {}",
            refusals.invalid
        )];
    }
    shares
        .iter()
        .flat_map(|share| share_lines(share, total, rule, ir))
        .collect()
}

fn redirects(rule: &Rule) -> bool {
    let is_redirect = |filter: &Filter| matches!(filter, Filter::Redirect(_));
    rule.filters.iter().any(is_redirect)
}

fn has_endpoints(endpoints: &Endpoints) -> bool {
    endpoints.hostname().is_some() || !endpoints.addresses().is_empty()
}

fn endpoints(endpoints: &Endpoints) -> String {
    match endpoints {
        Endpoints::Addresses(addresses) => {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            addresses.join(", ")
        }
        Endpoints::Hostname { hostname, port } => {
            format!("{hostname}:{port}, whose addresses are resolved at runtime")
        }
        Endpoints::Releases(releases) => releases_line(releases),
    }
}

fn releases_line(Releases { cookie, releases }: &Releases) -> String {
    let total: f64 = releases.iter().map(|release| release.weight as f64).sum();
    let release = |release: &Release| {
        let percent = match release.weight {
            0 => 0.0,
            weight => weight as f64 * 100.0 / total,
        };
        let addresses: Vec<_> = release.addresses.iter().map(ToString::to_string).collect();
        let endpoints = match &*addresses {
            [] if release.weight == 0 => "no endpoint".to_owned(),
            [] => "no endpoint: 503".to_owned(),
            addresses => addresses.join(", "),
        };
        format!("release {} {percent:.1} %: {endpoints}", release.name)
    };
    let mut parts: Vec<_> = releases.iter().map(release).collect();
    parts.extend(
        cookie
            .as_ref()
            .map(|cookie| format!("cookie {cookie} keeps a client on its release")),
    );
    parts.join("; ")
}

fn share_lines(share: &WeightedBackend, total: u64, rule: &Rule, ir: &Ir) -> Vec<String> {
    let refusals = refusals(rule);
    let percent = f64::from(share.weight) * 100.0 / total as f64;
    let target = match &share.target {
        BackendTarget::Invalid(reason) => format!("{}: {reason}", refusals.invalid),
        BackendTarget::Backend(id) => match ir.backend(id) {
            Some(backend) if has_endpoints(&backend.endpoints) => {
                let protocol = match backend.protocol {
                    UpstreamProtocol::Http1 => "HTTP/1.1",
                    UpstreamProtocol::H2c => "HTTP/2",
                    UpstreamProtocol::Tcp => "TCP",
                    UpstreamProtocol::Udp => "UDP",
                };
                // The id of a backend with its own TLS settings contains "in TLS" already.
                let is_own = id.tls.as_ref().is_some_and(|used| used.policy == id.object);
                let tls = if backend.tls.is_some() && !is_own {
                    " in TLS"
                } else {
                    ""
                };
                format!(
                    "{id} over {protocol}{tls}: {}",
                    endpoints(&backend.endpoints)
                )
            }
            _ => format!("{id} has no ready endpoint: {}", refusals.unavailable),
        },
    };
    let mut lines = vec![format!("{percent:5.1} %  {target}")];
    let backend = share.target.backend().and_then(|id| ir.backend(id));
    let traffic = backend.and_then(|backend| backend.traffic.as_ref());
    let policy = traffic.map(|traffic| traffic::policy(traffic, rule.session.is_some()));
    let details = policy
        .into_iter()
        .flatten()
        .chain(filters(&share.filters, ir));
    lines.extend(details.map(|detail| format!("         {detail}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_releases_with_their_shares() {
        let release = |name: &str, weight, ports: &[u16]| Release {
            name: name.into(),
            weight,
            token: "".into(),
            addresses: ports
                .iter()
                .map(|port| ([10, 0, 0, 1], *port).into())
                .collect(),
        };
        let releases = Releases {
            cookie: Some("rel".into()),
            releases: vec![
                release("v1", 999, &[80, 81]),
                release("v2", 1, &[]),
                release("v3", 0, &[82]),
            ],
        };
        assert_eq!(
            endpoints(&Endpoints::Releases(releases)),
            "release v1 99.9 %: 10.0.0.1:80, 10.0.0.1:81; release v2 0.1 %: no endpoint: 503; \
             release v3 0.0 %: 10.0.0.1:82; cookie rel keeps a client on its release"
        );
    }
}
