//! The routes of an Ingress: one for its hosts with the same paths, and those that redirect to HTTPS.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::canary::Canaries;
use super::features::Features;
use super::grpc;
use super::hosts::Host;
use super::listeners::{Listeners, TlsParent};
use super::model::{Backend, Ingress, Name, PathKind, PathRule};
use super::order::Place;
use super::output::File;
use super::owned::{paths, report_aliases};
use super::paths::HostMode;
use super::policies::Target;
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::rules::{Rule, RuleBuilder, short};
use super::values::Values;
use super::work::{HTTP_LISTENER, HTTPS_LISTENER, Work};

/// Limits of the API for a route.
const MAX_RULES: usize = 16;
const MAX_HOSTNAMES: usize = 16;

/// State of the routes of all Ingresses.
pub(super) struct Routes<'c> {
    pub(super) canaries: Canaries<'c>,
    pub(super) listeners: Listeners,
    /// Names of routes in use.
    names: BTreeSet<Name>,
    /// Hosts whose requests are all redirected to HTTPS, by Ingress.
    redirected: BTreeSet<String>,
}

/// Hosts of an Ingress with the same rules and parents.
struct Group {
    hosts: Vec<String>,
    paths: Vec<PathRule>,
    /// The place of each path among those of the host.
    places: Vec<Place>,
    mode: HostMode,
    /// A match for paths that are refused.
    refused: Option<Value>,
    /// The canary of each path.
    canaries: Vec<Option<Name>>,
    parents: Parents,
}

/// Where the routes of a host are attached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Parents {
    tls: Option<TlsParent>,
    /// Whether requests without TLS get the same.
    plain: bool,
}

impl Group {
    /// Reports whether the hosts of both can share routes.
    fn is_like(&self, other: &Self) -> bool {
        self.paths == other.paths
            && self.places == other.places
            && self.mode == other.mode
            && self.refused == other.refused
            && self.canaries == other.canaries
            && self.parents == other.parents
    }
}

impl<'c> Routes<'c> {
    pub(super) fn new(canaries: Canaries<'c>, listeners: Listeners, ingresses: &[Ingress]) -> Self {
        Self {
            canaries,
            listeners,
            names: ingresses.iter().map(|it| it.name.clone()).collect(),
            redirected: BTreeSet::new(),
        }
    }

    /// Writes the routes of an Ingress. Returns what its policies target.
    pub(super) fn write(
        &mut self,
        work: &mut Work<'_>,
        ingress: &Ingress,
        features: &Features,
    ) -> Vec<Target> {
        let groups = self.groups(work, ingress);
        let is_grpc = grpc::fits(work, ingress, features);
        let (mut rewrites, mut targets) = (Vec::new(), Vec::new());
        let is_single = groups.len() == 1;
        for group in &groups {
            // A GRPCRoute has no expressions for paths: it matches whole names, and nothing else.
            let mode = match is_grpc {
                true => HostMode::Plain,
                false => group.mode,
            };
            let rules = RuleBuilder {
                work,
                canaries: &mut self.canaries,
                ingress,
                features,
                rewrites: &mut rewrites,
            }
            .rules(&group.hosts[0], &group.paths, mode, group.refused.as_ref());
            let base = match (is_single, group.hosts.first()) {
                (false, Some(host)) if !host.is_empty() => {
                    let host = host.replace('*', "wildcard");
                    format!("{}-{}", short(&ingress.name.name), short(&host))
                }
                _ => ingress.name.name.clone(),
            };
            let base = base.chars().take(200).collect::<String>();
            for hosts in group.hosts.chunks(MAX_HOSTNAMES) {
                for chunk in rules.chunks(MAX_RULES) {
                    let parents =
                        self.parent_refs(work, &ingress.name.namespace, hosts, &group.parents);
                    let kind = if is_grpc { "GRPCRoute" } else { "HTTPRoute" };
                    let values = chunk.iter().map(Rule::to_value);
                    let values: Vec<Value> = match is_grpc {
                        true => values.map(|rule| grpc::rule(&rule)).collect(),
                        false => values.collect(),
                    };
                    let name =
                        self.write_route(work, ingress, (kind, &base), (&parents, hosts), &values);
                    if !parents.is_empty() {
                        targets.push((kind, name));
                    }
                }
            }
            self.redirect(work, ingress, group, &rules);
        }
        self.www_redirects(work, ingress, &groups);
        targets
    }

