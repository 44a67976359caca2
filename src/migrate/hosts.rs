//! What all Ingresses of a host share in ingress-nginx: how its paths are understood, its certificate, and which Ingress
//! owns a path.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::controller::Controller;
use super::model::{Ingress, Name, PathKind, PathRule, Source, Tls};
use super::order::{self, Key, Location, Place};
use super::paths::HostMode;
use super::read::is_hostname;
use super::settings::Settings;
use super::snippets;
use super::spellings;
use super::values::Values;

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Certificate {
    /// A Secret, in the namespace of an Ingress.
    Secret(Name),
    /// That of hosts without one of their own.
    Default,
}

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) mode: HostMode,
    pub(super) certificate: Option<Certificate>,
    /// Whether an Ingress has TLS for it, so that ingress-nginx sends HSTS.
    pub(super) has_tls: bool,
    /// Whether its TLS is passed through, by which Ingress.
    pub(super) passthrough: Option<Name>,
    /// Ingress of each path.
    owners: BTreeMap<Key, Name>,
    locations: BTreeMap<Key, Location>,
    /// Place of each path among the others.
    places: BTreeMap<Key, Place>,
    /// The Ingress whose default backend gets the requests that no path is for.
    default: Option<Name>,
    /// Its other names, which have the same paths.
    aliases: Vec<String>,
    /// The host of which it is another name.
    alias_of: Option<String>,
    /// The Ingresses, in order.
    pub(super) ingresses: Vec<Name>,
    /// Whether some of them have something else than HTTP/1.1 or HTTP/2 for gRPC only.
    pub(super) only_grpc: bool,
    /// Ingresses that restrict all of its paths in ingress-nginx, which cannot be converted.
    restricting: Vec<Name>,
    /// Whether an Ingress restricts who may send requests to its paths.
    pub(super) is_restricted: bool,
    /// Whether an Ingress limits how many requests a client may send to its paths.
    is_limited: bool,
}

impl Host {
    /// Reports whether `ssl-redirect` has an effect: not with a certificate that only other hosts are configured for.
    pub(super) fn redirects(&self) -> bool {
        match self.certificate {
            Some(Certificate::Secret(_)) => true,
            Some(Certificate::Default) => self.has_tls,
            None => false,
        }
    }
}

/// All hosts.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    hosts: BTreeMap<String, Host>,
}

/// Annotations that restrict who may send requests.
const RESTRICTIONS: &[&str] = &[
    "allowlist-source-range",
    "auth-secret",
    "auth-tls-secret",
    "auth-type",
    "auth-url",
    "denylist-source-range",
    "whitelist-source-range",
];

/// Annotations that limit how many requests a client may send.
const LIMITS: &[&str] = &["limit-connections", "limit-rpm", "limit-rps"];

impl Hosts {
    pub(super) fn new(source: &Source, settings: &Settings, controller: &Controller) -> Self {
        let mut ingresses = source.by_precedence();
        ingresses.retain(|it| !is_canary(it));
        let mut hosts = Self::default();
        for ingress in &ingresses {
            for host in own_hosts(ingress) {
                hosts.add(&host, &host, ingress, controller);
            }
        }
        hosts.name_aliases(&ingresses);
        for ingress in &ingresses {
            for host in own_hosts(ingress) {
                let aliases = hosts.aliases(&host).to_vec();
                for alias in aliases {
                    hosts.add(&alias, &host, ingress, controller);
                }
            }
        }
        for ingress in &ingresses {
            hosts.set_certificates(ingress, settings);
        }
        hosts.inherit_certificates();
        for ingress in &ingresses {
            hosts.set_default_certificates(ingress, settings);
        }
        for host in hosts.hosts.values_mut() {
            host.places = order::places(&host.locations, host.mode);
        }
        hosts
    }

    /// Gives hosts their aliases: those of the first Ingress that has some, for all paths of the host. A host takes
    /// precedence over an alias of its name.
    fn name_aliases(&mut self, ingresses: &[&Ingress]) {
        let mut of_hosts = BTreeMap::new();
        for ingress in ingresses {
            if !Values(ingress).list("server-alias").is_empty() {
                for host in own_hosts(ingress) {
                    of_hosts.entry(host).or_insert_with(|| aliases(ingress));
                }
            }
        }
        let mut used: BTreeSet<String> = self.hosts.keys().cloned().collect();
        for (name, mut aliases) in of_hosts {
            aliases.retain(|alias| used.insert(alias.clone()));
            if let Some(host) = self.hosts.get_mut(&name) {
                host.aliases = aliases;
            }
        }
    }

