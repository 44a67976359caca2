//! A pair of policies: its objects, and the checks of requests and conditions. Must not know the sections.

use std::collections::BTreeSet;

use portcullis::control::data_plane::ServedConfiguration;
use portcullis::status::Condition;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::connections::QUIET;
use super::sections::{CERTIFICATE, Clients, Destination, Section};
use super::specification::{Entry, Level, Method, Placed, Probe, Rule, Selected, conditions, met};
use crate::admin::page;
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::scene::{Objects, Scene, prefix, to};

/// The first port.
const PORT: usize = 1000;
/// Explanations at a time: beyond 16 connections of a client, the admin server ends older ones.
static EXPLAINED: Semaphore = Semaphore::const_new(4);
const GROUP: &str = "gateway.networking.k8s.io";

/// A pair of policies with objects of its own: a Gateway and a ListenerSet with two listeners each, and two routes of all
/// four.
pub(super) struct Case<'a> {
    pub(super) index: usize,
    pub(super) section: &'a Section,
    pub(super) pair: [Placed; 2],
}

impl Case<'_> {
    fn port(&self, entry: Entry) -> u16 {
        let place = Probe::ENTRIES.iter().position(|it| *it == entry);
        let port = PORT + 4 * self.index + place.expect("one of them");
        port.try_into().expect("a port")
    }

    fn name(&self, what: impl std::fmt::Display) -> String {
        format!("{what}-{}", self.index)
    }

    fn gateway(&self) -> [String; 2] {
        let listeners = |entries: [Entry; 2]| {
            let names = ["one", "two"].into_iter().zip(entries);
            let listeners = names.map(|(name, entry)| self.listener(name, self.port(entry)));
            listeners.collect::<Vec<_>>()
        };
        let own = listeners([Entry::One, Entry::Two]);
        let of_set = listeners([Entry::OneOfSet, Entry::TwoOfSet]).join(", ");
        let name = self.name("gateway");
        let more = "  allowedListeners: {namespaces: {from: Same}}\n";
        let set = format!(
            "apiVersion: {GROUP}/v1\nkind: ListenerSet\nmetadata: {{name: {}}}\nspec:\n  parentRef: {{name: {name}}}\n  \
             listeners: [{of_set}]\n",
            self.name("set")
        );
        [yaml::gateway_with(&name, &own, more), set]
    }

    fn listener(&self, name: &str, port: u16) -> String {
        match self.section.effect.needs_tls() {
            true => yaml::https(name, port, "", &[CERTIFICATE]),
            false => yaml::http(name, port, ""),
        }
    }

    fn route(&self, name: &str, host: &str, rules: &[Value]) -> String {
        let route = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "HTTPRoute", "metadata": {"name": self.name(name)},
            "spec": {
                "parentRefs": [
                    {"name": self.name("gateway")},
                    {"kind": "ListenerSet", "group": GROUP, "name": self.name("set")},
                ],
                "hostnames": [host],
                "rules": rules,
            },
        });
        route.to_string()
    }

    fn target(&self, level: Level) -> Value {
        let (name, section) = match level {
            Level::Gateway => ("gateway", None),
            Level::Listener => ("gateway", Some("one")),
            Level::ListenerSet => ("set", None),
            Level::ListenerOfSet => ("set", Some("one")),
            Level::Route => ("route", None),
            Level::Rule => ("route", Some("rule")),
        };
        let mut target = json!({"group": GROUP, "kind": level.kind(), "name": self.name(name)});
        if let Some(section) = section {
            target["sectionName"] = json!(section);
        }
        target
    }

    fn policy(&self, policy: &Placed) -> String {
        let mut spec = (self.section.spec)(policy.letter);
        if policy.overrides {
            spec["strategy"] = json!("Overrides");
        }
        self.policy_of(&policy.letter.to_string(), policy.level, policy.day, spec)
    }

    fn policy_of(&self, name: &str, level: Level, day: u8, mut spec: Value) -> String {
        spec["targetRefs"] = json!([self.target(level)]);
        let created = format!("2026-01-0{day}T00:00:00Z");
        let policy = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": self.section.kind,
            "metadata": {"name": self.name(name), "creationTimestamp": created},
            "spec": spec,
        });
        policy.to_string()
    }

    /// The methods to authenticate that each pair has beside it, and the letter of the policy for which one is enough.
    fn methods(&self) -> Option<(char, [Method; 2])> {
        match self.section.rule {
            Rule::Requires(any) => Some((any, Method::ALL)),
            _ => None,
        }
    }

    /// Name and level of the policies beside the pair.
    fn beside(&self) -> Vec<(Method, &'static str, Level)> {
        let methods = self.methods().into_iter().flat_map(|(_, methods)| methods);
        let named = methods.map(|method| (method, method_spec(method).0, method.level()));
        named.collect()
    }

    pub(super) fn add_to(&self, objects: Objects, with_policies: bool) -> Objects {
        let mut rule = prefix("/rule", "origin");
        rule["name"] = json!("rule");
        let objects = self.gateway().into_iter().fold(objects, Objects::with);
        let objects = objects
            .with(self.route("route", "a.com", &[to("origin"), rule]))
            .with(self.route("other", "other.com", &[to("origin")]));
        let own = self.pair.iter().map(|it| self.policy(it));
        let beside = self.beside().into_iter();
        let beside = beside.map(|(method, name, level)| {
            let (_, spec) = method_spec(method);
            self.policy_of(name, level, 1, spec)
        });
        let policies = own.chain(beside).filter(|_| with_policies);
        policies.fold(objects, Objects::with)
    }

    /// What a request shows if the policies do what the specification says.
    fn expected(&self, probe: Probe) -> String {
        let [a, b] = &self.pair;
        let mut met = met(self.section.rule, [a, b], probe);
        let Some((any, _)) = self.methods() else {
            met.retain(|letter| self.section.effect.shows(letter));
            return met;
        };
        match Method::ApiKey.applies([a, b], probe) {
            false => "basic".to_owned(),
            true if met == any.to_string() => format!("one {any}"),
            true => "both".to_owned(),
        }
    }

    pub(super) async fn check_requests(&self, scene: &Scene, tokens: &[(char, String)]) {
        let mut clients = Clients::new();
        for probe in Probe::all() {
            let (host, path) = match probe.selected {
                Selected::Rule => ("a.com", "/rule/"),
                Selected::OtherRule => ("a.com", "/"),
                Selected::OtherRoute => ("other.com", "/"),
            };
            let expected = self.expected(probe);
            // All of it passes where no policy has a timeout.
            let patience = match expected.is_empty() {
                true => QUIET,
                false => TEST_TIMEOUT,
            };
            let destination = Destination {
                address: scene.at(self.port(probe.entry)),
                host,
                path,
                tokens,
                patience,
            };
            let found = destination.met(self.section.effect, &mut clients).await;
            assert_eq!(found, expected, "{probe:?} {:#?}", self.pair);
            self.check_explained(scene, probe, (host, path)).await;
        }
    }

    /// What `/explain` says of a request names the policies that it meets, and no others.
    async fn check_explained(&self, scene: &Scene, probe: Probe, (host, path): (&str, &str)) {
        let scheme = match self.section.effect.needs_tls() {
            true => "https",
            false => "http",
        };
        let url = format!("{scheme}://{host}:{}{path}", self.port(probe.entry));
        let turn = EXPLAINED.acquire().await.expect("it stays open");
        let explained = page(scene, &format!("/explain?output=json&request={url}")).await;
        drop(turn);
        let mut explained: Value = serde_json::from_str(&explained).expect("JSON");
        let labels = explained["ports"][0].as_object_mut().expect("labels");
        // Notes are the conditions of the policies that are named, which name others.
        labels.remove("note");
        let text = explained["ports"].to_string();
        let names = self.names().into_iter().map(|(name, _)| name);
        let found = names.filter(|name| has_word(&text, &format!("default/{name}")));
        let found: BTreeSet<String> = found.collect();
        assert_eq!(
            found,
            self.explained(probe),
            "{probe:?} {:#?} {text}",
            self.pair
        );
    }

    /// The names of the policies that a request meets.
    fn explained(&self, probe: Probe) -> BTreeSet<String> {
        let [a, b] = &self.pair;
        if self.methods().is_none() {
            let met = met(self.section.rule, [a, b], probe);
            return met.chars().map(|letter| self.name(letter)).collect();
        }
        // What `require` says is how the methods are joined, of which each has its policy.
        let methods = self.beside().into_iter();
        let methods = methods.filter(|(method, ..)| method.applies([a, b], probe));
        methods.map(|(_, name, _)| self.name(name)).collect()
    }

    pub(super) fn check_conditions(&self, outcome: &ServedConfiguration) {
        let [a, b] = &self.pair;
        for (it, other) in [(a, b), (b, a)] {
            let expected = conditions(self.section.rule, it, other);
            self.check_policy(outcome, &it.letter.to_string(), &expected);
        }
        for (method, name, _) in self.beside() {
            let any = self.methods().map_or(' ', |(any, _)| any);
            self.check_policy(outcome, name, &method.conditions(any, [a, b]));
        }
        self.check_targets(outcome);
    }

    /// Conditions are these, and those that are not plain name another policy.
    fn check_policy(&self, outcome: &ServedConfiguration, of: &str, expected: &BTreeSet<String>) {
        let name = self.name(of);
        let mut statuses = outcome.report.policies.iter();
        let status = statuses.find(|(object, _)| *object.name == *name);
        let (_, status) = status.expect("a status");
        assert_eq!(status.len(), 1, "one Gateway");
        let found = &status[0].conditions;
        assert_eq!(texts(found), *expected, "{name} {:#?}", self.pair);
        let others = self.names().into_iter().filter(|(other, _)| *other != name);
        let others: Vec<_> = others.collect();
        for condition in found.iter().filter(|it| !is_plain(it)) {
            let message = &condition.message;
            let is_named = others.iter().any(|(other, _)| message.contains(other));
            assert!(is_named, "{name}: {message}");
        }
    }

    /// Name and level of all policies.
    fn names(&self) -> Vec<(String, Level)> {
        let own = self.pair.iter().map(|it| (self.name(it.letter), it.level));
        let beside = self.beside().into_iter();
        let beside = beside.map(|(_, name, level)| (self.name(name), level));
        own.chain(beside).collect()
    }

    fn check_targets(&self, outcome: &ServedConfiguration) {
        let report = &outcome.report;
        let [gateway, set, route, other] =
            ["gateway", "set", "route", "other"].map(|name| self.name(name));
        let mut gateways = report.gateways.iter();
        let gateway = gateways.find(|(object, _)| *object.name == *gateway);
        self.check_affected("Gateway", &gateway.expect("a status").1.conditions);
        let mut sets = report.listener_sets.iter();
        let set = sets.find(|(object, _)| *object.name == *set);
        self.check_affected("ListenerSet", &set.expect("a status").1.conditions);
        for (object, parents) in &report.routes {
            for parent in parents.iter() {
                if *object.name == *route {
                    self.check_affected("HTTPRoute", &parent.conditions);
                } else if *object.name == *other {
                    self.check_affected("another route", &parent.conditions);
                }
            }
        }
    }

    /// The condition of a target names the policies on it and on its sections.
    fn check_affected(&self, kind: &str, found: &[Condition]) {
        let section = self.section.kind;
        let name = format!("portcullis.dev/{section}Affected");
        let affected = found
            .iter()
            .filter(|it| it.kind.to_string().ends_with("Affected"));
        let affected: Vec<_> = affected
            .map(|it| (text_of(it), it.message.clone()))
            .collect();
        let on_target = self.names().into_iter();
        let on_target = on_target.filter(|(_, level)| level.kind() == kind);
        let names = on_target.map(|(name, _)| format!("{section} default/{name}"));
        let names: Vec<_> = names.collect::<BTreeSet<_>>().into_iter().collect();
        let expected = (
            format!("{name} True PolicyAffected"),
            format!("affected by {}", names.join(", ")),
        );
        let expected: Vec<_> = [expected]
            .into_iter()
            .filter(|_| !names.is_empty())
            .collect();
        assert_eq!(affected, expected, "{kind} {:#?}", self.pair);
    }
}

