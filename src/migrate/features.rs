//! What the annotations of an Ingress do to every request of its paths: headers, CORS, copies, redirects.

use serde_json::{Value, json};

use super::header_changes::{HeaderChanges, Room};
use super::model::{Ingress, Name, Port};
use super::paths::is_path;
use super::read::{is_dns_name, is_hostname};
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::snippets::{self, Snippet};
use super::values::Values;
use super::work::Work;

/// Headers in which backends get the certificate of a client.
const CERTIFICATE_HEADERS: [&str; 4] = [
    "ssl-client-cert",
    "ssl-client-issuer-dn",
    "ssl-client-subject-dn",
    "ssl-client-verify",
];

/// What an Ingress does to requests.
#[derive(Debug, Default)]
pub(super) struct Features {
    pub(super) request: HeaderChanges,
    pub(super) response: HeaderChanges,
    /// Settings of a CORS filter.
    pub(super) cors: Option<Value>,
    /// Settings of a RequestMirror filter.
    pub(super) mirror: Option<Value>,
    /// Host for backends.
    pub(super) vhost: Option<String>,
    /// Path for backends.
    pub(super) rewrite: Option<String>,
    /// Settings of a redirect in place of the backends.
    pub(super) redirect: Option<Value>,
    /// Where `/` is redirected.
    pub(super) app_root: Option<String>,
    /// Why backends cannot get the requests.
    pub(super) unavailable: Option<String>,
    /// Whether the routes refuse all requests, since a restriction cannot be converted.
    pub(super) closed: bool,
}

impl Features {
    pub(super) fn new(work: &mut Work<'_>, ingress: &Ingress) -> Self {
        let mut features = Self {
            request: work.controller.request.clone(),
            ..Self::default()
        };
        features.read_snippets(work, ingress);
        features.read_headers(work, ingress);
        features.read_host(work, ingress);
        features.fit_filters(work, ingress);
        features.cors = super::cors::filter(work, ingress);
        features.read_mirror(work, ingress);
        features.read_redirects(work, ingress);
        features.read_protocol(work, ingress);
        features.rewrite = Values(ingress).text("rewrite-target").map(str::to_owned);
        features
    }

    fn read_snippets(&mut self, work: &mut Work<'_>, ingress: &Ingress) {
        for name in ["server-snippet", "configuration-snippet"] {
            let Some(text) = Values(ingress).text(name) else {
                continue;
            };
            let Snippet {
                request,
                response,
                defaults,
                refused,
                may_restrict,
                changes_address: _,
                for_all_statuses,
            } = snippets::parse(text);
            if !refused.is_empty() {
                let mut message = format!("no equal here: {}", refused.join(", "));
                if may_restrict {
                    self.closed = true;
                    message.push_str(". It may restrict access, so that the routes refuse all requests (403): delete the AccessPolicy once it is replaced");
                }
                work.say(ingress, name, NotPossible, message);
            }
            if for_all_statuses {
                let message = "headers of add_header are in responses with errors too";
                work.say(ingress, name, ChangedMeaning, message);
            }
            if !request.is_empty() || !response.is_empty() {
                work.say(ingress, name, Converted, "header filters of the HTTPRoute");
            }
            if !defaults.is_empty() {
                let message = format!("without a setting: {}", defaults.join(", "));
                work.say(ingress, name, DefaultAlready, message);
            }
            self.request.extend(request);
            self.response.extend(response);
        }
    }

