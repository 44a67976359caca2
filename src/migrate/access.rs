//! Restrictions of access: addresses, passwords, authorization servers, certificates of clients. What cannot be
//! converted closes the routes of the Ingress.

use serde_json::{Map, Value, json};

use super::auth_server;
use super::firewall::{ENABLE, RULES};
use super::grants::grant;
use super::hosts::asks_for_certificates;
use super::model::{Ingress, Name};
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::values::{Values, cidrs};
use super::work::Work;
use crate::ir::authentication::PasswordHash;

const CLOSED: &str = "the routes refuse all requests (403) until this is replaced";

/// Returns the sections of the AccessPolicy of an Ingress.
pub(super) fn sections(work: &mut Work<'_>, ingress: &Ingress, closed: bool) -> Map<String, Value> {
    let mut sections = Map::new();
    let mut closed = closed || work.controller.closed;
    closed |= !addresses(work, ingress, &mut sections);
    closed |= !passwords(work, ingress, &mut sections);
    closed |= !servers(work, ingress, &mut sections);
    closed |= !certificates(work, ingress);
    closed |= !firewall_rules(work, ingress);
    closed |= is_host_closed(work, ingress);
    satisfy(work, ingress, &sections);
    if closed {
        sections.insert("authorization".to_owned(), json!({"default": "Deny"}));
    }
    sections
}

/// Converts lists of addresses. Returns false if that is not possible.
fn addresses(work: &mut Work<'_>, ingress: &Ingress, sections: &mut Map<String, Value>) -> bool {
    let values = Values(ingress);
    let mut rules = json!({});
    let mut is_valid = true;
    for (field, names, global) in [
        (
            "allow",
            &["whitelist-source-range", "allowlist-source-range"][..],
            &work.controller.allow,
        ),
        ("deny", &["denylist-source-range"], &work.controller.deny),
    ] {
        if !global.is_empty() {
            rules[field] = json!(global);
        }
        for name in names {
            if !values.has(name) {
                continue;
            }
            match cidrs(&values.list(name)) {
                Ok(list) if list.is_empty() => {
                    is_valid = false;
                    let text = format!("it has no address: {CLOSED}, as in ingress-nginx");
                    work.report.ingress(&ingress.name, name, NotPossible, text);
                }
                Ok(list) => {
                    rules[field] = json!(list);
                    let text = format!("AccessPolicy ipRules.{field}");
                    work.report.ingress(&ingress.name, name, Converted, text);
                }
                Err(wrong) => {
                    is_valid = false;
                    let text = format!("`{wrong}` is no address or CIDR: {CLOSED}");
                    work.report.ingress(&ingress.name, name, NotPossible, text);
                }
            }
        }
    }
    if rules != json!({}) {
        if changes_address(work, ingress) {
            is_valid = false;
            let text = format!(
                "the controller or a snippet takes the address of clients from a header or the PROXY protocol, and that is not converted: {CLOSED}"
            );
            work.say(ingress, "addresses", NotPossible, text);
        }
        let notice = "IP rules decide by the address of the client: behind a load balancer, ClientPolicy clientIP or proxyProtocol says where it is.";
        work.report.notice(notice);
        sections.insert("ipRules".to_owned(), rules);
    }
    is_valid
}

/// Reports whether the address of clients is not that of their connections. That of a load balancer may be permitted.
fn changes_address(work: &Work<'_>, ingress: &Ingress) -> bool {
    let snippets = ["configuration-snippet", "server-snippet"].into_iter();
    let mut snippets = snippets.filter_map(|name| Values(ingress).text(name));
    work.controller.changes_address
        || snippets.any(|text| super::snippets::parse(text).changes_address)
}

/// Converts Basic authentication. Returns false if that is not possible.
fn passwords(work: &mut Work<'_>, ingress: &Ingress, sections: &mut Map<String, Value>) -> bool {
    let values = Values(ingress);
    let Some(kind) = values.text("auth-type") else {
        for name in ["auth-secret", "auth-secret-type", "auth-realm"] {
            if values.has(name) {
                let text = "without auth-type, ingress-nginx asks for no password";
                work.say(ingress, name, DefaultAlready, text);
            }
        }
        return true;
    };
    if kind != "basic" {
        let text = format!("passwords of type `{kind}` do not exist: {CLOSED}");
        work.say(ingress, "auth-type", NotPossible, text);
        return false;
    }
    let secret = values.text("auth-secret");
    let Some(secret) = secret.map(|text| Name::parse(text, &ingress.name.namespace)) else {
        let text = format!("auth-secret is missing: {CLOSED}");
        work.say(ingress, "auth-type", NotPossible, text);
        return false;
    };
    if !super::read::is_object(&secret) {
        let text = format!("it is no name of a Secret: {CLOSED}");
        work.say(ingress, "auth-secret", NotPossible, text);
        return false;
    }
    work.say(ingress, "auth-type", Converted, "AccessPolicy basic");
    let mut reference = json!({"name": secret.name});
    if secret.namespace != ingress.name.namespace {
        reference["namespace"] = json!(secret.namespace);
        grant(work, ingress, ("Secret", ""), &secret);
    }
    let mut basic = json!({"secretRef": reference});
    if let Some(realm) = values.text("auth-realm") {
        let (outcome, text) = match is_realm(realm) {
            true => {
                basic["realm"] = json!(realm);
                (Converted, "AccessPolicy basic.realm")
            }
            false => (
                ChangedMeaning,
                "it has more than 128 bytes, or control characters: the realm is `restricted`",
            ),
        };
        work.say(ingress, "auth-realm", outcome, text);
    }
    sections.insert("basic".to_owned(), basic);
    report_secret(work, ingress, &secret);
    true
}

