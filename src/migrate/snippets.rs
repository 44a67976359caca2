//! Snippets of nginx configuration: those that only change headers become header changes, others are refused by name.

use std::collections::BTreeMap;

use super::directives::{Directive, directives};
use super::harmless::{changes_address, is_harmless};
use super::header_changes::HeaderChanges;

/// What a snippet does.
#[derive(Debug, Default)]
pub(super) struct Snippet {
    pub(super) request: HeaderChanges,
    pub(super) response: HeaderChanges,
    /// Directives that are how Portcullis works.
    pub(super) defaults: Vec<String>,
    /// Directives that cannot be converted.
    pub(super) refused: Vec<String>,
    /// Whether a directive that cannot be converted may refuse requests.
    pub(super) may_restrict: bool,
    /// Whether a directive changes the address of clients, which lists of addresses are for.
    pub(super) changes_address: bool,
    /// Whether `add_header` without `always` has become a header of all responses.
    pub(super) for_all_statuses: bool,
}

/// Directives of settings that have no meaning here, or are defaults.
const DEFAULTS: &[&str] = &[
    "proxy_buffering",
    "proxy_buffer_size",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_http_version",
    "proxy_request_buffering",
    "proxy_cache",
    "proxy_redirect",
    "chunked_transfer_encoding",
    "client_body_buffer_size",
    "large_client_header_buffers",
    "gzip",
    "sendfile",
    "tcp_nodelay",
    "tcp_nopush",
    "proxy_ssl_server_name",
];

/// Request headers that backends get without a setting, with these values of nginx.
const SENT_ALREADY: &[(&str, &[&str])] = &[
    ("host", &["$host", "$http_host", "$best_http_host"]),
    ("upgrade", &["$http_upgrade"]),
    ("connection", &["upgrade", "$connection_upgrade", ""]),
    ("x-real-ip", &["$remote_addr", "$the_real_ip"]),
    (
        "x-forwarded-for",
        &["$remote_addr", "$proxy_add_x_forwarded_for"],
    ),
    ("x-forwarded-proto", &["$scheme", "$pass_access_scheme"]),
    (
        "x-forwarded-host",
        &["$host", "$http_host", "$best_http_host"],
    ),
    ("x-forwarded-port", &["$server_port", "$pass_port"]),
    ("x-request-id", &["$request_id", "$req_id"]),
];

/// Variables whose values are known for each rule.
pub(super) const KNOWN_VARIABLES: [&str; 3] = ["$service_name", "$service_port", "$namespace"];

/// Parses a snippet.
pub(super) fn parse(text: &str) -> Snippet {
    let mut snippet = Snippet::default();
    let Ok(directives) = directives(text) else {
        snippet
            .refused
            .push("text that is no list of directives".to_owned());
        snippet.may_restrict = true;
        return snippet;
    };
    for Directive { words, depth } in directives {
        let Some((name, arguments)) = words.split_first() else {
            continue;
        };
        if depth > 0 || !convert(name, arguments, &mut snippet) {
            if !snippet.refused.contains(name) {
                snippet.refused.push(name.clone());
            }
            snippet.may_restrict |= !is_harmless(name, depth);
            snippet.changes_address |= changes_address(name);
        }
    }
    snippet
}

/// Parses headers that nginx sets for backends, by name.
pub(super) fn of_request_headers(headers: &BTreeMap<String, String>) -> Snippet {
    let mut snippet = Snippet::default();
    for (name, value) in headers {
        let arguments = [name.clone(), value.clone()];
        if !convert("proxy_set_header", &arguments, &mut snippet) {
            snippet.refused.push(name.clone());
        }
    }
    snippet
}

