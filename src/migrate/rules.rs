//! The rules of the paths of an Ingress.

use serde_json::{Value, json};

use super::canary::Canaries;
use super::features::{Features, substituted};
use super::hosts::is_grpc;
use super::model::{Backend, Ingress, Name, PathKind, PathRule, Port};
use super::output::File;
use super::paths::{self, HostMode, Rewrite};
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::spellings;
use super::values::Values;
use super::work::Work;

/// Maximum number of matches that share a rule. The API permits 64, and 128 for a route of 16 rules.
const MAX_MATCHES: usize = 8;

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) matches: Vec<Value>,
    pub(super) filters: Vec<Value>,
    pub(super) backends: Vec<Value>,
}

impl Rule {
    pub(super) fn to_value(&self) -> Value {
        let mut rule = json!({"matches": self.matches});
        if !self.filters.is_empty() {
            rule["filters"] = json!(self.filters);
        }
        if !self.backends.is_empty() {
            rule["backendRefs"] = json!(self.backends);
        }
        rule
    }

    /// Reports whether both look at headers of requests for the same path, so that the first of them decides.
    fn ties(&self, other: &Self) -> bool {
        let of_headers = |it: &&Value| it["headers"].is_array();
        let mut own = self.matches.iter().filter(of_headers);
        own.any(|it| {
            let mut others = other.matches.iter().filter(of_headers);
            others.any(|other| other["path"] == it["path"])
        })
    }
}

/// What a step needs of the Ingress.
pub(super) struct RuleBuilder<'w, 'a, 'c> {
    pub(super) work: &'w mut Work<'a>,
    pub(super) canaries: &'w mut Canaries<'c>,
    pub(super) ingress: &'w Ingress,
    pub(super) features: &'w Features,
    /// RouteFilters that rewrite paths, in the order of their names.
    pub(super) rewrites: &'w mut Vec<Rewrite>,
}