    /// Adds an Ingress to a host, with its paths of `of_host`, of which the host may be an alias.
    fn add(&mut self, name: &str, of_host: &str, ingress: &Ingress, controller: &Controller) {
        let values = Values(ingress);
        let host = self.hosts.entry(name.to_owned()).or_insert_with(|| Host {
            mode: HostMode::Plain,
            certificate: None,
            has_tls: false,
            passthrough: None,
            owners: BTreeMap::new(),
            locations: BTreeMap::new(),
            places: BTreeMap::new(),
            default: None,
            aliases: Vec::new(),
            alias_of: (name != of_host).then(|| of_host.to_owned()),
            ingresses: Vec::new(),
            only_grpc: true,
            restricting: Vec::new(),
            is_restricted: false,
            is_limited: false,
        });
        let is_default = match of_host.is_empty() {
            // nginx has this server without an Ingress too.
            true => host.default.is_none() && ingress.rules.is_empty(),
            false => host.ingresses.is_empty(),
        };
        if is_default && ingress.default_backend.is_some() {
            host.default = Some(ingress.name.clone());
        }
        if !host.ingresses.contains(&ingress.name) {
            host.ingresses.push(ingress.name.clone());
            if restricts_host(ingress) {
                host.restricting.push(ingress.name.clone());
            }
        }
        host.is_restricted |= is_restricted(ingress, controller);
        host.is_limited |= is_limited(ingress);
        host.mode = host.mode.max(mode(ingress, controller));
        host.only_grpc &= is_grpc(ingress);
        if values.flag("ssl-passthrough") == Some(true) && host.passthrough.is_none() {
            host.passthrough = Some(ingress.name.clone());
        }
        for rule in &ingress.rules {
            if rule.host == of_host {
                for path in &rule.paths {
                    let key = (path.path.clone(), path.kind);
                    let location = Location {
                        number: host.owners.len(),
                        is_expression: is_expression(ingress, &path.path),
                    };
                    if let Entry::Vacant(owner) = host.owners.entry(key.clone()) {
                        owner.insert(ingress.name.clone());
                        host.locations.insert(key, location);
                    }
                }
            }
        }
    }

    fn set_certificates(&mut self, ingress: &Ingress, settings: &Settings) {
        for name in self.names(ingress) {
            let Some(host) = self.hosts.get_mut(&name) else {
                continue;
            };
            host.has_tls |= has_tls(ingress, &name);
            let Some(tls) = entry(ingress, &name).filter(|_| host.certificate.is_none()) else {
                continue;
            };
            host.certificate = match (&tls.secret, &settings.default_certificate) {
                (Some(secret), _) => {
                    let secret = Name::new(&ingress.name.namespace, secret);
                    Some(Certificate::Secret(secret))
                }
                (None, Some(_)) => Some(Certificate::Default),
                (None, None) => None,
            };
        }
    }

    /// Gives hosts without `tls` the certificate of the wildcard above them, as ingress-nginx does.
    fn inherit_certificates(&mut self) {
        let of_wildcard = |(name, host): (&String, &Host)| match &host.certificate {
            Some(Certificate::Secret(secret)) => {
                Some((name.strip_prefix("*.")?.to_owned(), secret.clone()))
            }
            _ => None,
        };
        let wildcards: BTreeMap<String, Name> = self.hosts.iter().filter_map(of_wildcard).collect();
        for (name, host) in &mut self.hosts {
            let above = name.split_once('.').filter(|(first, _)| *first != "*");
            let secret = above.and_then(|(_, above)| wildcards.get(above));
            let needs_one = host.certificate.is_none() && host.passthrough.is_none();
            if needs_one && !host.has_tls {
                host.certificate = secret.cloned().map(Certificate::Secret);
            }
        }
    }

    /// Gives the default certificate to hosts without another one, which ingress-nginx serves with it.
    fn set_default_certificates(&mut self, ingress: &Ingress, settings: &Settings) {
        for name in self.names(ingress) {
            let Some(host) = self.hosts.get_mut(&name) else {
                continue;
            };
            let needs_one = host.certificate.is_none() && host.passthrough.is_none();
            if needs_one && settings.default_certificate.is_some() {
                host.certificate = Some(Certificate::Default);
            }
        }
    }

