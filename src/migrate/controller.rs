//! The settings of the controller, from its ConfigMap, with the defaults of ingress-nginx.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::firewall::{self, Firewall};
use super::header_changes::HeaderChanges;
use super::model::{Ingress, Name, Source};
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::report::{Outcome, Report};
use super::settings::Settings;
use super::snippets;
use super::unread;
use super::values::{Values, cidrs, elements, flag, seconds, size};

/// The settings.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) ssl_redirect: bool,
    pub(super) force_ssl_redirect: bool,
    pub(super) redirect_code: u16,
    /// Beginnings of paths that are not redirected to HTTPS.
    without_redirect: Vec<String>,
    pub(super) limit_status: u16,
    pub(super) body_size: String,
    pub(super) stream_idle: Option<String>,
    pub(super) connect_timeout: Option<u64>,
    /// Value of `Strict-Transport-Security`, which ingress-nginx sends by default.
    pub(super) hsts: Option<String>,
    pub(super) allow: Vec<String>,
    pub(super) deny: Vec<String>,
    /// Whether every request is refused, since a list of addresses or of headers, or a snippet, cannot be converted.
    pub(super) closed: bool,
    /// Whether the address of clients is not that of their connections, in a way that is not converted.
    pub(super) changes_address: bool,
    pub(super) firewall: Firewall,
    /// Headers that backends must not take from clients, since `proxy-set-headers` or a snippet sets or removes them.
    pub(super) request: HeaderChanges,
    /// URL of the authorization server of Ingresses without one of their own.
    global_auth: Option<String>,
    /// Content codings of responses.
    pub(super) encodings: Vec<&'static str>,
    /// Sections of a ClientPolicy.
    pub(super) client: Map<String, Value>,
}

/// Keys without a meaning here, by prefix.
const WITHOUT_MEANING: &[&str] = &[
    "allow-backend-server-header",
    "allow-snippet-annotations",
    "annotations-risk-level",
    "annotation-value-word-blocklist",
    "client-body-buffer-size",
    "client-header-buffer-size",
    "disable-access-log",
    "enable-multi-accept",
    "generate-request-id",
    "gzip-",
    "http2-",
    "ignore-invalid-headers",
    "keep-alive",
    "large-client-header-buffers",
    "load-balance",
    "log-format-",
    "map-hash-bucket-size",
    "max-worker-",
    "proxy-buffer",
    "proxy-busy-buffers-size",
    "proxy-headers-hash-",
    "proxy-request-buffering",
    "reuse-port",
    "server-name-hash-",
    "server-tokens",
    "ssl-dh-param",
    "ssl-session-",
    "strict-validate-path-type",
    "upstream-keepalive-",
    "use-http2",
    "variables-hash-",
    "worker-",
];

const CLIENT_POLICY: &str = "ClientPolicy of the Gateway";

struct Reading<'a> {
    data: &'a BTreeMap<String, String>,
    object: String,
    report: &'a mut Report,
}

impl<'a> Reading<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        let text = self.data.get(key)?.trim();
        (!text.is_empty()).then_some(text)
    }

    fn say(&mut self, key: &str, outcome: Outcome, text: impl Into<String>) {
        self.report.add(self.object.clone(), key, outcome, text);
    }

    /// Reads a setting, and reports it.
    fn read<T>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Option<T>,
        outcome: Outcome,
        text: &str,
    ) -> Option<T> {
        let value = self.text(key)?;
        let parsed = parse(value);
        match parsed.is_some() {
            true => self.say(key, outcome, text),
            false => self.say(
                key,
                DefaultAlready,
                format!("`{value}` is not valid, so that ingress-nginx ignores it"),
            ),
        }
        parsed
    }
}