    fn read_headers(&mut self, work: &mut Work<'_>, ingress: &Ingress) {
        let values = Values(ingress);
        if let Some(prefix) = values.text("x-forwarded-prefix") {
            let name = "x-forwarded-prefix";
            if !values.has("rewrite-target") {
                let message = "ingress-nginx sends it with rewrite-target only";
                work.say(ingress, name, DefaultAlready, message);
            } else if prefix.starts_with('/') && !prefix.contains('$') && snippets::is_value(prefix)
            {
                self.request.set("X-Forwarded-Prefix", prefix);
                work.say(
                    ingress,
                    name,
                    Converted,
                    "request header filter of the HTTPRoute",
                );
            } else {
                let message = "filters set constant values: set one for each path by hand";
                work.say(ingress, name, NotPossible, message);
            }
        }
        // ingress-nginx verifies it, and does not forward it.
        if values.text("auth-type") == Some("basic") {
            self.request.remove.insert(0, "Authorization".to_owned());
        }
        // ingress-nginx says in these what it knows of the certificate of a client.
        if values.has("auth-tls-secret") {
            let names = CERTIFICATE_HEADERS.map(str::to_owned);
            self.request.remove.extend(names);
        }
        if let Some(reference) = values.text("custom-headers") {
            let map = Name::parse(reference, &ingress.name.namespace);
            match work.source.config_maps.get(&map) {
                None => {
                    let message = format!("ConfigMap {map} is not in the input: add it");
                    work.say(ingress, "custom-headers", NotPossible, message);
                }
                Some(headers) => {
                    for (name, value) in headers {
                        match snippets::is_header(name)
                            && snippets::is_constant(value)
                            && !value.is_empty()
                        {
                            true => self.response.set(name, value),
                            false => {
                                let message = format!("filters cannot set {name} to this value");
                                work.say(ingress, "custom-headers", NotPossible, message);
                            }
                        }
                    }
                    let message = "response header filter of the HTTPRoute";
                    work.say(ingress, "custom-headers", Converted, message);
                }
            }
        }
    }

    fn read_host(&mut self, work: &mut Work<'_>, ingress: &Ingress) {
        let Some(host) = Values(ingress).text("upstream-vhost") else {
            return;
        };
        let known = snippets::KNOWN_VARIABLES;
        let plain = known
            .iter()
            .fold(host.to_owned(), |text, it| text.replace(it, "x"));
        match is_dns_name(&plain.to_ascii_lowercase()) {
            true => {
                self.vhost = Some(lower_case(host));
                let message = "URLRewrite filter hostname of the HTTPRoute";
                work.say(ingress, "upstream-vhost", Converted, message);
            }
            false if ["$host", "$http_host", "$best_http_host"].contains(&host) => {
                let message = "backends get the host of the request";
                work.say(ingress, "upstream-vhost", DefaultAlready, message);
            }
            false => {
                let message =
                    format!("`{host}` is no DNS name: backends get the host of the request");
                work.say(ingress, "upstream-vhost", NotPossible, message);
            }
        }
    }

    /// Leaves out what filters have no room for. What a client says of a header that ingress-nginx sets or removes reaches no
    /// backend.
    fn fit_filters(&mut self, work: &mut Work<'_>, ingress: &Ingress) {
        let room = self.request.fit_requests();
        let text = match room.max(self.response.fit_responses()) {
            Room::Enough => return,
            Room::Short => {
                "a filter sets up to 16 headers, and removes as many: the others are left out of responses, and removed from requests"
            }
            Room::Unprotected => {
                self.closed = true;
                "a filter removes up to 16 headers, and backends would take the others from clients, so that the routes refuse all requests (403): let the backends ignore some of them, or split the Ingress"
            }
        };
        work.say(ingress, "headers", NotPossible, text);
    }

    fn read_mirror(&mut self, work: &mut Work<'_>, ingress: &Ingress) {
        let values = Values(ingress);
        let Some(target) = values.text("mirror-target") else {
            return;
        };
        match service_of_url(target, &ingress.name.namespace) {
            Some((service, port)) => {
                self.mirror = Some(json!({"backendRef": {"name": service, "port": port}}));
                let message = "RequestMirror filter of the HTTPRoute";
                work.say(ingress, "mirror-target", Converted, message);
                if values.has("mirror-host") {
                    let message = "copies have the host of the request";
                    work.say(ingress, "mirror-host", ChangedMeaning, message);
                }
                if let Some(body) = values.text("mirror-request-body") {
                    let (outcome, message) = match body {
                        "off" => (ChangedMeaning, "copies have the body all the same"),
                        _ => (DefaultAlready, "copies have the body"),
                    };
                    work.say(ingress, "mirror-request-body", outcome, message);
                }
            }
            None => {
                let message = "the target is no Service of the namespace: create one, or an XBackend (docs/xbackend.md), and a RequestMirror filter for it";
                work.say(ingress, "mirror-target", NotPossible, message);
            }
        }
    }