    /// Returns another Ingress that restricts all paths of a host of this one, which cannot be converted.
    pub(super) fn restricted_by(&self, ingress: &Ingress) -> Option<&Name> {
        let names = self.names(ingress);
        let hosts = names.iter().filter_map(|name| self.hosts.get(name));
        let mut restricting = hosts.flat_map(|host| &host.restricting);
        restricting.find(|name| **name != ingress.name)
    }

    /// Returns the hosts of an Ingress, and then their aliases.
    pub(super) fn names(&self, ingress: &Ingress) -> Vec<String> {
        let own = own_hosts(ingress);
        let aliases = own.iter().flat_map(|host| self.aliases(host));
        let aliases: Vec<String> = aliases.cloned().collect();
        [own, aliases].concat()
    }

    fn aliases(&self, name: &str) -> &[String] {
        let host = self.hosts.get(name);
        host.map_or(&[][..], |host| host.aliases.as_slice())
    }

    /// Returns the host that has the paths: this one, or the one of which it is an alias.
    pub(super) fn canonical<'n>(&'n self, name: &'n str) -> &'n str {
        let host = self.hosts.get(name);
        let canonical = host.and_then(|host| host.alias_of.as_deref());
        canonical.unwrap_or(name)
    }

    /// Reports whether the default backend of an Ingress gets the requests to a host that no path is for.
    pub(super) fn is_default(&self, name: &str, ingress: &Ingress) -> bool {
        let host = self.hosts.get(name);
        host.is_some_and(|host| host.default.as_ref() == Some(&ingress.name))
    }

    /// Returns a host.
    pub(super) fn get(&self, name: &str) -> Option<&Host> {
        self.hosts.get(name)
    }

    /// Iterates over the hosts, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Host)> {
        self.hosts.iter()
    }

    /// Returns a match for paths of a host that are refused: where some paths are restricted or limited and others may not be,
    /// another spelling of a path must not reach these.
    pub(super) fn refused(&self, name: &str) -> Option<Value> {
        let host = self.hosts.get(name)?;
        let is_protected = host.is_restricted || host.is_limited;
        let is_guarded = is_protected && (host.ingresses.len() > 1 || self.is_covered(name));
        if !is_guarded {
            return None;
        }
        let paths = host.owners.keys().map(|(path, _)| path.as_str());
        let lengths = host.places.values().filter_map(Place::length);
        let longest = lengths.max().unwrap_or_default();
        Some(spellings::refused(paths, host.mode, longest))
    }

    /// Reports whether requests to a host that none of its paths matches may match those of another host.
    fn is_covered(&self, name: &str) -> bool {
        let covers = |other: &String| match other.strip_prefix('*') {
            Some(below) => other != name && name.ends_with(below),
            None => other.is_empty() && !name.is_empty(),
        };
        self.hosts.keys().any(covers)
    }

    /// Returns the place of a path among those of a host.
    pub(super) fn place(&self, host: &str, rule: &PathRule) -> Place {
        let key = (rule.path.clone(), rule.kind);
        let host = self.hosts.get(host);
        let place = host.and_then(|host| host.places.get(&key)).cloned();
        place.unwrap_or_else(|| Place::outside(&rule.path))
    }

    /// Returns the Ingress that owns a path.
    pub(super) fn owner(&self, host: &str, path: &str, kind: PathKind) -> Option<&Name> {
        self.hosts.get(host)?.owners.get(&(path.to_owned(), kind))
    }

    /// Reports whether any Ingress of a host has this path, of whatever type.
    pub(super) fn has_path(&self, host: &str, path: &str) -> bool {
        let kinds = [
            PathKind::Exact,
            PathKind::Prefix,
            PathKind::ImplementationSpecific,
        ];
        kinds
            .into_iter()
            .any(|kind| self.owner(host, path, kind).is_some())
    }
}

/// Reports whether ingress-nginx has a certificate for a host because of this Ingress: any `tls` is for all of its hosts.
fn has_tls(ingress: &Ingress, name: &str) -> bool {
    !ingress.tls.is_empty() && (!name.is_empty() || entry(ingress, name).is_some())
}