impl Controller {
    /// Reads the ConfigMap. Without one, the settings are the defaults of ingress-nginx.
    pub(super) fn new(source: &Source, settings: &Settings, report: &mut Report) -> Self {
        let none = BTreeMap::new();
        let name = settings.controller_config.as_ref();
        let data = name.and_then(|name| source.config_maps.get(name));
        let object = name.map_or_else(String::new, |name| format!("ConfigMap {name}"));
        if data.is_none() {
            unread::report(source, name, report);
        }
        let mut reading = Reading {
            data: data.unwrap_or(&none),
            object,
            report,
        };
        let mut controller = Self {
            ssl_redirect: true,
            force_ssl_redirect: false,
            redirect_code: 308,
            without_redirect: vec!["/.well-known/acme-challenge".to_owned()],
            limit_status: 503,
            body_size: "1Mi".to_owned(),
            stream_idle: None,
            connect_timeout: None,
            hsts: Some("max-age=31536000; includeSubDomains".to_owned()),
            allow: Vec::new(),
            deny: Vec::new(),
            closed: false,
            changes_address: false,
            firewall: Firewall::default(),
            request: HeaderChanges::default(),
            global_auth: None,
            encodings: Vec::new(),
            client: Map::new(),
        };
        controller.read_redirects(&mut reading);
        controller.read_limits(&mut reading);
        controller.read_addresses(&mut reading);
        controller.read_restrictions(&mut reading);
        controller.read_request_headers(source, &mut reading);
        controller.read_client(&mut reading);
        report_others(&mut reading);
        controller
    }

    fn read_redirects(&mut self, reading: &mut Reading<'_>) {
        let routes = "HTTPRoutes that redirect to HTTPS";
        if let Some(value) = reading.read("ssl-redirect", flag, Converted, routes) {
            self.ssl_redirect = value;
        }
        if let Some(value) = reading.read("force-ssl-redirect", flag, Converted, routes) {
            self.force_ssl_redirect = value;
        }
        if let Some(code) = reading.read("http-redirect-code", redirect_code, Converted, routes) {
            self.redirect_code = code;
        }
        let key = "no-tls-redirect-locations";
        if let Some(text) = reading.data.get(key) {
            self.without_redirect = elements(text).into_iter().map(str::to_owned).collect();
            reading.say(key, Converted, "HTTPRoutes without a redirect to HTTPS");
        }
        let header = "RoutePolicy responseHeaders of the ListenerSets";
        let enabled = reading
            .read("hsts", flag, Converted, header)
            .unwrap_or(true);
        let number = |text: &str| text.parse::<u64>().ok();
        let age = reading.read("hsts-max-age", number, Converted, header);
        let sub = reading.read("hsts-include-subdomains", flag, Converted, header);
        let preload = reading.read("hsts-preload", flag, Converted, header);
        let mut value = format!("max-age={}", age.unwrap_or(31_536_000));
        if sub.unwrap_or(true) {
            value.push_str("; includeSubDomains");
        }
        if preload.unwrap_or(false) {
            value.push_str("; preload");
        }
        self.hsts = enabled.then_some(value);
    }

    fn read_limits(&mut self, reading: &mut Reading<'_>) {
        let policy = "RoutePolicy requestBody.maxSize of the Gateway";
        if let Some(size) = reading.read("proxy-body-size", size, Converted, policy) {
            self.body_size = size;
        }
        let number = |text: &str| text.trim_end_matches('s').parse::<u64>().ok();
        let policy = "RoutePolicy timeouts.streamIdle of the Gateway";
        let read = reading.read("proxy-read-timeout", number, Converted, policy);
        let send = reading.read("proxy-send-timeout", number, Converted, policy);
        self.stream_idle = read.max(send).map(seconds);
        let policy = "BackendPolicy connection.connectTimeout of each Service";
        self.connect_timeout = reading.read("proxy-connect-timeout", number, Converted, policy);
        let status = |text: &str| text.parse().ok().filter(|it| (400..600).contains(it));
        let policy = "RateLimitPolicy response.status";
        if let Some(status) = reading.read("limit-req-status-code", status, Converted, policy) {
            self.limit_status = status;
        }
        let policy = "RoutePolicy compression of the Gateway";
        for (key, encoding) in [("enable-brotli", "br"), ("use-gzip", "gzip")] {
            if reading.read(key, flag, Converted, policy) == Some(true) {
                self.encodings.push(encoding);
            }
        }
    }

    fn read_addresses(&mut self, reading: &mut Reading<'_>) {
        for (key, is_deny) in [
            ("whitelist-source-range", false),
            ("denylist-source-range", true),
            ("block-cidrs", true),
        ] {
            let Some(text) = reading.text(key) else {
                continue;
            };
            let list = match is_deny {
                false => &mut self.allow,
                true => &mut self.deny,
            };
            match cidrs(&elements(text)) {
                Ok(found) => {
                    list.extend(found);
                    reading.say(key, Converted, "AccessPolicy ipRules of each Ingress");
                }
                Err(wrong) => {
                    self.closed = true;
                    let text =
                        format!("`{wrong}` is no address: all routes refuse all requests (403)");
                    reading.say(key, NotPossible, text);
                }
            }
        }
    }

