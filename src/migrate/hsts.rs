//! HSTS: the header, and where it is set for hosts with the default certificate, whose listener other hosts have too.

use serde_json::{Map, Value, json};

use super::hosts::Certificate;
use super::model::Ingress;
use super::report::Outcome::ChangedMeaning;
use super::work::Work;

/// Returns the section of a RoutePolicy that sets the header.
pub(super) fn section(value: &str) -> Value {
    json!({"set": [{"name": "Strict-Transport-Security", "value": value}]})
}

/// Adds the header to what an Ingress answers for hosts with the default certificate. ingress-nginx sends it for those
/// with `tls`, and not for those that it redirects without.
pub(super) fn add(work: &mut Work<'_>, ingress: &Ingress, sections: &mut Map<String, Value>) {
    let (hosts, controller) = (work.hosts, work.controller);
    let Some(value) = &controller.hsts else {
        return;
    };
    let names = hosts.names(ingress);
    let is_default = |name: &&String| {
        let host = hosts.get(name);
        host.is_some_and(|host| host.certificate == Some(Certificate::Default))
    };
    let has_tls = |name: &&String| hosts.get(name).is_some_and(|host| host.has_tls);
    let with_default = names.iter().filter(is_default);
    let (with, without): (Vec<&String>, Vec<&String>) =
        with_default.partition(|name| !name.is_empty() && has_tls(name));
    if with.is_empty() {
        return;
    }
    if !without.is_empty() {
        let text = "responses for hosts with the default certificate have no Strict-Transport-Security, since the Ingress has hosts without tls too: split it, or set the header by a RoutePolicy";
        work.say(ingress, "tls", ChangedMeaning, text);
        return;
    }
    sections.insert("responseHeaders".to_owned(), section(value));
    let mut with = with.into_iter().filter_map(|name| hosts.get(name));
    if with.any(|host| !work.is_redirected(ingress, host)) {
        let text =
            "responses without TLS have Strict-Transport-Security too, which browsers ignore there";
        work.say(ingress, "tls", ChangedMeaning, text);
    }
}