/// Converts a directive. Returns false if that is not possible.
fn convert(name: &str, arguments: &[String], snippet: &mut Snippet) -> bool {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if DEFAULTS.contains(&name) {
        snippet.defaults.push(name.to_owned());
        return true;
    }
    match (name, arguments.as_slice()) {
        ("proxy_set_header" | "grpc_set_header", [header, value]) => {
            let header_name = header.to_ascii_lowercase();
            let is_default = SENT_ALREADY.iter().any(|(known, values)| {
                *known == header_name && values.iter().any(|it| value.eq_ignore_ascii_case(it))
            });
            let of_client = format!("$http_{}", header_name.replace('-', "_"));
            if is_default || *value == of_client {
                snippet.defaults.push(format!("{name} {header}"));
                return true;
            }
            if value.is_empty() && is_header(header) {
                snippet.request.remove.push((*header).to_owned());
                return true;
            }
            let is_set = set(&mut snippet.request, header, value);
            if !is_set {
                withhold(&mut snippet.request, header);
            }
            is_set
        }
        ("add_header", [header, value, rest @ ..]) => {
            let fits = is_header(header) && is_constant(value);
            if !fits || !matches!(rest, [] | ["always"]) {
                return false;
            }
            snippet.for_all_statuses |= rest.is_empty();
            let entry = ((*header).to_owned(), (*value).to_owned());
            snippet.response.add.push(entry);
            true
        }
        ("more_set_headers", headers) => more_set(&mut snippet.response, headers),
        ("more_set_input_headers", headers) => {
            let are_set = more_set(&mut snippet.request, headers);
            if !are_set {
                let names = headers.iter().filter_map(|header| header.split_once(':'));
                names.for_each(|(name, _)| withhold(&mut snippet.request, name.trim()));
            }
            are_set
        }
        ("more_clear_headers", headers) => remove(&mut snippet.response, headers),
        ("more_clear_input_headers", headers) => remove(&mut snippet.request, headers),
        ("proxy_hide_header", [header]) => remove(&mut snippet.response, &[*header]),
        ("server_tokens", ["off"]) | ("proxy_pass_request_headers", ["on"]) => {
            snippet.defaults.push(name.to_owned());
            true
        }
        _ => false,
    }
}

fn more_set(changes: &mut HeaderChanges, headers: &[&str]) -> bool {
    let parsed: Option<Vec<(&str, &str)>> = headers
        .iter()
        .map(|header| {
            let (name, value) = header.split_once(':')?;
            let (name, value) = (name.trim(), value.trim());
            (is_header(name) && is_constant(value)).then_some((name, value))
        })
        .collect();
    let Some(parsed) = parsed.filter(|it| !it.is_empty()) else {
        return false;
    };
    for (name, value) in parsed {
        match value.is_empty() {
            true => changes.remove.push(name.to_owned()),
            false => changes.set(name, value),
        }
    }
    true
}

fn set(changes: &mut HeaderChanges, name: &str, value: &str) -> bool {
    let fits = is_header(name) && is_constant(value) && !name.eq_ignore_ascii_case("host");
    if fits {
        changes.set(name, value);
    }
    fits
}

/// Removes a header that nginx replaces by a value that cannot be converted: backends would take that of a client for it.
fn withhold(changes: &mut HeaderChanges, name: &str) {
    let is_sent = |(known, _): &(&str, &[&str])| name.eq_ignore_ascii_case(known);
    if is_header(name) && !SENT_ALREADY.iter().any(is_sent) {
        changes.remove.push(name.to_owned());
    }
}

fn remove(changes: &mut HeaderChanges, names: &[&str]) -> bool {
    let names: Vec<&str> = names.iter().map(|it| it.trim_end_matches(':')).collect();
    // `X-*` is each header that begins so, and `-s` a condition.
    let is_plain = |name: &&str| is_header(name) && !name.contains('*') && !name.starts_with('-');
    let fits = !names.is_empty() && names.iter().all(is_plain);
    if fits {
        changes
            .remove
            .extend(names.iter().map(|it| (*it).to_owned()));
    }
    fits
}

/// Headers that filters may not change.
const FRAMING: [&str; 7] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Reports whether a text is the name of a header that filters may change.
pub(super) fn is_header(name: &str) -> bool {
    name.len() <= 256
        && http::HeaderName::from_bytes(name.as_bytes()).is_ok()
        && !FRAMING.contains(&name.to_ascii_lowercase().as_str())
}

/// Reports whether a value has no variables of nginx but those that are known for each rule.
pub(super) fn is_constant(value: &str) -> bool {
    let mut rest = value.to_owned();
    for variable in KNOWN_VARIABLES {
        rest = rest.replace(variable, "");
    }
    !rest.contains('$') && is_value(value)
}