    /// Reads what restricts access and is not converted.
    fn read_restrictions(&mut self, reading: &mut Reading<'_>) {
        self.global_auth = reading.text("global-auth-url").map(str::to_owned);
        self.firewall = Firewall::new(
            reading.text(firewall::ENABLE).and_then(flag),
            reading.text(firewall::RULES),
        );
        for key in ["http-snippet", "location-snippet", "server-snippet"] {
            let text = reading.text(key).unwrap_or_default();
            let snippet = snippets::parse(text);
            if snippet.may_restrict {
                self.closed = true;
                let text = "it may restrict access, so that all routes refuse all requests (403): look at what it does, and which policy does it";
                reading.say(key, NotPossible, text);
            } else if !snippet.request.is_empty() {
                let text = "filters of all routes set or remove the request headers that it changes: look at what else it does, and which policy does it";
                reading.say(key, NotPossible, text);
            }
            self.changes_address |= snippet.changes_address;
            self.request.extend(snippet.request);
        }
        // nginx ignores case and has regular expressions. `authorization` compares headers exactly.
        for key in ["block-user-agents", "block-referers"] {
            let text = reading.text(key).unwrap_or_default();
            if !elements(text).is_empty() {
                self.closed = true;
                let text = "AccessPolicies have no patterns for headers, so that all routes refuse all requests (403): refuse these requests before the Gateway or in the backends, and delete `authorization` of the AccessPolicies";
                reading.say(key, NotPossible, text);
            }
        }
    }

    /// Reads the headers that backends get from a ConfigMap.
    fn read_request_headers(&mut self, source: &Source, reading: &mut Reading<'_>) {
        let key = "proxy-set-headers";
        let Some(text) = reading.text(key) else {
            return;
        };
        let map = Name::parse(text, "");
        let Some(headers) = source.config_maps.get(&map) else {
            // Backends may trust any of them.
            self.closed = true;
            let text = format!(
                "ConfigMap {text} is not in the input, so that all routes refuse all requests (403): add it, and migrate again"
            );
            reading.say(key, NotPossible, text);
            return;
        };
        let snippet = snippets::of_request_headers(headers);
        match snippet.refused.is_empty() {
            true => {
                let text = "request header filters of all routes";
                reading.say(key, Converted, text);
            }
            false => {
                let names = snippet.refused.join(", ");
                let text = format!(
                    "filters cannot set {names} to these values, so that backends do not get those of nginx"
                );
                reading.say(key, NotPossible, text);
            }
        }
        self.request.extend(snippet.request);
    }

    /// Reports whether requests to a path are never redirected to HTTPS.
    pub(super) fn is_without_redirect(&self, path: &str) -> bool {
        let mut beginnings = self.without_redirect.iter();
        beginnings.any(|beginning| path.starts_with(beginning))
    }

    /// Reports whether it restricts who may send requests to any path.
    pub(super) fn restricts_all(&self) -> bool {
        self.closed || !self.allow.is_empty() || !self.deny.is_empty()
    }

    /// Reports whether requests of an Ingress need the permission of `global-auth-url`. A server of its own takes its place.
    pub(super) fn asks_global_server(&self, ingress: &Ingress) -> bool {
        let values = Values(ingress);
        self.global_auth.is_some()
            && values.flag("enable-global-auth") != Some(false)
            && values.text("auth-url").is_none()
    }

