//! What an explanation says that a client and a backend get, compared with what they got.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use regex::Regex;
use serde_json::Value;

use super::configuration::BY_FILTER;
use super::sent::Sent;
use crate::client::Answer;

/// Headers of the client that backends get as they are, unless a filter changes them.
const OBSERVED: [&str; 3] = ["x-version", "x-id", "x-secret"];

/// A request and what became of it.
pub(super) struct Exchange<'a> {
    pub(super) sent: &'a Sent,
    /// The section of the port in the explanation.
    pub(super) explained: &'a Value,
    /// `None` if the handshake was refused.
    pub(super) answer: Option<&'a Answer>,
    /// Line of the access log.
    pub(super) line: Option<&'a Value>,
    /// Names of Services by endpoint.
    pub(super) services: &'a BTreeMap<SocketAddr, &'static str>,
}

/// A difference between an explanation and what the proxy did.
pub(super) type Difference = String;

impl Exchange<'_> {
    /// Compares the explanation with the exchange, and names the outcome.
    pub(super) fn compare(&self) -> Result<String, Difference> {
        let outcome = &self.explained["outcome"];
        let Some(answer) = self.answer else {
            for name in ["route", "rule", "status"] {
                same(name, &outcome[name], &Value::Null)?;
            }
            let reason = outcome["reason"].as_str().unwrap_or_default();
            if !reason.ends_with("the handshake is refused") {
                return Err(format!("the reason is {reason:?}"));
            }
            return Ok("the handshake is refused".to_owned());
        };
        let line = self.line.ok_or("no line of the access log")?;
        for name in ["route", "rule"] {
            let logged = line.get(name).cloned().unwrap_or_default();
            same(name, &outcome[name], &logged)?;
        }
        let explained = match outcome["grpcStatus"].as_str() {
            Some(status) => format!("gRPC status {status}"),
            None => outcome["status"].to_string(),
        };
        if outcome["route"].is_null() {
            same("response", &explained, &response(answer))?;
            return Ok(format!("no rule: {explained}"));
        }
        let outcome_of_rule = self.outcome_of_rule(answer, line)?;
        let refusals = [
            self.error("403", "PERMISSION_DENIED"),
            self.error("401", "UNAUTHENTICATED"),
        ];
        if !outcome["status"].is_null() && !refusals.contains(&outcome_of_rule) {
            same("response", &explained, &response(answer))?;
        }
        Ok(format!(
            "{} {}: {outcome_of_rule}",
            outcome["route"], outcome["rule"]
        ))
    }

    /// Returns the lines of the explanation with a label.
    fn lines(&self, label: &str) -> Vec<&str> {
        let lines = self.explained[label].as_array();
        lines
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    fn is_call(&self) -> bool {
        let types = self.sent.values("content-type");
        types.first().is_some_and(|it| is_grpc(it))
    }

    /// The response that a policy or a filter makes, as [`response`] prints it.
    fn error(&self, status: &'static str, grpc: &'static str) -> String {
        match self.is_call() {
            true => format!("gRPC status {grpc}"),
            false => status.to_owned(),
        }
    }

    fn outcome_of_rule(&self, answer: &Answer, line: &Value) -> Result<String, Difference> {
        let denied = self
            .lines("ipRules")
            .iter()
            .any(|rules| denies_loopback(rules));
        if denied {
            let expected = self.error("403", "PERMISSION_DENIED");
            same("response", &expected, &response(answer))?;
            return Ok(expected);
        }
        if !self.lines("credentials").is_empty() && !self.has_key() {
            let expected = self.error("401", "UNAUTHENTICATED");
            same("response", &expected, &response(answer))?;
            return Ok(expected);
        }
        let filters = self.lines("filters");
        if let Some(text) = filters
            .iter()
            .find_map(|it| it.strip_prefix("redirect with status "))
        {
            return self.redirected(text, answer);
        }
        let respond = filters
            .iter()
            .find_map(|it| it.strip_prefix("respond with status "));
        if let Some(status) = respond {
            same("response", &status.to_owned(), &response(answer))?;
            return Ok(status.to_owned());
        }
        self.forwarded(answer, line)
    }

    /// Compares the new location with `text`, such as `301, scheme https, host a.com, port 80, path /b`.
    fn redirected(&self, text: &str, answer: &Answer) -> Result<String, Difference> {
        let mut parts = text.split(", ");
        let status = parts.next().unwrap_or_default();
        same("response", &status.to_owned(), &response(answer))?;
        let location: http::Uri = answer
            .header("location")
            .parse()
            .map_err(|_| "no location")?;
        let mut expected_path = canonical(path_of(&self.sent.path));
        let is_tls = self.sent.port == 443;
        let (mut scheme, mut port) = (if is_tls { "https" } else { "http" }, self.sent.port);
        let host = bare(&self.sent.host);
        let mut host = &*host;
        for part in parts {
            match part.split_once(' ') {
                Some(("scheme", name)) => {
                    scheme = name;
                    port = if name == "https" { 443 } else { 80 };
                }
                Some(("host", name)) => host = name,
                Some(("port", number)) => port = number.parse().map_err(|_| "no port")?,
                Some(("path", change)) => expected_path = changed(change, &expected_path)?,
                _ => return Err(format!("unknown part of a redirect: {part}")),
            }
        }
        let default = if scheme == "https" { 443 } else { 80 };
        same("scheme", &Some(scheme), &location.scheme_str())?;
        same("host", &Some(host), &location.host())?;
        let expected_port = (port != default).then_some(port);
        same("port", &expected_port, &location.port_u16())?;
        let expected_path = unless_changed(path_of(&self.sent.path), expected_path);
        same("path", &&*expected_path, &location.path())?;
        same("query", &query_of(&self.sent.path), &location.query())?;
        Ok(format!("redirected with {status}"))
    }

    /// Compares the backend, and what it got, with the shares of the explanation.
    fn forwarded(&self, answer: &Answer, line: &Value) -> Result<String, Difference> {
        let shares = shares(&self.lines("backends"));
        let possible = |share: &&Share<'_>| share.percent != "0.0";
        let upstream = line["upstream"].as_str().and_then(|it| it.parse().ok());
        let Some(service) = upstream.and_then(|address| self.services.get(&address)) else {
            let response = response(answer);
            let refuses = shares
                .iter()
                .filter(possible)
                .any(|it| it.text.contains(&response));
            return match refuses {
                true => Ok(response),
                false => Err(format!("no backend is explained to lead to {response}")),
            };
        };
        let name = format!("Service default/{service}:80 ");
        let share = shares
            .iter()
            .filter(possible)
            .find(|it| it.text.starts_with(&name));
        let share = share.ok_or_else(|| format!("{service} is not explained"))?;
        same("response", &"200".to_owned(), &response(answer))?;
        let filters = self.lines("filters").into_iter();
        let filters: Vec<_> = filters.chain(share.details.iter().copied()).collect();
        self.response_headers(&filters, answer)?;
        if !answer.body.is_empty() {
            self.received(&filters, &answer.received())?;
        }
        Ok((*service).to_owned())
    }

    fn response_headers(&self, filters: &[&str], answer: &Answer) -> Result<(), Difference> {
        for name in filters
            .iter()
            .filter_map(|it| it.strip_prefix("set response header "))
        {
            same(name, &BY_FILTER, &answer.header(name))?;
        }
        Ok(())
    }

    /// Compares the request that the backend got with the one that was sent, as filters and policies change it.
    fn received(&self, filters: &[&str], received: &Value) -> Result<(), Difference> {
        let credentials = self.lines("credentials");
        let hides_key = credentials
            .iter()
            .any(|it| !it.contains("kept for the backend"));
        let header = |name: &str| received["headers"][name].as_str();
        if hides_key {
            same("API key", &None, &header("x-api-key"))?;
            same("client", &true, &header("x-client").is_some())?;
        }
        let mut path = canonical(path_of(&self.sent.path));
        let mut host = Some(&*self.sent.host);
        for change in filters.iter().filter_map(|it| it.strip_prefix("rewrite, ")) {
            if let Some(change) = change.strip_prefix("path parts that match ") {
                path = replaced(change, &path)?;
                continue;
            }
            for part in change.split(", ") {
                match part.split_once(' ') {
                    Some(("host", name)) => host = Some(name),
                    Some(("path", change)) => path = changed(change, &path)?,
                    _ => return Err(format!("unknown part of a rewrite: {part}")),
                }
            }
        }
        let is_http2 = received["version"] == "HTTP/2.0";
        let named = if is_http2 {
            received["authority"].as_str()
        } else {
            header("host")
        };
        same("host", &host, &named)?;
        let path = match self.lines("forwarded").is_empty() {
            true => unless_changed(path_of(&self.sent.path), path),
            false => path,
        };
        let query = query_of(&self.sent.path);
        let target = match query.and_then(|query| query_without_key(query, hides_key)) {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        same("target", &Some(&*target), &received["path"].as_str())?;
        same(
            "method",
            &Some(self.sent.method),
            &received["method"].as_str(),
        )?;
        OBSERVED.into_iter().try_for_each(|name| {
            let expected = self.expected_header(name, filters);
            same(name, &expected.as_deref(), &header(name))
        })?;
        let set = filters
            .iter()
            .filter_map(|it| it.strip_prefix("set request header "));
        set.into_iter()
            .try_for_each(|name| same(name, &Some(BY_FILTER), &header(name)))
    }

    /// Returns what a backend gets of a header of the client.
    fn expected_header(&self, name: &str, filters: &[&str]) -> Option<String> {
        let hop_by_hop = self.sent.values("connection");
        let mut values = self.sent.values(name);
        if hop_by_hop
            .iter()
            .any(|it| it.split(", ").any(|it| it == name))
        {
            values.clear();
        }
        for filter in filters {
            match filter.rsplit_once(' ') {
                Some(("set request header", it)) if it == name => values = vec![BY_FILTER],
                Some(("add request header", it)) if it == name => values.push(BY_FILTER),
                Some(("remove request header", it)) if it == name => values.clear(),
                _ => {}
            }
        }
        (!values.is_empty()).then(|| values.join(","))
    }

    /// Whether the request has one of the keys, in the first place that the explanation names.
    fn has_key(&self) -> bool {
        let query = query_of(&self.sent.path).unwrap_or_default();
        let parameters = form_urlencoded::parse(query.as_bytes());
        let parameters: Vec<_> = parameters.filter(|(name, _)| name == "key").collect();
        let mut keys: Vec<&str> = self.sent.values("x-api-key");
        if keys.is_empty() {
            keys = parameters.iter().map(|(_, value)| &**value).collect();
        }
        matches!(*keys, ["key-of-shop" | "key-of-billing"])
    }
}

/// A backend in an explanation.
struct Share<'a> {
    percent: &'a str,
    text: &'a str,
    /// Its endpoints and filters.
    details: Vec<&'a str>,
}