impl RuleBuilder<'_, '_, '_> {
    /// Returns the rules of paths of a host.
    pub(super) fn rules(
        &mut self,
        host: &str,
        paths: &[PathRule],
        mode: HostMode,
        refused: Option<&Value>,
    ) -> Vec<Rule> {
        let mut rules: Vec<Rule> = Vec::new();
        let mut add = |rule: Rule| {
            let fits = |known: &&mut Rule| {
                known.filters == rule.filters
                    && known.backends == rule.backends
                    && known.matches.len() < MAX_MATCHES
            };
            // Not into a rule before one that decides with it.
            let first = rules.iter().rposition(|known| rule.ties(known));
            match rules.iter_mut().skip(first.unwrap_or(0)).find(fits) {
                Some(known) => known.matches.extend(rule.matches),
                None => rules.push(rule),
            }
        };
        if let Some(root) = &self.features.app_root {
            add(redirect("/", root, 302));
        }
        if let Some(matched) = refused {
            add(self.malformed(matched));
        }
        for path in paths {
            for rule in self.of_path(host, path, mode) {
                add(rule);
            }
            if let Some(rule) = self.slash(host, path, mode) {
                add(rule);
            }
        }
        rules
    }

    /// Returns the rule that redirects to a path with a slash at its end, as nginx does.
    fn slash(&mut self, host: &str, path: &PathRule, mode: HostMode) -> Option<Rule> {
        let without = path.path.strip_suffix('/').filter(|it| !it.is_empty())?;
        // GRPCRoutes have no redirects, and calls do not follow any.
        let is_plain =
            mode != HostMode::Regex && path.kind != PathKind::Exact && !is_grpc(self.ingress);
        let is_free = !self.work.hosts.has_path(host, without);
        let fits = is_plain && is_free && paths::is_path(&path.path);
        fits.then(|| redirect(without, &path.path, 301))
    }

    fn of_path(&mut self, host: &str, path: &PathRule, mode: HostMode) -> Vec<Rule> {
        let place = format!("path {}", path.path);
        if mode == HostMode::Regex {
            let paths = "all paths of the host are regular expressions, as in ingress-nginx";
            let rewrites = "RouteFilter regexRewrite; all paths of the host are regular expressions, as in ingress-nginx";
            for (name, text) in [("use-regex", paths), ("rewrite-target", rewrites)] {
                if Values(self.ingress).has(name) && !self.work.report.has(&self.ingress.name, name)
                {
                    self.work.say(self.ingress, name, Converted, text);
                }
            }
        }
        let located = self.work.hosts.place(host, path);
        let matched = match located.matching(path.kind, mode) {
            Ok(matched) => matched,
            Err(paths::Unusable { closed, reason }) => {
                let text = format!(
                    "{reason}: requests that it could be for get 503; write a rule by hand"
                );
                self.work.say(self.ingress, &place, NotPossible, text);
                return vec![self.unavailable(&closed)];
            }
        };
        let is_prefix = path.kind == PathKind::ImplementationSpecific && path.path != "/";
        if is_prefix && mode == HostMode::Plain && !path.path.ends_with('/') {
            let text = format!(
                "it is a prefix of whole segments: {}/x matches, {}x does not",
                path.path, path.path
            );
            self.work.say(self.ingress, &place, ChangedMeaning, text);
        }
        if let Some(redirect) = &self.features.redirect {
            let filter = json!({"type": "RequestRedirect", "requestRedirect": redirect});
            return vec![rule(&matched, vec![filter], Vec::new())];
        }
        if self.features.unavailable.is_some() {
            return vec![self.unavailable(&matched)];
        }
        let Some((service, port, main)) = self.backend(&path.backend, &place) else {
            return vec![self.unavailable(&matched)];
        };
        let Some(mut filters) = self.filters(path, &place) else {
            return vec![self.unavailable(&matched)];
        };
        let namespace = &self.ingress.name.namespace;
        for filter in &mut filters {
            *filter = substituted(filter, namespace, &service, &port);
        }
        self.with_canary(host, path, &matched, filters, main)
    }

    fn with_canary(
        &mut self,
        host: &str,
        path: &PathRule,
        matched: &Value,
        filters: Vec<Value>,
        main: Value,
    ) -> Vec<Rule> {
        let host = self.work.hosts.canonical(host);
        let report = &mut self.work.report;
        let split = self
            .canaries
            .split(host, &path.path, path.kind, self.ingress, report);
        let Some(split) = split else {
            return vec![rule(matched, filters, vec![main])];
        };
        let place = format!("canary of path {}", path.path);
        let Some((_, _, canary)) = self.backend(&split.backend, &place) else {
            return vec![rule(matched, filters, vec![main])];
        };
        let mut rules = Vec::new();
        // Rules with equal conditions count in their order. Headers come before cookies in ingress-nginx.
        for (header, is_canary) in split.rules {
            let backend = if is_canary {
                canary.clone()
            } else {
                main.clone()
            };
            let mut of_header = rule(matched, filters.clone(), vec![backend]);
            of_header.matches[0]["headers"] = json!([header]);
            rules.push(of_header);
        }
        let backends = match split.weights {
            Some((of_main, of_canary)) => {
                let (mut main, mut canary) = (main, canary);
                main["weight"] = json!(of_main);
                canary["weight"] = json!(of_canary);
                vec![main, canary]
            }
            None => vec![main],
        };
        rules.push(rule(matched, filters, backends));
        rules
    }

    /// Resolves a backend. Returns the Service, its port as written, and a backendRef.
    fn backend(&mut self, backend: &Backend, place: &str) -> Option<(String, Port, Value)> {
        let namespace = &self.ingress.name.namespace;
        match backend {
            Backend::Resource(name) => {
                let text =
                    format!("{name} is no Service: requests get 503; write a backendRef by hand");
                self.work.say(self.ingress, place, NotPossible, text);
                None
            }
            Backend::Service { name, port } => {
                let Some(number) = self.work.source.port(namespace, name, port) else {
                    let (outcome, text) = match self.work.source.service(namespace, name) {
                        Some(service) if service.is_external => (
                            NotPossible,
                            format!(
                                "Service {namespace}/{name} is of type ExternalName, which is not served: requests get 503; write a backendRef to an XBackend (docs/xbackend.md)"
                            ),
                        ),
                        Some(_) => (
                            DefaultAlready,
                            format!(
                                "Service {namespace}/{name} has no port {port}: requests get 503, as in ingress-nginx"
                            ),
                        ),
                        None => (
                            NotPossible,
                            format!(
                                "port {port} of Service {namespace}/{name} is a name, and the Service is not in the input: add it. Requests get 503"
                            ),
                        ),
                    };
                    self.work.say(self.ingress, place, outcome, text);
                    return None;
                };
                let reference = json!({"name": name, "port": number});
                Some((name.clone(), port.clone(), reference))
            }
        }
    }

    /// Returns the filters of a path; `None` if its requests cannot be forwarded.
    fn filters(&mut self, path: &PathRule, place: &str) -> Option<Vec<Value>> {
        let features = self.features;
        let mut filters = Vec::new();
        if let Some(cors) = &features.cors {
            filters.push(json!({"type": "CORS", "cors": cors}));
        }
        if !features.request.is_empty() {
            let changes = features.request.filter();
            filters
                .push(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": changes}));
        }
        if !features.response.is_empty() {
            let changes = features.response.filter();
            filters
                .push(json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": changes}));
        }
        if let Some(mirror) = &features.mirror {
            filters.push(json!({"type": "RequestMirror", "requestMirror": mirror}));
        }
        if let Some(host) = &features.vhost {
            filters.push(json!({"type": "URLRewrite", "urlRewrite": {"hostname": host}}));
        }
        // A target that equals the path is none in ingress-nginx.
        let target = features
            .rewrite
            .as_ref()
            .filter(|target| **target != path.path);
        if let Some(target) = target {
            match paths::rewrite(&path.path, target) {
                Ok(rewrite) => {
                    let name = self.rewrite(rewrite);
                    filters.push(extension(&name));
                }
                Err(reason) => {
                    let text = format!("{place}: {reason}. Requests get 503");
                    self.work
                        .say(self.ingress, "rewrite-target", NotPossible, text);
                    return None;
                }
            }
        }
        Some(filters)
    }

    /// Returns the name of the RouteFilter of a rewrite.
    fn rewrite(&mut self, rewrite: Rewrite) -> String {
        let known = self.rewrites.iter().position(|known| *known == rewrite);
        let index = known.unwrap_or(self.rewrites.len());
        let Name { namespace, name } = &self.ingress.name;
        let name = format!("{}-rewrite-{}", short(name), index + 1);
        if known.is_none() {
            let spec = json!({"regexRewrite": {"pattern": rewrite.pattern, "replacement": rewrite.replacement}});
            let file = File::Ingress(self.ingress.name.clone());
            let object = Name::new(namespace, &name);
            self.work.output.policy(&file, "RouteFilter", &object, spec);
            self.rewrites.push(rewrite);
        }
        name
    }

    /// Returns a rule for paths that are spelled to evade a restriction of another path.
    fn malformed(&mut self, matched: &Value) -> Rule {
        let text = match spellings::is_any(matched) {
            true => {
                "the host has restricted paths and others: paths with percent-encoded characters, such as `%40` or `%C3%A9`, get 400, since nginx decodes paths before it compares them, and regular expressions of the host tell such characters apart"
            }
            false => {
                "the host has restricted paths and others: paths with percent-encoded slashes, or other reserved characters of the paths of the host, get 400, since nginx decodes paths before it compares them"
            }
        };
        self.work.say(self.ingress, "paths", ChangedMeaning, text);
        self.respond(matched, "malformed", 400, "Bad request.")
    }

    /// Returns a rule for requests that cannot be forwarded.
    fn unavailable(&mut self, matched: &Value) -> Rule {
        let body = "This path could not be migrated.";
        self.respond(matched, "unavailable", 503, body)
    }

    fn respond(&mut self, matched: &Value, reason: &str, status: u16, body: &str) -> Rule {
        let Name { namespace, name } = &self.ingress.name;
        let name = format!("{}-{reason}", short(name));
        let spec = json!({"directResponse": {"status": status, "body": body}});
        let file = File::Ingress(self.ingress.name.clone());
        let object = Name::new(namespace, &name);
        self.work.output.policy(&file, "RouteFilter", &object, spec);
        rule(matched, vec![extension(&name)], Vec::new())
    }
}

fn rule(matched: &Value, filters: Vec<Value>, backends: Vec<Value>) -> Rule {
    Rule {
        matches: vec![json!({"path": matched})],
        filters,
        backends,
    }
}

fn extension(name: &str) -> Value {
    json!({
        "type": "ExtensionRef",
        "extensionRef": {"group": "portcullis.dev", "kind": "RouteFilter", "name": name},
    })
}

fn redirect(from: &str, to: &str, status: u16) -> Rule {
    let path = json!({"type": "ReplaceFullPath", "replaceFullPath": to});
    let redirect = json!({"path": path, "statusCode": status});
    let filter = json!({"type": "RequestRedirect", "requestRedirect": redirect});
    let matched = json!({"type": "Exact", "value": from});
    rule(&matched, vec![filter], Vec::new())
}

/// Returns a name to which something can be appended.
pub(super) fn short(name: &str) -> &str {
    let end = name
        .char_indices()
        .nth(180)
        .map_or(name.len(), |(end, _)| end);
    name[..end].trim_end_matches(['-', '.'])
}