    fn read_redirects(&mut self, work: &mut Work<'_>, ingress: &Ingress) {
        let values = Values(ingress);
        for (name, code_name, default) in [
            ("temporal-redirect", "temporal-redirect-code", 302),
            ("permanent-redirect", "permanent-redirect-code", 301),
        ] {
            let Some(url) = values.text(name) else {
                continue;
            };
            if self.redirect.is_some() {
                work.say(
                    ingress,
                    name,
                    DefaultAlready,
                    "temporal-redirect takes precedence",
                );
                continue;
            }
            let code = values
                .number(code_name, &mut work.report)
                .unwrap_or(default);
            let code = match [301, 302, 303, 307, 308].contains(&code) {
                true => code,
                false => default,
            };
            if values.has(code_name) {
                work.say(
                    ingress,
                    code_name,
                    Converted,
                    "RequestRedirect filter statusCode",
                );
            }
            match redirect_to(url) {
                Some(mut redirect) => {
                    redirect["statusCode"] = json!(code);
                    let keeps_query = redirect["path"].is_object();
                    self.redirect = Some(redirect);
                    work.say(
                        ingress,
                        name,
                        Converted,
                        "RequestRedirect filter of the HTTPRoute",
                    );
                    if keeps_query {
                        let message = "the query of the request is kept";
                        work.say(ingress, name, ChangedMeaning, message);
                    }
                }
                None => {
                    let message = format!(
                        "`{url}` is no URL with a plain path: requests get 503 until a RequestRedirect filter is written by hand"
                    );
                    self.unavailable = Some(message.clone());
                    work.say(ingress, name, NotPossible, message);
                }
            }
        }
        if let Some(path) = values.text("app-root") {
            match is_path(path) && path.len() <= 1024 {
                true => {
                    self.app_root = Some(path.to_owned());
                    let message = "a rule of the HTTPRoute that redirects `/`";
                    work.say(ingress, "app-root", Converted, message);
                }
                false => {
                    let message =
                        format!("`{path}` is no plain path: write a rule that redirects `/`");
                    work.say(ingress, "app-root", NotPossible, message);
                }
            }
        }
    }

    fn read_protocol(&mut self, work: &mut Work<'_>, ingress: &Ingress) {
        let Some(protocol) = Values(ingress).text("backend-protocol") else {
            return;
        };
        let upper = protocol.to_ascii_uppercase();
        match upper.as_str() {
            "HTTP" => work.say(ingress, "backend-protocol", DefaultAlready, "HTTP/1.1"),
            "AUTO_HTTP" => {
                let message = "requests are sent in plain text; ingress-nginx sends those of clients with TLS with TLS";
                work.say(ingress, "backend-protocol", ChangedMeaning, message);
            }
            // The steps for backends and routes report these.
            "HTTPS" | "GRPC" | "GRPCS" => {}
            "AJP" | "FCGI" => {
                let message = format!("backends speak HTTP, and no {upper}: requests get 503");
                self.unavailable = Some(message.clone());
                work.say(ingress, "backend-protocol", NotPossible, message);
            }
            _ => {
                let message =
                    format!("`{protocol}` is no protocol, so that ingress-nginx uses HTTP");
                work.say(ingress, "backend-protocol", DefaultAlready, message);
            }
        }
    }
}