fn shares<'a>(lines: &[&'a str]) -> Vec<Share<'a>> {
    let mut shares: Vec<Share<'a>> = Vec::new();
    for line in lines {
        match (line.split_once(" %  "), shares.last_mut()) {
            (Some((percent, text)), _) => shares.push(Share {
                percent,
                text,
                details: Vec::new(),
            }),
            (None, Some(share)) => share.details.push(line),
            (None, None) => shares.push(Share {
                percent: "100.0",
                text: line,
                details: Vec::new(),
            }),
        }
    }
    shares
}

/// Prints a response as explanations do: its status, or that of gRPC.
fn response(answer: &Answer) -> String {
    let name = match answer.header("grpc-status") {
        "" => return answer.status.to_string(),
        "7" => "PERMISSION_DENIED",
        "8" => "RESOURCE_EXHAUSTED",
        "12" => "UNIMPLEMENTED",
        "13" => "INTERNAL",
        "14" => "UNAVAILABLE",
        "16" => "UNAUTHENTICATED",
        other => other,
    };
    format!("gRPC status {name}")
}

fn is_grpc(media_type: &str) -> bool {
    let rest = media_type.to_lowercase();
    let rest = rest.strip_prefix("application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
}

/// Reports whether IP rules such as `every address, but not 127.0.0.0/8 (AccessPolicy ns/name)` refuse the client.
fn denies_loopback(rules: &str) -> bool {
    let (allowed, denied) = rules.split_once(", but not ").unwrap_or((rules, ""));
    let is_allowed = allowed.starts_with("every address") || allowed.contains("127.0.0.0/8");
    !is_allowed || denied.contains("127.0.0.0/8")
}

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

fn query_of(target: &str) -> Option<&str> {
    target.split_once('?').map(|(_, query)| query)
}

/// Returns the host without port and final dot, in lower case.
fn bare(host: &str) -> String {
    let host = host.split(':').next().unwrap_or_default();
    host.trim_end_matches('.').to_lowercase()
}

/// Returns the path as it was sent, unless something has changed it.
fn unless_changed(sent: &str, path: String) -> String {
    match path == canonical(sent) {
        true => sent.to_owned(),
        false => path,
    }
}

/// Returns the form by which paths are compared and rewritten: slashes are merged, and unreserved characters are not escaped.
pub(crate) fn canonical(path: &str) -> String {
    let mut canonical = String::new();
    let mut rest = path;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        let escaped = rest.get(..2).and_then(|it| u8::from_str_radix(it, 16).ok());
        match (character, escaped) {
            ('/', _) if canonical.ends_with('/') => {}
            ('%', Some(byte)) => {
                rest = &rest[2..];
                match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    true => canonical.push(byte.into()),
                    false => canonical.push_str(&format!("%{byte:02X}")),
                }
            }
            _ => canonical.push(character),
        }
    }
    canonical
}

