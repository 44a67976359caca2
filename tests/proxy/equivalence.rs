//! Requests that mean the same get the same decision, in every spelling of paths, headers and cookies, by the rules, policies
//! and limits of any configuration. Must not know what the decision is.

use std::net::SocketAddr;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::access_policy::{access, gateway};
use crate::client::{Answer, Client};
use crate::harness::h2::block_on;
use crate::mirror::with_filters;
use crate::origin::Origin;
use crate::rate_limit_policy::limits;
use crate::scene::{Objects, Scene};

/// Segments of paths, spelled canonically.
const SEGMENTS: [&str; 8] = [
    "a",
    "b",
    "admin",
    "~u",
    "x.y",
    "caf%C3%A9",
    "a%2Fb",
    "p;v=1",
];
const TEAMS: [&str; 3] = ["red", "blue", "red,green"];
/// More than the requests of a test. It is for a day, so that none of them is free again during the test.
const LIMIT: u32 = 100;

#[derive(Clone, Debug)]
struct Configuration {
    /// Paths of rules, and whether they are exact.
    rules: Vec<(bool, String)>,
    /// Paths that are denied, and to which team; to all if there is none.
    denied: Vec<(String, Option<&'static str>)>,
    /// Requests to this path are counted for each user.
    limited: String,
}

/// What a request means.
#[derive(Clone, Debug)]
struct Meaning {
    path: String,
    team: Option<&'static str>,
    user: &'static str,
}

fn path() -> impl Strategy<Value = String> {
    let segments = prop::collection::vec(select(&SEGMENTS[..]), 0..4);
    segments.prop_map(|segments| format!("/{}", segments.join("/")))
}

fn team() -> impl Strategy<Value = Option<&'static str>> {
    prop::option::of(select(&TEAMS[..]))
}

prop_compose! {
    fn configuration()(
        rules in prop::collection::vec((any::<bool>(), path()), 0..5),
        denied in prop::collection::vec((path(), team()), 0..4),
        limited in path(),
    ) -> Configuration {
        Configuration { rules, denied, limited }
    }
}

prop_compose! {
    fn meaning()(path in path(), team in team(), user in select(&["one", "two"][..])) -> Meaning {
        Meaning { path, team, user }
    }
}

impl Configuration {
    fn objects(&self, origin: &Origin) -> Objects {
        let named = |name: &str, mut rule: Value| {
            let set = json!({"set": [{"name": "x-rule", "value": name}]});
            rule["filters"] =
                json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": set}]);
            rule
        };
        let own = self.rules.iter().enumerate().map(|(at, (is_exact, path))| {
            let mut rule = with_filters(path, "origin", &[]);
            if *is_exact {
                rule["matches"] = json!([{"path": {"type": "Exact", "value": path}}]);
            }
            named(&format!("rule-{at}"), rule)
        });
        let rest = named("rest", with_filters("/", "origin", &[]));
        let rules: Vec<_> = own.chain([rest]).collect();
        Objects::http()
            .service("origin", &[origin.address])
            .route("route", &rules)
            .with(self.access())
            .with(self.limits())
    }

    fn access(&self) -> String {
        let rules = self.denied.iter().enumerate().map(|(at, (path, team))| {
            let mut conditions = json!({"paths": [{"value": path}]});
            if let Some(team) = team {
                conditions["headers"] = json!([{"name": "X-Team", "value": team}]);
            }
            json!({"name": format!("rule-{at}"), "action": "Deny", "match": conditions})
        });
        // A policy has a rule at least.
        let nobody = json!({"headers": [{"name": "X-Team", "value": "nobody"}]});
        let last = json!({"name": "nobody", "action": "Deny", "match": nobody});
        let rules: Vec<_> = rules.chain([last]).collect();
        let spec = json!({"authorization": {"rules": rules, "default": "Allow"}});
        access("access", &gateway(), &spec)
    }

    fn limits(&self) -> String {
        let mut rule = json!({"name": "user", "limit": {"requests": LIMIT, "per": "Day"}});
        rule["key"] = json!([{"type": "Cookie", "name": "u"}]);
        rule["match"] = json!({"path": {"value": self.limited}});
        let response = json!({"headers": "Draft"});
        limits("limits", &gateway(), &json!([rule]), Some(response))
    }
}

/// Spells requests by choices, which are repeated.
struct Speller<'a>(std::iter::Cycle<std::slice::Iter<'a, u8>>);