/// Reports whether a text has a word, which no letter, digit, `-` or `/` extends.
fn has_word(text: &str, word: &str) -> bool {
    let extends = |it: char| it.is_alphanumeric() || "-/".contains(it);
    let mut places = text.match_indices(word);
    places.any(|(at, _)| {
        !text[..at].ends_with(extends) && !text[at + word.len()..].starts_with(extends)
    })
}

fn text_of(condition: &Condition) -> String {
    format!(
        "{} {:?} {:?}",
        condition.kind, condition.status, condition.reason
    )
}

fn texts(conditions: &[Condition]) -> BTreeSet<String> {
    conditions.iter().map(text_of).collect()
}

/// Reports whether a condition says that all is well.
fn is_plain(condition: &Condition) -> bool {
    let text = text_of(condition);
    let plain = ["Accepted", "ResolvedRefs", "Programmed"];
    plain
        .iter()
        .any(|name| text == format!("{name} True {name}"))
}

/// Returns the name and the spec of the policy with a method.
fn method_spec(method: Method) -> (&'static str, Value) {
    match method {
        Method::Basic => (
            "basic",
            json!({"basic": {"secretRef": {"name": "users-a"}}}),
        ),
        Method::ApiKey => {
            let from = json!([{"type": "Header", "name": "X-Key"}]);
            let keys = json!([{"name": "keys-a"}]);
            ("key", json!({"apiKey": {"secretRefs": keys, "from": from}}))
        }
    }
}