/// Reports whether a text can be the realm of an AccessPolicy.
fn is_realm(text: &str) -> bool {
    text.len() <= 128 && !text.contains(char::is_control)
}

fn report_secret(work: &mut Work<'_>, ingress: &Ingress, secret: &Name) {
    let kind = Values(ingress).text("auth-secret-type");
    if kind == Some("auth-map") {
        let text = format!(
            "Secret {secret} needs a key `auth` with lines NAME:HASH; until then requests get 500"
        );
        work.say(ingress, "auth-secret-type", NotPossible, text);
    } else if kind.is_some() {
        let text = "AccessPolicies read the key `auth`";
        work.say(ingress, "auth-secret-type", Converted, text);
    }
    let known = work.source.passwords.get(secret);
    let others = known.and_then(Option::as_ref).map(|lines| {
        let lines = lines.lines().map(str::trim_end);
        let hashes = lines.filter_map(|line| line.split_once(':'));
        let hashes = hashes.filter(|(name, _)| !name.starts_with('#'));
        let is_other = |(_, hash): &(&str, &str)| hash.parse::<PasswordHash>().is_err();
        hashes.filter(is_other).count()
    });
    let text = "AccessPolicy basic.secretRef";
    let (outcome, text) = match others {
        None | Some(0) => (Converted, text.to_owned()),
        Some(count) => {
            let text = format!(
                "{text}; {count} users of Secret {secret} have hashes that do not count here, such as those of `htpasswd -d`: set them again with `htpasswd -B`"
            );
            (NotPossible, text)
        }
    };
    work.say(ingress, "auth-secret", outcome, text);
}

/// Converts authorization servers. Returns false if there is one and that is not possible.
fn servers(work: &mut Work<'_>, ingress: &Ingress, sections: &mut Map<String, Value>) -> bool {
    let values = Values(ingress);
    if let Some(enabled) = values.text("enable-global-auth") {
        let text = match enabled {
            "false" => "there is no global authorization server",
            _ => "global-auth-url of the ConfigMap says whether there is a server",
        };
        work.say(ingress, "enable-global-auth", DefaultAlready, text);
    }
    if work.controller.asks_global_server(ingress) {
        let text = format!("global-auth-url of the ConfigMap is not converted: {CLOSED}");
        work.say(ingress, "enable-global-auth", NotPossible, text);
        return false;
    }
    auth_server::convert(work, ingress, sections)
}

/// Reports certificates of clients. Returns false if they are asked for.
fn certificates(work: &mut Work<'_>, ingress: &Ingress) -> bool {
    let values = Values(ingress);
    let names = [
        "auth-tls-secret",
        "auth-tls-verify-client",
        "auth-tls-match-cn",
        "auth-tls-error-page",
        "auth-tls-pass-certificate-to-upstream",
        "auth-tls-verify-depth",
    ];
    let is_on = asks_for_certificates(values);
    for name in names {
        if !values.has(name) {
            continue;
        }
        match (is_on, super::annotations::find(name)) {
            (true, Some(row)) => work.say(ingress, name, row.outcome, row.text),
            _ => {
                let text = "certificates of clients are not asked for";
                work.say(ingress, name, DefaultAlready, text);
            }
        }
    }
    !is_on
}

/// Reports the web application firewall. Returns false if it may refuse requests.
fn firewall_rules(work: &mut Work<'_>, ingress: &Ingress) -> bool {
    let values = Values(ingress);
    let is_restricted = work.controller.firewall.restricts(ingress);
    if is_restricted {
        let text = format!(
            "there is no web application firewall, and this one may refuse requests: {CLOSED}. Put one before the Gateway, or behind it"
        );
        work.say(ingress, ENABLE, NotPossible, text);
    }
    for name in [
        ENABLE,
        "enable-owasp-core-rules",
        RULES,
        "modsecurity-transaction-id",
    ] {
        let Some(text) = values.text(name) else {
            continue;
        };
        match super::annotations::find(name) {
            Some(row) if text != "false" => {
                // Each has one line.
                if !work.report.has(&ingress.name, name) {
                    work.say(ingress, name, NotPossible, row.text);
                }
            }
            _ => {
                let text = "there is no web application firewall";
                work.say(ingress, name, DefaultAlready, text);
            }
        }
    }
    !is_restricted
}

/// Reports whether another Ingress restricts all paths of a host: nginx has certificates of clients and `server-snippet` for
/// a server, and not for a path.
fn is_host_closed(work: &mut Work<'_>, ingress: &Ingress) -> bool {
    let Some(other) = work.hosts.restricted_by(ingress) else {
        return false;
    };
    let text = format!(
        "Ingress {other} restricts all paths of the host, by certificates of clients or server-snippet: {CLOSED}"
    );
    work.say(ingress, "host", NotPossible, text);
    true
}

/// Reports how several restrictions work together.
fn satisfy(work: &mut Work<'_>, ingress: &Ingress, sections: &Map<String, Value>) {
    let Some(satisfy) = Values(ingress).text("satisfy") else {
        return;
    };
    let has_credentials = sections.contains_key("basic") || sections.contains_key("external");
    let is_both = sections.contains_key("ipRules") && has_credentials;
    let (outcome, text) = match satisfy {
        "any" if is_both => (
            NotPossible,
            "addresses and credentials are both required here: leave out one of them in the AccessPolicy, or split the route",
        ),
        _ => (DefaultAlready, "all restrictions must be met"),
    };
    work.say(ingress, "satisfy", outcome, text);
}
