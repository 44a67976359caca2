//! Authorization servers: `auth-url` and what belongs to it. A server of the cluster becomes `external` of the AccessPolicy;
//! others, and what changes the question to them, close the routes of the Ingress.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::grants::grant;
use super::model::{Ingress, Name};
use super::read::{is_dns_name, is_object};
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::snippets::is_header;
use super::values::Values;
use super::work::Work;

/// Headers of requests that such servers look at. ingress-nginx sends all.
const SENT: [&str; 4] = ["Accept", "Cookie", "User-Agent", "X-Requested-With"];
/// Maximum number of headers of responses.
const MAX_RESPONSE_HEADERS: usize = 64;
/// Annotations that mean something with `auth-url` only.
const COMPANIONS: [&str; 7] = [
    "auth-method",
    "auth-proxy-set-headers",
    "auth-request-redirect",
    "auth-response-headers",
    "auth-signin",
    "auth-signin-redirect-param",
    "auth-snippet",
];
/// What `auth-snippet` may set, since the server gets that in any case.
const SET_ANYWAY: [(&str, &str); 6] = [
    ("X-Forwarded-Method", "$request_method"),
    ("X-Original-Method", "$request_method"),
    ("X-Forwarded-Uri", "$request_uri"),
    ("X-Forwarded-Host", "$http_host"),
    ("X-Forwarded-Proto", "$scheme"),
    ("X-Original-URL", "$scheme://$http_host$request_uri"),
];

const REFUSED: &str = "the routes refuse all requests (403): write `external` of the AccessPolicy for a server that is a backend of the \
     cluster (docs/policies.md#authorization-servers), or `jwt`";

/// Converts the authorization server. Returns false if there is one and that is not possible.
pub(super) fn convert(
    work: &mut Work<'_>,
    ingress: &Ingress,
    sections: &mut Map<String, Value>,
) -> bool {
    let values = Values(ingress);
    let Some(url) = values.text("auth-url") else {
        let text = "without auth-url, ingress-nginx asks no server";
        let set = COMPANIONS.into_iter().filter(|name| values.has(name));
        set.for_each(|name| work.say(ingress, name, DefaultAlready, text));
        return true;
    };
    let (server, changing) = (server(url), changing(values));
    let (Some((service, port, path)), []) = (server, &*changing) else {
        let refused = COMPANIONS.into_iter().filter(|name| values.has(name));
        for name in refused.chain(["auth-url"]) {
            let row = super::annotations::find(name);
            let text = row.map_or("see auth-url", |row| row.text);
            let text = match name {
                "auth-url" => REFUSED,
                _ if changing.contains(&name) => text,
                _ => "see auth-url",
            };
            work.say(ingress, name, NotPossible, text);
        }
        return false;
    };
    let mut reference = json!({"name": service.name, "port": port});
    if service.namespace != ingress.name.namespace {
        reference["namespace"] = json!(service.namespace);
        grant(work, ingress, ("Service", "-auth"), &service);
    }
    let mut http = json!({"path": path, "pathMode": "Exact", "allowedHeaders": SENT});
    let listed = response_headers(work, ingress);
    let others = match listed.is_empty() {
        true => {
            "; backends get all headers of its response: name them in http.allowedResponseHeaders"
        }
        false => {
            http["allowedResponseHeaders"] = json!(listed);
            ""
        }
    };
    let sent = SENT.join(", ");
    let text = format!(
        "AccessPolicy external: only 200 permits a request, and of its headers the server gets Authorization, {sent}, and X-Forwarded-*{others}"
    );
    work.say(ingress, "auth-url", ChangedMeaning, text);
    let mut external = json!({"protocol": "HTTP", "backendRef": reference, "http": http});
    if let Some(page) = page(work, ingress) {
        external["signInRedirect"] = json!(page);
    }
    sections.insert("external".to_owned(), external);
    for (name, text) in [
        ("auth-method", "the server gets GET"),
        ("auth-snippet", "the server gets these headers"),
    ] {
        if values.has(name) {
            work.say(ingress, name, DefaultAlready, text);
        }
    }
    if values.has("auth-request-redirect") {
        let text =
            "X-Original-URL and X-Forwarded-Uri name the URL, and not X-Auth-Request-Redirect";
        work.say(ingress, "auth-request-redirect", ChangedMeaning, text);
    }
    true
}