/// Reports whether a filter may set this value: printable characters, with single blanks between.
pub(super) fn is_value(value: &str) -> bool {
    let is_word = |word: &str| word.bytes().all(|byte| byte.is_ascii_graphic());
    value.len() <= 4000
        && (value.is_empty()
            || value
                .split(' ')
                .all(|word| !word.is_empty() && is_word(word)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn header_directives_become_changes() {
        let snippet = parse(
            "# a comment; with a semicolon\n\
             more_set_headers \"X-Frame-Options: DENY\" 'X-A: b; c';\n\
             more_clear_headers Server;\n\
             add_header X-B \"c\" always;\n\
             proxy_set_header X-C \"$service_name.$namespace\";\n\
             proxy_set_header Upgrade $http_upgrade;\n\
             proxy_set_header Connection \"upgrade\";\n\
             proxy_hide_header X-Powered-By;",
        );
        assert!(snippet.refused.is_empty(), "{snippet:?}");
        let response = snippet.response.filter();
        assert_eq!(
            response,
            json!({
                "set": [{"name": "X-Frame-Options", "value": "DENY"}, {"name": "X-A", "value": "b; c"}],
                "add": [{"name": "X-B", "value": "c"}],
                "remove": ["Server", "X-Powered-By"],
            })
        );
        assert_eq!(
            snippet.request.filter(),
            json!({"set": [{"name": "X-C", "value": "$service_name.$namespace"}]})
        );
        assert_eq!(snippet.defaults.len(), 2);
        assert!(!snippet.for_all_statuses);
    }

    #[test]
    fn headers_that_nginx_replaces_are_not_those_of_clients() {
        for (text, removed, is_refused) in [
            (
                "proxy_set_header X-User $remote_user;",
                Some("X-User"),
                true,
            ),
            (
                "more_set_input_headers 'X-User: $remote_user';",
                Some("X-User"),
                true,
            ),
            ("proxy_set_header X-Real-IP $http_x;", None, true),
            (
                "proxy_set_header Authorization $http_authorization;",
                None,
                false,
            ),
        ] {
            let Snippet {
                request, refused, ..
            } = parse(text);
            assert_eq!(
                request.remove.first().map(String::as_str),
                removed,
                "{text}"
            );
            assert_eq!(!refused.is_empty(), is_refused, "{text}");
        }
    }

    #[test]
    fn other_directives_are_refused_by_name() {
        for (text, refused, may_restrict) in [
            ("deny all;", "deny", true),
            ("location /x { deny all; }", "location", true),
            ("if ($http_a = \"}\") { return 403; }", "if", true),
            ("return 403;", "return", true),
            (
                "proxy_set_header X-A $remote_user;",
                "proxy_set_header",
                false,
            ),
            (
                "more_set_headers \"X-A: $upstream_http_b\";",
                "more_set_headers",
                false,
            ),
            ("sub_filter a b;", "sub_filter", false),
            (
                "more_clear_headers X-Hidden-*;",
                "more_clear_headers",
                false,
            ),
            (
                "more_clear_headers -s 404 Server;",
                "more_clear_headers",
                false,
            ),
            (
                "more_set_headers \"X-A: b",
                "text that is no list of directives",
                true,
            ),
            ("} deny all; {", "text that is no list of directives", true),
            ("deny all", "text that is no list of directives", true),
            ("map $http_a $b { default 0; '}' 1; }", "map", false),
            (
                "upstream a { balancer_by_lua_block { error() } }",
                "upstream",
                true,
            ),
            (
                "limit_req_zone $b zone=c:1m rate=1r/s;",
                "limit_req_zone",
                false,
            ),
            ("limit_req zone=c;", "limit_req", true),
            ("error_page 502 /down.html;", "error_page", false),
            (
                "proxy_next_upstream_tries 2;",
                "proxy_next_upstream_tries",
                false,
            ),
            ("set_real_ip_from 10.0.0.0/8;", "set_real_ip_from", false),
            (
                "proxy_pass_request_headers off;",
                "proxy_pass_request_headers",
                true,
            ),
        ] {
            let snippet = parse(text);
            assert_eq!(snippet.refused, [refused], "{text}");
            assert_eq!(snippet.may_restrict, may_restrict, "{text}");
        }
    }
}