    fn groups(&mut self, work: &mut Work<'_>, ingress: &Ingress) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        report_aliases(work, ingress);
        for name in work.hosts.names(ingress) {
            let Some(host) = work.hosts.get(&name) else {
                continue;
            };
            let paths = paths(work, ingress, &name);
            self.passthrough(work, ingress, &name, host, &paths);
            if paths.is_empty() {
                continue;
            }
            let parents = self.parents(work, ingress, &name);
            let is_plain =
                |path: &PathRule| parents.plain || work.controller.is_without_redirect(&path.path);
            let (plain, redirected): (Vec<PathRule>, _) = paths.into_iter().partition(is_plain);
            for (paths, plain) in [(redirected, false), (plain, true)] {
                if paths.is_empty() {
                    continue;
                }
                let parents = Parents {
                    plain,
                    ..parents.clone()
                };
                let group = self.group(work, &name, paths, parents);
                match groups.iter_mut().find(|known| known.is_like(&group)) {
                    Some(known) => known.hosts.extend(group.hosts),
                    None => groups.push(group),
                }
            }
        }
        groups
    }

    /// Returns the group of a host.
    fn group(&self, work: &Work<'_>, name: &str, paths: Vec<PathRule>, parents: Parents) -> Group {
        let hosts = work.hosts;
        let places = paths.iter().map(|path| hosts.place(name, path));
        let of_host = hosts.canonical(name);
        Group {
            hosts: vec![name.to_owned()],
            places: places.collect(),
            mode: hosts.get(name).map_or(HostMode::Plain, |host| host.mode),
            refused: hosts.refused(name),
            canaries: self.canaries.of_paths(of_host, &paths),
            paths,
            parents,
        }
    }

    /// Decides where the routes of a host are attached, and whether HTTP is redirected.
    fn parents(&self, work: &mut Work<'_>, ingress: &Ingress, name: &str) -> Parents {
        let values = Values(ingress);
        let defaults = work.controller;
        let report = &mut work.report;
        let force = values.flag_or("force-ssl-redirect", defaults.force_ssl_redirect, report);
        let soft = values.flag_or("ssl-redirect", defaults.ssl_redirect, report);
        let tls = self.listeners.get(name).cloned();
        // Without a certificate of its own, ingress-nginx redirects a host only if that is forced.
        let host = work.hosts.get(name);
        let has_certificate = tls.is_some() && host.is_some_and(Host::redirects);
        let is_redirected = tls.is_some() && force || has_certificate && soft;
        for (setting, value, has_tls) in [
            ("ssl-redirect", soft, has_certificate),
            ("force-ssl-redirect", force, tls.is_some()),
        ] {
            if !values.has(setting) || work.report.has(&ingress.name, setting) {
                continue;
            }
            match (value, has_tls) {
                (true, true) => {
                    let text = "an HTTPRoute that redirects to HTTPS";
                    work.say(ingress, setting, Converted, text);
                }
                (true, false) if setting == "force-ssl-redirect" => {
                    let text = "the host has no certificate: if TLS ends before the Gateway, redirect there, and else add tls, or pass --default-certificate";
                    work.say(ingress, setting, NotPossible, text);
                }
                (true, false) => {
                    let text =
                        "the host has no certificate, so that ingress-nginx does not redirect";
                    work.say(ingress, setting, DefaultAlready, text);
                }
                (false, _) => {
                    let text = "requests without TLS are served";
                    let outcome = match has_tls {
                        true => Converted,
                        false => DefaultAlready,
                    };
                    work.say(ingress, setting, outcome, text);
                }
            }
        }
        let is_passed = work
            .hosts
            .get(name)
            .is_some_and(|host| host.passthrough.is_some());
        Parents {
            // TLS that is passed through has a TLSRoute.
            tls: tls.filter(|_| !is_passed),
            plain: !is_redirected,
        }
    }

    fn parent_refs(
        &self,
        work: &Work<'_>,
        namespace: &str,
        hosts: &[String],
        parents: &Parents,
    ) -> Vec<Value> {
        let mut refs = Vec::new();
        for host in hosts {
            let parent = self.listeners.get(host).filter(|_| parents.tls.is_some());
            let reference = match parent {
                Some(TlsParent::ListenerSet(set)) => {
                    let mut reference = json!({"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": set.name});
                    if set.namespace != namespace {
                        reference["namespace"] = json!(set.namespace);
                    }
                    reference
                }
                Some(TlsParent::Gateway) => gateway(work, HTTPS_LISTENER),
                None => continue,
            };
            if !refs.contains(&reference) {
                refs.push(reference);
            }
        }
        if parents.plain {
            refs.push(gateway(work, HTTP_LISTENER));
        }
        refs
    }