/// Returns the Service, port and path of a URL whose host is that of a Service.
fn server(url: &str) -> Option<(Name, u16, String)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, path) = rest.split_at(rest.find('/')?);
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
    let labels: Vec<_> = host.split('.').collect();
    let ([name, namespace, "svc"] | [name, namespace, "svc", "cluster", "local"]) = &*labels else {
        return None;
    };
    let service = Name::new(namespace, name);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-/._~!&'()*+,;=:@%?".contains(&byte);
    let is_path = path.len() <= 1024 && path.bytes().all(fits);
    let has_dots = path.split(['/', '?']).any(|it| it == "." || it == "..");
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (is_object(&service) && is_path && !has_dots).then(|| (service, port, path.to_owned()))
}

/// Returns the annotations that change the question to the server, or what backends get of its response.
fn changing(values: Values<'_>) -> Vec<&'static str> {
    let is_get = values.text("auth-method").is_none_or(|it| it == "GET");
    let is_known = values.text("auth-snippet").is_none_or(|text| {
        let mut statements = text.split(';').map(str::trim).filter(|it| !it.is_empty());
        statements.all(|statement| {
            let words: Vec<_> = statement.split_whitespace().collect();
            let is_set = |(name, value): &(&str, &str)| {
                matches!(&*words, ["proxy_set_header", header, set]
                    if header.eq_ignore_ascii_case(name) && set == value)
            };
            SET_ANYWAY.iter().any(is_set)
        })
    });
    let mut changing = Vec::new();
    changing.extend((!is_get).then_some("auth-method"));
    changing.extend((!is_known).then_some("auth-snippet"));
    // Backends would get the others from clients.
    let has_too_many = listed(values).len() > MAX_RESPONSE_HEADERS;
    changing.extend(has_too_many.then_some("auth-response-headers"));
    changing.extend(
        values
            .has("auth-proxy-set-headers")
            .then_some("auth-proxy-set-headers"),
    );
    changing
}

/// Returns the headers that backends get from the server, each once.
fn listed(values: Values<'_>) -> Vec<String> {
    let mut seen = HashSet::new();
    let names = values.list("auth-response-headers").into_iter();
    let names = names.filter(|name| is_header(name) && seen.insert(name.to_ascii_lowercase()));
    names.map(str::to_owned).collect()
}

/// Returns the headers that backends get from the server, and reports them.
fn response_headers(work: &mut Work<'_>, ingress: &Ingress) -> Vec<String> {
    let values = Values(ingress);
    if values.has("auth-response-headers") {
        let text = "AccessPolicy external.http.allowedResponseHeaders";
        work.say(ingress, "auth-response-headers", Converted, text);
    }
    listed(values)
}

/// Returns the page to sign in.
fn page(work: &mut Work<'_>, ingress: &Ingress) -> Option<String> {
    let values = Values(ingress);
    let text = values.text("auth-signin");
    let parameter = values.text("auth-signin-redirect-param");
    let page = text.and_then(|text| sign_in(text, parameter.unwrap_or("rd")));
    let (outcome, message) = match &page {
        Some(_) => (
            ChangedMeaning,
            "AccessPolicy external.signInRedirect, for browsers only",
        ),
        None => (
            NotPossible,
            "its variables have no equal in external.signInRedirect: clients get 401",
        ),
    };
    for name in ["auth-signin", "auth-signin-redirect-param"] {
        if values.has(name) {
            work.say(ingress, name, outcome, message);
        }
    }
    page
}

/// Returns the address of a page to sign in, with `{return}`.
fn sign_in(text: &str, parameter: &str) -> Option<String> {
    let hosts = ["$host", "$http_host", "$best_http_host"];
    let schemes = ["https://", "$scheme://", "$pass_access_scheme://"];
    let origins = schemes
        .iter()
        .flat_map(|scheme| hosts.map(|host| format!("{scheme}{host}")));
    let origins: Vec<String> = origins.collect();
    let same_host = origins.iter().find_map(|origin| text.strip_prefix(origin));
    let mut page = match same_host {
        Some(path) if path.starts_with('/') => path.to_owned(),
        _ => text.to_owned(),
    };
    let of_origins = origins.iter().map(String::as_str).chain([""]);
    let urls = of_origins.flat_map(|origin| {
        ["$escaped_request_uri", "$request_uri"].map(|it| format!("{origin}{it}"))
    });
    for url in urls {
        page = page.replace(&url, "{return}");
    }
    let (path, query) = page.split_once('?').unwrap_or((&page, ""));
    let has_parameter = query.split('&').any(|pair| {
        pair.split_once('=')
            .is_some_and(|(name, _)| name == parameter)
    });
    if !has_parameter {
        let separator = match (path.len() == page.len(), query.is_empty()) {
            (true, _) => "?",
            (false, true) => "",
            (false, false) => "&",
        };
        page = format!("{page}{separator}{parameter}={{return}}");
    }
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"#$\"<>\\^`|{}".contains(&byte);
    let (before, after) = page.split_once("{return}").unwrap_or((&page, ""));
    let is_url = ["https://", "http://"].iter().any(|scheme| {
        let rest = before.strip_prefix(scheme);
        rest.is_some_and(|rest| {
            let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
            let (host, port) = authority.split_once(':').unwrap_or((authority, "443"));
            let port = port.parse::<u16>().unwrap_or_default();
            is_dns_name(host) && port > 0 && authority.len() < rest.len()
        })
    });
    let is_path = before.starts_with('/') && !before.starts_with("//");
    let is_valid = page.len() <= 2048 && before.bytes().chain(after.bytes()).all(fits);
    (is_valid && (is_url || is_path)).then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_a_service_of_the_cluster() {
        for (url, expected) in [
            (
                "http://auth.login.svc.cluster.local:4180/oauth2/auth?a=b",
                Some(("login", "auth", 4180, "/oauth2/auth?a=b")),
            ),
            ("http://auth.login.svc/", Some(("login", "auth", 80, "/"))),
            ("https://auth.login.svc/", None),
            ("http://auth.login.svc", None),
            ("http://auth.login/", None),
            ("http://auth.login.example.com/", None),
            ("http://$host/oauth2/auth", None),
            ("http://auth.login.svc/$request_uri", None),
            ("http://auth.login.svc:0/", None),
            ("http://auth.login.svc/a/../b", None),
        ] {
            let found = server(url);
            let found = found
                .as_ref()
                .map(|(name, port, path)| (&*name.namespace, &*name.name, *port, &**path));
            assert_eq!(found, expected, "{url}");
        }
    }

    #[test]
    fn sign_in_returns_to_the_url_of_the_request() {
        for (text, expected) in [
            (
                "https://$host/oauth2/start?rd=$escaped_request_uri",
                Some("/oauth2/start?rd={return}"),
            ),
            (
                "https://login.example.com/oauth2/start?rd=https://$host$escaped_request_uri",
                Some("https://login.example.com/oauth2/start?rd={return}"),
            ),
            (
                "https://login.example.com",
                Some("https://login.example.com?rd={return}"),
            ),
            (
                "https://login.example.com/?a=b",
                Some("https://login.example.com/?a=b&rd={return}"),
            ),
            ("https://login.example.com/?rd=$arg_a", None),
            ("https://$http_x_host/login", None),
            ("//login.example.com/", None),
        ] {
            assert_eq!(sign_in(text, "rd").as_deref(), expected, "{text}");
        }
    }
}
