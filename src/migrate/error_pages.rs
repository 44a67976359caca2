//! The pages of a default backend: `custom-http-errors` and `default-backend`.

use serde_json::{Map, Value, json};

use super::model::{Ingress, Name};
use super::read::is_dns_name;
use super::report::Outcome::{ChangedMeaning, NotPossible};
use super::values::Values;
use super::work::Work;

const ERRORS: &str = "custom-http-errors";
const BACKEND: &str = "default-backend";

/// The port of a Service that is not in the input.
const ASSUMED_PORT: u16 = 80;

/// Adds the section with the pages of an Ingress.
pub(super) fn add(work: &mut Work<'_>, ingress: &Ingress, sections: &mut Map<String, Value>) {
    let values = Values(ingress);
    let codes = codes(&values.list(ERRORS));
    if values.has(ERRORS) && codes.is_empty() {
        let text = "it names no status from 400 to 599";
        work.say(ingress, ERRORS, NotPossible, text);
    }
    let Some(service) = values.text(BACKEND) else {
        if !codes.is_empty() {
            let text = "the pages are those of the default backend of the controller, which is not known here: use RoutePolicy errorPages with its Service as backendRef, and a ReferenceGrant (docs/policies.md#error-pages)";
            work.say(ingress, ERRORS, NotPossible, text);
        }
        return;
    };
    if !is_name(service) {
        let text = format!("`{service}` is no name of a Service");
        work.say(ingress, BACKEND, NotPossible, text);
        if !codes.is_empty() {
            let text = "default-backend is no name of a Service";
            work.say(ingress, ERRORS, NotPossible, text);
        }
        return;
    }
    let name = Name::new(&ingress.name.namespace, service);
    let known = work.source.services.get(&name);
    let port = known.and_then(|service| service.ports.first());
    let port = port.map(|it| it.number);
    let page = |codes: &[u16], source: &str| {
        let port = port.unwrap_or(ASSUMED_PORT);
        json!({
            "codes": codes, "source": source, "keepStatus": false,
            "backendRef": {"name": service, "port": port},
        })
    };
    let mut pages = Vec::new();
    if !codes.is_empty() {
        pages.push(page(&codes, "Any"));
        let text = "RoutePolicy errorPages: the server gets GET / with X-Code, X-Format and X-Original-URI as before, but neither the query nor cookies, credentials or a body";
        work.say(ingress, ERRORS, ChangedMeaning, text);
    }
    if !codes.contains(&503) {
        pages.push(page(&[503], "Gateway"));
    }
    let text = "RoutePolicy errorPages: without an endpoint, the server is asked for a page for 503, and does not get the request itself";
    let text = match port {
        Some(_) => text.to_owned(),
        None => {
            format!("{text}; port {ASSUMED_PORT} is assumed, since {service} is not in the input")
        }
    };
    work.say(ingress, BACKEND, ChangedMeaning, text);
    sections.insert("errorPages".to_owned(), pages.into());
}

/// Reports whether a text can be the name of a Service: a DNS label (RFC 1123).
fn is_name(text: &str) -> bool {
    text.len() <= 63 && !text.contains('.') && is_dns_name(text)
}

/// Returns the statuses that pages can replace, each once.
fn codes(elements: &[&str]) -> Vec<u16> {
    let codes = elements.iter().filter_map(|text| text.parse().ok());
    let mut codes: Vec<u16> = codes.filter(|code| (400..=599).contains(code)).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}