/// Returns a host in lower case. Names of variables stay as they are.
fn lower_case(host: &str) -> String {
    let lower = |part: &str| match part.starts_with('$') {
        true => part.to_owned(),
        false => part.to_ascii_lowercase(),
    };
    let parts: Vec<String> = host.split('.').map(lower).collect();
    parts.join(".")
}

/// Returns the Service and port of a URL such as `http://name.namespace.svc.cluster.local:8080$request_uri`.
fn service_of_url(url: &str, namespace: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let rest = rest.strip_suffix("$request_uri").unwrap_or(rest);
    let authority = rest.trim_end_matches('/');
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (authority, 80),
    };
    let mut labels = host.split('.');
    let (name, own) = (labels.next()?, labels.next());
    let is_service = matches!(labels.next(), None | Some("svc"));
    let fits = scheme == "http" && own.unwrap_or(namespace) == namespace && is_service;
    (fits && is_dns_name(name)).then(|| (name.to_owned(), port))
}

/// Returns the settings of a redirect to a URL.
fn redirect_to(url: &str) -> Option<Value> {
    let (scheme, rest) = url.split_once("://")?;
    if !["http", "https"].contains(&scheme) {
        return None;
    }
    let mut redirect = json!({"scheme": scheme});
    let end = rest.find(['/', '$', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
        None => (authority, None),
    };
    if !is_hostname(host) || host.starts_with('*') {
        return None;
    }
    redirect["hostname"] = json!(host);
    if let Some(port) = port {
        redirect["port"] = json!(port);
    }
    if path == "$request_uri" {
        return Some(redirect);
    }
    let path = if path.is_empty() { "/" } else { path };
    if !is_path(path) || path.contains('$') || path.len() > 1024 {
        return None;
    }
    redirect["path"] = json!({"type": "ReplaceFullPath", "replaceFullPath": path});
    Some(redirect)
}

/// Returns the name of a Service and the text of its port, for variables of nginx.
pub(super) fn substituted(value: &Value, namespace: &str, service: &str, port: &Port) -> Value {
    match value {
        Value::String(text) if text.contains('$') => {
            let text = text.replace("$service_name", service);
            let text = text.replace("$service_port", &port.to_string());
            text.replace("$namespace", namespace).into()
        }
        Value::Array(items) => {
            let items = items.iter();
            items
                .map(|item| substituted(item, namespace, service, port))
                .collect()
        }
        Value::Object(map) => {
            let entries = map.iter();
            let entries = entries
                .map(|(key, item)| (key.clone(), substituted(item, namespace, service, port)));
            Value::Object(entries.collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_become_redirects() {
        let path = |path: &str| json!({"type": "ReplaceFullPath", "replaceFullPath": path});
        for (url, expected) in [
            (
                "https://a.com",
                Some(json!({"scheme": "https", "hostname": "a.com", "path": path("/")})),
            ),
            (
                "https://a.com:8443/b",
                Some(
                    json!({"scheme": "https", "hostname": "a.com", "port": 8443, "path": path("/b")}),
                ),
            ),
            (
                "http://a.com$request_uri",
                Some(json!({"scheme": "http", "hostname": "a.com"})),
            ),
            ("https://$host/a", None),
            ("https://a.com/$1", None),
            ("https://a.com/a?b", None),
            ("/a", None),
            ("ftp://a.com/", None),
        ] {
            assert_eq!(redirect_to(url), expected, "{url}");
        }
    }

    #[test]
    fn urls_of_services_are_recognized() {
        let service = |url: &str| service_of_url(url, "shop");
        let found = Some(("copy".to_owned(), 80));
        assert_eq!(
            service("http://copy.shop.svc.cluster.local$request_uri"),
            found
        );
        assert_eq!(service("http://copy:80/"), found);
        assert_eq!(service("http://copy.other.svc"), None);
        assert_eq!(service("https://copy.shop.svc"), None);
        assert_eq!(service("http://copy.shop.com"), None);
    }
}