/// Returns the entry of `tls` for a host of an Ingress.
pub(super) fn entry<'a>(ingress: &'a Ingress, name: &str) -> Option<&'a Tls> {
    let named = |tls: &&Tls| tls.hosts.iter().any(|it| covers(it, name));
    // An alias is served with the certificate of its server.
    let is_alias = !ingress.rules.iter().any(|rule| rule.host == name);
    let entries = || ingress.tls.iter();
    let found = entries().find(named);
    let found = found.or_else(|| entries().find(|tls| tls.hosts.is_empty()));
    found.or_else(|| ingress.tls.first().filter(|_| is_alias))
}

/// Reports whether a name in `tls` is for a host.
fn covers(name: &str, host: &str) -> bool {
    let by_wildcard = || {
        let below = name.strip_prefix("*.")?;
        let (_, rest) = host.split_once('.')?;
        Some(below == rest)
    };
    name == host || by_wildcard() == Some(true)
}

/// Returns the Ingresses that are not canaries of others.
pub(super) fn main_ingresses(source: &Source) -> impl Iterator<Item = &Ingress> {
    source.ingresses.iter().filter(|it| !is_canary(it))
}

/// Reports whether an Ingress is a canary of another one.
pub(super) fn is_canary(ingress: &Ingress) -> bool {
    Values(ingress).flag("canary") == Some(true)
}

/// Returns the hosts of an Ingress; the empty one is for all.
pub(super) fn own_hosts(ingress: &Ingress) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    for rule in &ingress.rules {
        if !hosts.contains(&rule.host) {
            hosts.push(rule.host.clone());
        }
    }
    if hosts.is_empty() && ingress.default_backend.is_some() {
        hosts.push(String::new());
    }
    hosts
}

/// Returns the aliases that an Ingress names and that are hostnames.
pub(super) fn aliases(ingress: &Ingress) -> Vec<String> {
    let names = Values(ingress).list("server-alias");
    let names = names.into_iter().map(str::to_ascii_lowercase);
    names.filter(|name| is_hostname(name)).collect()
}

/// Reports whether an Ingress has gRPC backends.
pub(super) fn is_grpc(ingress: &Ingress) -> bool {
    let protocol = Values(ingress).text("backend-protocol").unwrap_or_default();
    matches!(protocol.to_ascii_uppercase().as_str(), "GRPC" | "GRPCS")
}

/// Reports whether an Ingress restricts who may send requests. A snippet or a firewall may do so, and the server of
/// `global-auth-url` does.
fn is_restricted(ingress: &Ingress, controller: &Controller) -> bool {
    let values = Values(ingress);
    let snippets = ["configuration-snippet", "server-snippet"].into_iter();
    let mut snippets = snippets.filter_map(|name| values.text(name));
    RESTRICTIONS.iter().any(|name| values.has(name))
        || controller.asks_global_server(ingress)
        || controller.firewall.restricts(ingress)
        || snippets.any(|text| snippets::parse(text).may_restrict)
}

/// Reports whether an Ingress limits how many requests a client may send.
fn is_limited(ingress: &Ingress) -> bool {
    LIMITS.iter().any(|name| Values(ingress).has(name))
}

/// Reports whether an Ingress has regular expressions for a path. A target that equals the path is none in ingress-nginx.
fn is_expression(ingress: &Ingress, path: &str) -> bool {
    let values = Values(ingress);
    let target = values.text("rewrite-target");
    values.flag("use-regex") == Some(true) || target.is_some_and(|target| target != path)
}

/// Reports whether an Ingress asks for certificates of clients.
pub(super) fn asks_for_certificates(values: Values<'_>) -> bool {
    values.has("auth-tls-secret") && values.text("auth-tls-verify-client") != Some("off")
}

/// Reports whether an Ingress restricts all paths of its hosts, those of other Ingresses too, in a way that cannot be
/// converted.
fn restricts_host(ingress: &Ingress) -> bool {
    let values = Values(ingress);
    let snippet = values.text("server-snippet");
    asks_for_certificates(values) || snippet.is_some_and(|text| snippets::parse(text).may_restrict)
}

fn mode(ingress: &Ingress, controller: &Controller) -> HostMode {
    let values = Values(ingress);
    let mut paths = ingress.rules.iter().flat_map(|rule| &rule.paths);
    let has_expressions = paths.any(|it| is_expression(ingress, &it.path));
    if values.flag("use-regex") == Some(true) || has_expressions {
        return HostMode::Regex;
    }
    match is_limited(ingress) || is_restricted(ingress, controller) {
        true => HostMode::Strict,
        false => HostMode::Plain,
    }
}
