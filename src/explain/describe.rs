//! Text for parts of the configuration: TLS of listeners, filters, timeouts and retries. Independent of the request.

use crate::ir::Rule;
use crate::ir::auth_call::{AuthCall, AuthProtocol};
use crate::ir::cors::{AllowedOrigins, Cors};
use crate::ir::external_auth::ExternalAuth;
use crate::ir::filter::{HeaderChanges, Mirror, PathChange, Redirect, Rewrite, Scheme};
use crate::ir::route::BackendTarget;
use crate::ir::route_defaults::{Retry, RouteDefaults};
use crate::ir::tls::{CipherPolicy, ClientValidationMode, TlsVersion};
use crate::ir::{Endpoints, Filter, Ir, ObjectRef, Release, Releases, ServerTls};
use crate::table::{Port, Table};

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
        _ if !tls.suites.is_empty() => "listed ciphers",
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
            Filter::RewritePath(change) => {
                let (pattern, replacement) = change.source();
                vec![format!(
                    "rewrite, path parts that match {pattern} to {replacement}"
                )]
            }
            Filter::Respond(response) => {
                vec![format!("respond with status {}", response.status.as_u16())]
            }
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

/// The names of headers that are changed.
pub(super) fn header_changes(what: &str, changes: &HeaderChanges) -> Vec<String> {
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
    let protocol = auth_protocol(&auth.call);
    match &auth.target {
        BackendTarget::Backend(id) => format!("authorize requests with {id} over {protocol}"),
        BackendTarget::Invalid(reason) => {
            format!("respond 500, because the authorization server cannot be used: {reason}")
        }
    }
}

/// Names the authorization server of a policy, for requests to a port.
pub(super) fn auth_server(table: &Table, port: &Port, policy: &ObjectRef) -> String {
    let servers = table.ir.policy_servers.get(policy);
    let servers = servers.and_then(|it| it.0.get(&port.ir.gateway));
    match servers.and_then(|it| it.first()) {
        Some(target @ BackendTarget::Backend(id)) => {
            format!("{id}{}", without_endpoints(target, &table.ir))
        }
        Some(BackendTarget::Invalid(reason)) => {
            format!("that cannot be used (until then 500: {reason})")
        }
        None => "that is unknown (until then 500)".to_owned(),
    }
}

/// Returns the protocol of an authorization server.
pub(super) fn auth_protocol(call: &AuthCall) -> &'static str {
    match &call.protocol {
        AuthProtocol::Http(_) => "HTTP",
        AuthProtocol::Grpc(_) => "gRPC",
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

/// The timeouts of a rule with what policies say.
pub(super) fn timeouts(rule: &Rule, defaults: Option<&RouteDefaults>) -> Vec<String> {
    let request = rule.request_timeout(defaults);
    let request = request.map(|time| format!("request {time:?}"));
    let backend = rule.attempt_timeout(defaults);
    let backend = backend.map(|time| format!("each attempt {time:?}"));
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

/// Reports whether requests can be balanced over endpoints, in releases over those of one with a weight, or whether their
/// addresses are resolved at runtime.
pub(super) fn has_endpoints(endpoints: &Endpoints) -> bool {
    match endpoints.releases() {
        Some(Releases { releases, .. }) => releases.iter().any(Release::is_served),
        None => endpoints.hostname().is_some() || !endpoints.addresses().is_empty(),
    }
}
