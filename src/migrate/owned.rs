//! The paths that an Ingress owns on its hosts, and the aliases of these.

use super::hosts::aliases;
use super::model::{Ingress, PathKind, PathRule};
use super::report::Outcome::{Converted, DefaultAlready, NotPossible};
use super::values::Values;
use super::work::Work;

/// Returns the paths of a host that an Ingress owns.
pub(super) fn paths(work: &mut Work<'_>, ingress: &Ingress, host: &str) -> Vec<PathRule> {
    let mut found: Vec<PathRule> = Vec::new();
    let of_host = work.hosts.canonical(host);
    let rules = ingress.rules.iter().filter(|rule| rule.host == of_host);
    for path in rules.flat_map(|rule| &rule.paths) {
        let is_known = found
            .iter()
            .any(|it| it.path == path.path && it.kind == path.kind);
        let owner = work.hosts.owner(host, &path.path, path.kind).cloned();
        match owner.filter(|owner| *owner != ingress.name) {
            None if is_known => {}
            None => found.push(path.clone()),
            Some(owner) => {
                let place = format!("path {}", path.path);
                let text = format!("Ingress {owner} comes first and has it, as in ingress-nginx");
                work.say(ingress, &place, DefaultAlready, text);
            }
        }
    }
    if let Some(backend) = &ingress.default_backend
        && !work.hosts.has_path(host, "/")
    {
        if !work.hosts.is_default(host, ingress) {
            let text = format!(
                "it gets no requests to {}, as in ingress-nginx: a host has the default backend of its first Ingress, and other hosts have that of the first Ingress without rules",
                if host.is_empty() { "other hosts" } else { host }
            );
            work.say(ingress, "defaultBackend", DefaultAlready, text);
            return found;
        }
        found.push(PathRule {
            path: "/".to_owned(),
            kind: PathKind::Prefix,
            backend: backend.clone(),
        });
    }
    found
}

pub(super) fn report_aliases(work: &mut Work<'_>, ingress: &Ingress) {
    let names = Values(ingress).list("server-alias");
    if names.is_empty() {
        return;
    }
    let valid = aliases(ingress);
    if valid.len() < names.len() {
        let text = "aliases with regular expressions do not exist: name each host";
        work.say(ingress, "server-alias", NotPossible, text);
    }
    let served = work.hosts.names(ingress);
    let (used, unused): (Vec<String>, Vec<String>) =
        valid.into_iter().partition(|alias| served.contains(alias));
    if !used.is_empty() {
        let text = "hostnames of the HTTPRoute";
        work.say(ingress, "server-alias", Converted, text);
    }
    if !unused.is_empty() {
        let names = unused.join(", ");
        let text = format!(
            "{names}: other Ingresses have these names, or the aliases of the host, as in ingress-nginx"
        );
        work.say(ingress, "server-alias", DefaultAlready, text);
    }
}