impl<'a> Speller<'a> {
    fn new(choices: &'a [u8]) -> Self {
        Self(choices.iter().cycle())
    }

    /// Chooses one of so many.
    fn choose(&mut self, count: u8) -> u8 {
        self.0.next().expect("a choice") % count
    }

    fn path(&mut self, path: &str) -> String {
        let mut spelled = String::new();
        let mut rest = path;
        while let Some(character) = rest.chars().next() {
            let length = if character == '%' { 3 } else { 1 };
            let (one, others) = rest.split_at(length);
            rest = others;
            match character {
                '%' if self.choose(2) == 0 => spelled.push_str(&one.to_lowercase()),
                '/' => spelled.push_str(&"///"[..1 + usize::from(self.choose(3))]),
                'a'..='z' | '~' | '.' => spelled.push_str(&self.unreserved(character)),
                _ => spelled.push_str(one),
            }
        }
        spelled
    }

    fn unreserved(&mut self, character: char) -> String {
        match self.choose(3) {
            0 => format!("%{:02X}", u32::from(character)),
            1 => format!("%{:02x}", u32::from(character)),
            _ => character.to_string(),
        }
    }

    fn headers(&mut self, meaning: &Meaning) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        // Other spellings of the name say nothing.
        for alias in ["x_team", "x.team"] {
            if self.choose(2) == 0 {
                headers.push((alias, TEAMS[usize::from(self.choose(2))].to_owned()));
            }
        }
        let team = meaning.team.into_iter();
        match self.choose(2) {
            0 => headers.extend(team.map(|team| ("x-team", team.to_owned()))),
            _ => {
                let lines = team.flat_map(|team| team.split(','));
                headers.extend(lines.map(|line| ("x-team", line.to_owned())));
            }
        }
        let user = meaning.user;
        let cookies = match self.choose(5) {
            0 => vec![format!("u={user}")],
            1 => vec![format!("u=\"{user}\"")],
            2 => vec![format!("a=b; u={user}; c=d")],
            3 => vec!["a=b".to_owned(), format!("u={user}")],
            _ => vec![format!("u = {user} ; a=\"b\"")],
        };
        headers.extend(cookies.into_iter().map(|it| ("cookie", it)));
        headers
    }
}

/// What the response says of the decision, and what is left of the limit.
fn decision(answer: &Answer) -> (String, Option<u32>) {
    let header = |name: &str| answer.header(name).to_owned();
    let decided = [header("x-rule"), header("ratelimit-policy")].join(" ");
    let state = header("ratelimit");
    let left = state.split(';').find_map(|part| part.strip_prefix("r="));
    let left = left.map(|it| it.parse().expect("a number"));
    (format!("{} {decided}", answer.status), left)
}

async fn send(
    address: SocketAddr,
    is_http2: bool,
    path: &str,
    headers: &[(&'static str, String)],
) -> Answer {
    let mut client = match is_http2 {
        true => Client::http2(address).await,
        false => Client::http1(address).await,
    };
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    client.get_with("a.com", path, &headers).await
}

async fn check(configuration: &Configuration, meanings: &[Meaning], choices: &[u8]) {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&configuration.objects(&origin));
    let mut speller = Speller::new(choices);
    for meaning in meanings {
        let mut plain: Vec<_> = meaning
            .team
            .iter()
            .map(|team| ("x-team", (*team).to_owned()))
            .collect();
        plain.push(("cookie", format!("u={}", meaning.user)));
        let first = send(scene.at(80), false, &meaning.path, &plain).await;
        let (expected, mut left) = decision(&first);
        for _ in 0..4 {
            let (path, headers) = (speller.path(&meaning.path), speller.headers(meaning));
            let is_http2 = speller.choose(2) == 0;
            let answer = send(scene.at(80), is_http2, &path, &headers).await;
            // The same limit of the same user counts it.
            left = left.map(|it| it - 1);
            let found = decision(&answer);
            assert_eq!(found, (expected.clone(), left), "{path} {headers:?}");
            if answer.status == 200 {
                let received = answer.received()["headers"].to_string();
                assert!(!received.contains("x_team") && !received.contains("x.team"));
            }
        }
    }
}

proptest! {
    // Choices are not kept: a failure prints the request.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    #[test]
    fn requests_that_mean_the_same_get_the_same_decision(
        configuration in configuration(),
        meanings in prop::collection::vec(meaning(), 1..6),
        choices in prop::collection::vec(any::<u8>(), 97),
    ) {
        block_on(check(&configuration, &meanings, &choices));
    }
}
