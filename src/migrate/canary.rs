//! Canary Ingresses: the share of requests, headers and cookies that another backend gets on a path of a main Ingress.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::hosts::{Hosts, is_canary};
use super::model::{Backend, Ingress, Name, PathKind, PathRule, Source};
use super::report::Outcome::{Converted, DefaultAlready, NotPossible};
use super::report::Report;
use super::values::Values;

/// The canaries of paths, by host, path and type.
#[derive(Debug, Default)]
pub(super) struct Canaries<'a> {
    paths: BTreeMap<(String, String, PathKind), (&'a Ingress, &'a Backend)>,
    used: Vec<&'a Name>,
}

/// How a canary gets requests.
pub(super) struct Split {
    pub(super) backend: Backend,
    /// Headers of requests for the canary, and of those for the main backend, in order.
    pub(super) rules: Vec<(Value, bool)>,
    /// Weights of the main backend and the canary, for other requests.
    pub(super) weights: Option<(u64, u64)>,
}

impl<'a> Canaries<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        let mut canaries = Self::default();
        let ingresses = source.by_precedence();
        for ingress in ingresses.into_iter().filter(|it| is_canary(it)) {
            for rule in &ingress.rules {
                for path in &rule.paths {
                    let key = (rule.host.clone(), path.path.clone(), path.kind);
                    canaries
                        .paths
                        .entry(key)
                        .or_insert((ingress, &path.backend));
                }
            }
        }
        canaries
    }

    /// Returns the canary of each of the paths of a host.
    pub(super) fn of_paths(&self, host: &str, paths: &[PathRule]) -> Vec<Option<Name>> {
        let canary = |path: &PathRule| {
            let key = (host.to_owned(), path.path.clone(), path.kind);
            let (ingress, _) = self.paths.get(&key)?;
            Some(ingress.name.clone())
        };
        paths.iter().map(canary).collect()
    }

    /// Returns the backends of the canaries of an Ingress. One of another namespace gets no requests.
    pub(super) fn backends(&self, hosts: &Hosts, main: &Ingress) -> Vec<&'a Backend> {
        let mut found = Vec::new();
        for rule in &main.rules {
            for path in &rule.paths {
                let owner = hosts.owner(&rule.host, &path.path, path.kind);
                let key = (rule.host.clone(), path.path.clone(), path.kind);
                if let Some((ingress, backend)) = self.paths.get(&key)
                    && owner == Some(&main.name)
                    && ingress.name.namespace == main.name.namespace
                {
                    found.push(*backend);
                }
            }
        }
        found
    }

    /// Returns how a path of an Ingress is split. A canary of another namespace is reported.
    pub(super) fn split(
        &mut self,
        host: &str,
        path: &str,
        kind: PathKind,
        main: &Ingress,
        report: &mut Report,
    ) -> Option<Split> {
        let key = (host.to_owned(), path.to_owned(), kind);
        let (ingress, backend) = self.paths.get(&key)?;
        self.used.push(&ingress.name);
        if ingress.name.namespace != main.name.namespace {
            let text = format!(
                "Ingress {} is in another namespace: its backend gets no requests; add a backendRef with a ReferenceGrant",
                main.name
            );
            report.ingress(&ingress.name, "canary", NotPossible, text);
            return None;
        }
        Some(split(ingress, (*backend).clone(), main, report))
    }

    /// Reports canaries without a main Ingress, and what canaries inherit.
    pub(super) fn finish(&self, source: &Source, report: &mut Report) {
        for ingress in source.ingresses.iter().filter(|it| is_canary(it)) {
            if !self.used.contains(&&ingress.name) {
                let text =
                    "no other Ingress has its host and path, so that ingress-nginx ignores it";
                report.ingress(&ingress.name, "canary", DefaultAlready, text);
            }
            for name in ingress.annotations.keys() {
                if !report.has(&ingress.name, name) {
                    let text = "a canary has the settings of its main Ingress";
                    report.ingress(&ingress.name, name, DefaultAlready, text);
                }
            }
        }
    }
}

/// Returns the conditions on a header, and whether each is for the canary.
fn header_rules(values: Values<'_>, header: &str, report: &mut Report) -> Vec<(Value, bool)> {
    let of = |kind: &str, value: &str| json!({"name": header, "type": kind, "value": value});
    match (
        values.text("canary-by-header-value"),
        values.text("canary-by-header-pattern"),
    ) {
        (Some(value), _) => vec![(of("Exact", value), true)],
        (None, Some(pattern)) => match crate::ir::Pattern::new(&format!(".*(?:{pattern}).*")) {
            Ok(found) if super::snippets::is_value(found.source()) => {
                vec![(of("RegularExpression", found.source()), true)]
            }
            found => {
                let error = found
                    .err()
                    .unwrap_or_else(|| "it has blanks or other characters".to_owned());
                let text = format!("it is no regular expression of RE2: {error}");
                let name = &values.0.name;
                report.ingress(name, "canary-by-header-pattern", NotPossible, text);
                Vec::new()
            }
        },
        (None, None) => vec![(of("Exact", "always"), true), (of("Exact", "never"), false)],
    }
}

fn split(ingress: &Ingress, backend: Backend, main: &Ingress, report: &mut Report) -> Split {
    let values = Values(ingress);
    let name = &ingress.name;
    let text = format!("HTTPRoute of Ingress {}", main.name);
    report.ingress(name, "canary", Converted, &text);
    let mut rules = Vec::new();
    let header = values.text("canary-by-header");
    let names = [
        header,
        values.text("canary-by-header-value"),
        values.text("canary-by-cookie"),
    ];
    let is_valid = header.is_none_or(super::snippets::is_header)
        && names.into_iter().flatten().all(super::snippets::is_value);
    if !is_valid {
        let text = "a header has a name or value that requests cannot have: its rules are left out";
        report.ingress(name, "canary", NotPossible, text);
    }
    if let Some(header) = header.filter(|_| is_valid) {
        rules.extend(header_rules(values, header, report));
    }
    if let Some(cookie) = values.text("canary-by-cookie").filter(|_| is_valid) {
        let escaped = regex::escape(cookie);
        for (value, is_canary) in [("always", true), ("never", false)] {
            let pattern = format!("(.*; ?)?{escaped}={value}(;.*)?");
            let header = json!({"name": "Cookie", "type": "RegularExpression", "value": pattern});
            rules.push((header, is_canary));
        }
    }
    let given = values.number("canary-weight-total", report);
    // ingress-nginx counts to 100 at least.
    let total = given.unwrap_or(100).clamp(100, 1_000_000);
    if given.is_some_and(|given| given < total) {
        let text =
            "it is less than 100, so that canary-weight is a percentage, as in ingress-nginx";
        report.ingress(name, "canary-weight-total", DefaultAlready, text);
    }
    let weight = values.number("canary-weight", report);
    let weights = weight.map(|weight| {
        let weight = weight.min(total);
        (total - weight, weight)
    });
    for setting in [
        "canary-by-cookie",
        "canary-by-header",
        "canary-by-header-pattern",
        "canary-by-header-value",
        "canary-weight",
        "canary-weight-total",
    ] {
        if values.has(setting) && !report.has(name, setting) {
            report.ingress(name, setting, Converted, &text);
        }
    }
    Split {
        backend,
        rules,
        weights,
    }
}