    /// Reads where the address of a client is. Where that is not converted, lists of addresses close their routes.
    fn read_client_address(&mut self, reading: &mut Reading<'_>) {
        let text = CLIENT_POLICY;
        let proxies = reading.text("proxy-real-ip-cidr");
        let proxies = proxies.map(|text| cidrs(&elements(text)));
        let trusted = match &proxies {
            Some(Ok(list)) => {
                reading.say("proxy-real-ip-cidr", Converted, text);
                Some(list.clone())
            }
            Some(Err(wrong)) => {
                let text = format!("`{wrong}` is no address: addresses in headers are not trusted");
                reading.say("proxy-real-ip-cidr", NotPossible, text);
                None
            }
            None => None,
        };
        for key in ["use-proxy-protocol", "use-forwarded-headers"] {
            if reading.text(key).and_then(flag) != Some(true) {
                reading.read(
                    key,
                    flag,
                    DefaultAlready,
                    "addresses are those of connections",
                );
                continue;
            }
            if key == "use-forwarded-headers" {
                let text = "redirects to HTTPS do not look at X-Forwarded-Proto: where a load balancer ends TLS, let it send requests to port 443, or set ssl-redirect and force-ssl-redirect to false";
                reading.say(key, ChangedMeaning, text);
            }
            let Some(trusted) = &trusted else {
                // Trusting every address lets each client choose its own.
                self.changes_address = true;
                let text = "ingress-nginx trusts every address, and routes with lists of addresses refuse all requests (403): set proxy-real-ip-cidr to those of the load balancers, and migrate again";
                reading.say(key, NotPossible, text);
                continue;
            };
            reading.say(key, Converted, text);
            let (section, value) = match key {
                "use-proxy-protocol" => (
                    "proxyProtocol",
                    json!({"mode": "Required", "trustedCIDRs": trusted}),
                ),
                _ => (
                    "clientIP",
                    json!({"xForwardedFor": {"trustedCIDRs": trusted}}),
                ),
            };
            self.client.insert(section.to_owned(), value);
        }
        let is_on = |key: &str| reading.text(key).and_then(flag) == Some(true);
        let is_real = is_on("enable-real-ip");
        let header = reading.text("forwarded-for-header");
        let is_other = header.is_some_and(|it| !it.eq_ignore_ascii_case("X-Forwarded-For"));
        let is_read = is_real || is_on("use-forwarded-headers");
        self.changes_address |= is_read && is_other || is_real && self.client.is_empty();
    }

    /// Reads what becomes a ClientPolicy of the Gateway.
    fn read_client(&mut self, reading: &mut Reading<'_>) {
        self.read_client_address(reading);
        let text = CLIENT_POLICY;
        let underscores = reading.read("enable-underscores-in-headers", flag, Converted, text);
        let sent = [
            "X-Forwarded-For",
            "X-Forwarded-Proto",
            "X-Forwarded-Host",
            "X-Forwarded-Port",
            "X-Real-IP",
        ];
        let mut headers = json!({"forwarded": sent, "requestID": "Trust"});
        if !underscores.unwrap_or(false) {
            headers["underscores"] = json!("Drop");
        }
        self.client.insert("headers".to_owned(), headers);
        let path = json!({"dotSegments": "Normalize"});
        self.client.insert("path".to_owned(), path);
        if let Some(protocols) = reading.text("ssl-protocols") {
            match protocols == "TLSv1.3" {
                true => {
                    self.client
                        .insert("tls".to_owned(), json!({"minVersion": "1.3"}));
                    reading.say("ssl-protocols", Converted, text);
                }
                false => reading.say(
                    "ssl-protocols",
                    DefaultAlready,
                    "TLS 1.2 and 1.3; older versions do not exist",
                ),
            }
        }
    }
}

fn redirect_code(text: &str) -> Option<u16> {
    text.parse()
        .ok()
        .filter(|it| [301, 302, 303, 307, 308].contains(it))
}

/// Reports the keys that no step has read.
fn report_others(reading: &mut Reading<'_>) {
    let data = reading.data;
    for key in data.keys() {
        if reading.report.has_setting(&reading.object, key) {
            continue;
        }
        let has_meaning = !WITHOUT_MEANING.iter().any(|prefix| key.starts_with(prefix));
        match key.as_str() {
            _ if !has_meaning => {
                reading.say(
                    key,
                    DefaultAlready,
                    "it has no meaning for Portcullis (docs/settings.md)",
                );
            }
            "ssl-ciphers" | "ssl-prefer-server-ciphers" => {
                let text = "cipher suites are those of rustls, all with forward secrecy: ClientPolicy tls.cipherSuites selects some";
                reading.say(key, ChangedMeaning, text);
            }
            "http-snippet" | "main-snippet" | "server-snippet" | "location-snippet"
            | "stream-snippet" => {
                reading.say(key, NotPossible, "there is no nginx configuration: look at what it does, and which policy does it");
            }
            firewall::ENABLE | firewall::RULES | "enable-owasp-modsecurity-crs" => {
                let text = "there is no web application firewall: put one before the Gateway, or behind it. Routes for which it may refuse requests refuse all (403)";
                reading.say(key, NotPossible, text);
            }
            "global-auth-url" | "global-auth-signin" => {
                reading.say(
                    key,
                    NotPossible,
                    "routes without a server of their own refuse all requests (403): write `external` of their AccessPolicies (docs/policies.md#authorization-servers)",
                );
            }
            _ => {
                let text = "look at docs/settings.md and docs/policies.md for what does the same";
                reading.say(key, NotPossible, text);
            }
        }
    }
}
