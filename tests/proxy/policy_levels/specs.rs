//! What policies `a` and `b` say in each section, in a form that requests show. Must not know levels.

use serde_json::{Value, json};

use super::sections::{Effect, Section, jwt, oidc, permits, replaces, text};
use super::specification::Rule;

pub(super) fn denied_addresses() -> Section {
    Section {
        rule: Rule::Accumulates,
        effect: Effect::DeniesOwn,
        ..permits(|it| json!({"ipRules": {"deny": [text(it)]}}))
    }
}

pub(super) fn permitted_addresses() -> Section {
    permits(|it| json!({"ipRules": {"allow": [text(it)]}}))
}

pub(super) fn users() -> Section {
    permits(|it| json!({"basic": {"secretRef": {"name": format!("users-{it}")}}}))
}

pub(super) fn api_keys() -> Section {
    permits(|it| {
        json!({"apiKey": {
            "secretRefs": [{"name": format!("keys-{it}")}],
            "from": [{"type": "Header", "name": "X-Key"}],
        }})
    })
}

pub(super) fn tokens() -> Section {
    permits(jwt)
}

pub(super) fn sign_ins() -> Section {
    Section {
        effect: Effect::SignIn,
        ..permits(oidc)
    }
}

pub(super) fn authorization_servers() -> Section {
    permits(|it| {
        json!({"external": {
            "protocol": "HTTP", "backendRef": {"name": format!("server-{it}"), "port": 80},
            "http": {"allowedHeaders": ["X-Who"]},
        }})
    })
}

pub(super) fn authorization() -> Section {
    permits(|it| {
        let own = json!({"headers": [{"name": "x-who", "value": it}]});
        json!({"authorization": {"rules": [{"name": "own", "action": "Allow", "match": own}]}})
    })
}

/// One credential is enough for the first policy.
pub(super) fn any_of_first() -> Section {
    requires(
        'a',
        |it| json!({"require": if it == 'a' { "Any" } else { "All" }}),
    )
}

pub(super) fn any_of_second() -> Section {
    requires(
        'b',
        |it| json!({"require": if it == 'b' { "Any" } else { "All" }}),
    )
}

fn requires(any: char, spec: fn(char) -> Value) -> Section {
    Section {
        rule: Rule::Requires(any),
        effect: Effect::Credentials(any),
        ..permits(spec)
    }
}

pub(super) fn limits() -> Section {
    replaces(
        "RateLimitPolicy",
        Effect::Header("ratelimit-policy"),
        |it| {
            let limit = json!({"requests": 100_000, "per": "Hour"});
            json!({"rules": [{"name": it, "limit": limit}], "response": {"headers": "Draft"}})
        },
    )
}

pub(super) fn response_headers() -> Section {
    replaces(
        "RoutePolicy",
        Effect::Header("x-section"),
        |it| json!({"responseHeaders": {"set": [{"name": "x-section", "value": it}]}}),
    )
}

pub(super) fn request_headers() -> Section {
    replaces(
        "RoutePolicy",
        Effect::Header("x-of-request"),
        |it| json!({"requestHeaders": {"set": [{"name": "x-section", "value": it}]}}),
    )
}

pub(super) fn request_bodies() -> Section {
    replaces(
        "RoutePolicy",
        Effect::BodySize,
        |it| json!({"requestBody": {"maxSize": if it == 'a' { "8" } else { "16" }}}),
    )
}

pub(super) fn compression() -> Section {
    replaces(
        "RoutePolicy",
        Effect::Encoding,
        |it| json!({"compression": {"encodings": [if it == 'a' { "gzip" } else { "br" }]}}),
    )
}

/// Each policy sets another field, so that the section of the other one is replaced as a whole.
pub(super) fn timeout_of_first() -> Section {
    replaces("RoutePolicy", Effect::Deadline('a'), |it| {
        let short = json!({"request": "25ms"});
        json!({"timeouts": if it == 'a' { short } else { json!({"backendRequest": "1h"}) }})
    })
}

pub(super) fn timeout_of_second() -> Section {
    replaces("RoutePolicy", Effect::Deadline('b'), |it| {
        let short = json!({"backendRequest": "25ms"});
        json!({"timeouts": if it == 'b' { short } else { json!({"request": "1h"}) }})
    })
}

pub(super) fn retries() -> Section {
    replaces("RoutePolicy", Effect::Attempts, |it| {
        let attempts = if it == 'a' { 1 } else { 2 };
        json!({"retry": {"codes": [418], "attempts": attempts, "backoff": "1ms"}})
    })
}

pub(super) fn error_pages() -> Section {
    replaces("RoutePolicy", Effect::Page, |it| {
        let keys = json!([{"key": "page", "mediaType": "text/plain"}]);
        let page = json!({"name": format!("page-{it}"), "keys": keys});
        json!({"errorPages": [{"codes": [418], "source": "Any", "configMapRef": page}]})
    })
}

pub(super) fn paths() -> Section {
    replaces(
        "ClientPolicy",
        Effect::Path,
        |it| json!({"path": {"escapedSlashes": if it == 'a' { "Reject" } else { "Decode" }}}),
    )
}

pub(super) fn header_limits() -> Section {
    replaces(
        "ClientPolicy",
        Effect::Underscores,
        |it| json!({"headers": {"underscores": if it == 'a' { "Reject" } else { "Drop" }}}),
    )
}

pub(super) fn connection_limits() -> Section {
    replaces(
        "ClientPolicy",
        Effect::Requests,
        |it| json!({"connections": {"maxRequests": if it == 'a' { 1 } else { 2 }}}),
    )
}

pub(super) fn client_addresses() -> Section {
    replaces("ClientPolicy", Effect::ClientAddress, |it| {
        let header = json!({"name": format!("X-Address-{it}"), "trustedCIDRs": ["127.0.0.0/8"]});
        json!({"clientIP": {"header": header}})
    })
}

pub(super) fn tls() -> Section {
    replaces("ClientPolicy", Effect::Tls, |it| match it {
        'a' => json!({"tls": {"minVersion": "1.3"}}),
        _ => json!({"tls": {"alpn": ["http/1.1"]}}),
    })
}

pub(super) fn connection_timeouts() -> Section {
    replaces("ClientPolicy", Effect::Timeouts, |it| match it {
        'a' => json!({"timeouts": {"header": "50ms"}}),
        _ => json!({"timeouts": {"idle": "50ms"}}),
    })
}

pub(super) fn http2() -> Section {
    replaces(
        "ClientPolicy",
        Effect::Streams,
        |it| json!({"http2": {"maxConcurrentStreams": if it == 'a' { 7 } else { 9 }}}),
    )
}

pub(super) fn http3() -> Section {
    replaces(
        "ClientPolicy",
        Effect::Alternatives,
        |it| json!({"http3": {"maxAge": if it == 'a' { "1h" } else { "2h" }}}),
    )
}

pub(super) fn proxy_protocol() -> Section {
    replaces("ClientPolicy", Effect::ProxyHeader, |it| {
        let mode = if it == 'a' { "Required" } else { "Optional" };
        json!({"proxyProtocol": {"mode": mode, "trustedCIDRs": ["127.0.0.0/8"]}})
    })
}