    fn write_route(
        &mut self,
        work: &mut Work<'_>,
        ingress: &Ingress,
        (kind, base): (&'static str, &str),
        (parents, hosts): (&[Value], &[String]),
        rules: &[Value],
    ) -> String {
        let namespace = &ingress.name.namespace;
        let name = self.unused(namespace, base, &ingress.name);
        let mut spec = json!({"parentRefs": parents, "rules": rules});
        let hosts: Vec<&String> = hosts.iter().filter(|host| !host.is_empty()).collect();
        if !hosts.is_empty() {
            spec["hostnames"] = json!(hosts);
        }
        // A route of TLS that is passed through may have no other parent.
        if !parents.is_empty() {
            let file = File::Ingress(ingress.name.clone());
            let object = Name::new(namespace, &name);
            let text = format!("{kind} {object}");
            work.say(ingress, "", Converted, text);
            work.output.gateway_api(&file, kind, &object, spec);
        }
        name
    }

    /// Returns a name that no other route has. The name of the Ingress is reserved for its first route.
    fn unused(&mut self, namespace: &str, base: &str, owner: &Name) -> String {
        let reserved = Name::new(&format!("{namespace}/taken"), &owner.name);
        if base == owner.name && self.names.insert(reserved) {
            return base.to_owned();
        }
        let numbers =
            std::iter::once(String::new()).chain((2..).map(|number| format!("-{number}")));
        let mut names = numbers.map(|suffix| Name::new(namespace, &format!("{base}{suffix}")));
        let name = names.find(|name| self.names.insert(name.clone()));
        name.map_or_else(|| base.to_owned(), |name| name.name)
    }

    /// Writes the route that redirects requests without TLS: of a whole host if all of its Ingresses redirect.
    fn redirect(&mut self, work: &mut Work<'_>, ingress: &Ingress, group: &Group, rules: &[Rule]) {
        let has_tls = |host: &String| self.listeners.get(host).is_some();
        if group.parents.plain || !group.hosts.iter().any(has_tls) {
            return;
        }
        let redirects_all = |host: &&String| {
            work.hosts.get(host).is_none_or(|host| {
                host.ingresses.iter().all(|name| {
                    let mut others = work.source.ingresses.iter();
                    let other = others.find(|it| it.name == *name);
                    other.is_some_and(|other| work.is_redirected(other, host))
                })
            })
        };
        let (whole, mixed): (Vec<&String>, Vec<&String>) =
            group.hosts.iter().partition(redirects_all);
        let whole: Vec<String> = whole.into_iter().cloned().collect();
        let new = whole
            .into_iter()
            .filter(|host| self.redirected.insert(host.clone()));
        let new: Vec<String> = new.collect();
        let code = work.controller.redirect_code;
        let redirect = json!({"scheme": "https", "statusCode": code});
        let filter = json!([{"type": "RequestRedirect", "requestRedirect": redirect}]);
        let base = format!("{}-https-redirect", short(&ingress.name.name));
        let parents = [gateway(work, HTTP_LISTENER)];
        for hosts in new.chunks(MAX_HOSTNAMES) {
            let rule = json!({"filters": filter});
            self.write_route(
                work,
                ingress,
                ("HTTPRoute", &base),
                (&parents, hosts),
                &[rule],
            );
        }
        let matches: Vec<&Value> = rules.iter().flat_map(|rule| &rule.matches).collect();
        let mixed: Vec<String> = mixed.into_iter().cloned().collect();
        for hosts in mixed.chunks(MAX_HOSTNAMES) {
            for matches in matches.chunks(64) {
                let rule = json!({"matches": matches, "filters": filter});
                self.write_route(
                    work,
                    ingress,
                    ("HTTPRoute", &base),
                    (&parents, hosts),
                    &[rule],
                );
            }
        }
    }

    /// Writes the TLSRoute of a host whose TLS is passed through.
    fn passthrough(
        &mut self,
        work: &mut Work<'_>,
        ingress: &Ingress,
        name: &str,
        host: &Host,
        paths: &[PathRule],
    ) {
        if host.passthrough.as_ref() != Some(&ingress.name) {
            return;
        }
        let root = paths
            .iter()
            .find(|it| it.path == "/" && it.kind != PathKind::Exact);
        let target = root.and_then(|root| match &root.backend {
            Backend::Service { name, port } => {
                let number = work.source.port(&ingress.name.namespace, name, port)?;
                Some(json!({"name": name, "port": number}))
            }
            Backend::Resource(_) => None,
        });
        let Some(target) = target.filter(|_| !name.is_empty()) else {
            let text = "the host needs a path `/` with a Service whose port is known: connections are refused until a TLSRoute is written by hand";
            work.say(ingress, "ssl-passthrough", NotPossible, text);
            return;
        };
        if host.is_restricted || work.controller.restricts_all() {
            let text = "restrictions do not hold for TLS that is passed through, so that connections are refused. ingress-nginx passes it through with --enable-ssl-passthrough only: with that, write a TLSRoute, for which ipRules of an AccessPolicy hold; without it, leave out the annotation, and migrate again";
            work.say(ingress, "ssl-passthrough", NotPossible, text);
            return;
        }
        work.say(
            ingress,
            "ssl-passthrough",
            Converted,
            "TLSRoute, and a listener that passes TLS through",
        );
        let parents = Parents {
            tls: self.listeners.get(name).cloned(),
            plain: false,
        };
        let hosts = [name.to_owned()];
        let refs = self.parent_refs(work, &ingress.name.namespace, &hosts, &parents);
        let base = format!("{}-passthrough", short(&ingress.name.name));
        let rule = json!({"backendRefs": [target]});
        self.write_route(work, ingress, ("TLSRoute", &base), (&refs, &hosts), &[rule]);
    }

    /// Writes the routes that redirect between a host and the same with `www.`.
    fn www_redirects(&mut self, work: &mut Work<'_>, ingress: &Ingress, groups: &[Group]) {
        if Values(ingress).flag("from-to-www-redirect") != Some(true) {
            if Values(ingress).has("from-to-www-redirect") {
                work.say(
                    ingress,
                    "from-to-www-redirect",
                    DefaultAlready,
                    "it is not enabled",
                );
            }
            return;
        }
        let code = work.controller.redirect_code;
        let hosts: BTreeMap<&String, &Parents> = groups
            .iter()
            .flat_map(|group| group.hosts.iter().map(move |host| (host, &group.parents)))
            .collect();
        for (host, parents) in hosts {
            let Some(other) = www(host) else { continue };
            if work.hosts.get(&other).is_some() {
                let text = format!(
                    "{other} has an Ingress of its own, so that ingress-nginx does not redirect it"
                );
                work.say(ingress, "from-to-www-redirect", DefaultAlready, text);
                continue;
            }
            let has_listener = self.listeners.get(&other).is_some();
            let mut redirect = json!({"hostname": host, "statusCode": code});
            if parents.tls.is_some() && !parents.plain {
                redirect["scheme"] = json!("https");
            }
            if parents.tls.is_some() && !has_listener {
                let text = format!(
                    "requests to {other} with TLS are not redirected, since no entry of tls names it: add it there if a certificate is valid for it"
                );
                work.say(ingress, "from-to-www-redirect", ChangedMeaning, text);
            }
            let filter = json!([{"type": "RequestRedirect", "requestRedirect": redirect}]);
            let parents = Parents {
                tls: parents.tls.clone().filter(|_| has_listener),
                plain: true,
            };
            let hosts = [other.clone()];
            let refs = self.parent_refs(work, &ingress.name.namespace, &hosts, &parents);
            let base = format!("{}-www-redirect", short(&ingress.name.name));
            let rule = json!({"filters": filter});
            self.write_route(
                work,
                ingress,
                ("HTTPRoute", &base),
                (&refs, &hosts),
                &[rule],
            );
            let text = format!("an HTTPRoute that redirects {other}");
            work.say(ingress, "from-to-www-redirect", Converted, text);
        }
    }
}

/// Returns the host that from-to-www-redirect redirects.
pub(super) fn www(host: &str) -> Option<String> {
    match host.strip_prefix("www.") {
        Some(rest) => Some(rest.to_owned()),
        None if host.is_empty() || host.starts_with('*') => None,
        None => Some(format!("www.{host}")),
    }
}

fn gateway(work: &Work<'_>, listener: &str) -> Value {
    let Name { namespace, name } = &work.settings.gateway;
    json!({"name": name, "namespace": namespace, "sectionName": listener})
}