/// Returns a query as it is if it has no key or the key is not hidden; `None` if nothing is left of it.
fn query_without_key(query: &str, hides_key: bool) -> Option<String> {
    let is_key = |pair: &&str| *pair == "key" || pair.starts_with("key=");
    if !hides_key || !query.split('&').any(|pair| is_key(&pair)) {
        return Some(query.to_owned());
    }
    let others: Vec<_> = query.split('&').filter(|pair| !is_key(pair)).collect();
    (!others.is_empty()).then(|| others.join("&"))
}

/// Applies a change such as `prefix /a becomes /b`, or `/c`, to a path.
fn changed(change: &str, path: &str) -> Result<String, Difference> {
    let Some(change) = change.strip_prefix("prefix ") else {
        return Ok(change.to_owned());
    };
    let (prefix, to) = change.split_once(" becomes ").ok_or("no replacement")?;
    let rest = path
        .strip_prefix(prefix)
        .ok_or("the prefix is not that of the path")?;
    Ok(match rest {
        "" => to.to_owned(),
        rest => format!("{}{rest}", to.trim_end_matches('/')),
    })
}

/// Applies a change such as `^/a to /b` to a path.
fn replaced(change: &str, path: &str) -> Result<String, Difference> {
    let (pattern, to) = change.rsplit_once(" to ").ok_or("no replacement")?;
    let pattern = Regex::new(pattern).map_err(|error| error.to_string())?;
    Ok(pattern.replace_all(path, to).into_owned())
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    explained: &T,
    done: &T,
) -> Result<(), Difference> {
    match explained == done {
        true => Ok(()),
        false => Err(format!("{what}: explained is {explained:?}, done {done:?}")),
    }
}
