//! Requests that mean the same get the same decision, however they are spelled, by the rules, policies and limits of any
//! configuration: the same response, the same request for the backend, the same limits, and the same explanation. Must not know
//! what the decision is.

mod configuration;
mod dice;
mod meaning;
mod spelling;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use bytes::Bytes;
use http::Request;
use serde_json::Value;

use self::configuration::{Configuration, Origins};
use self::dice::Dice;
use self::meaning::{Meaning, Tokens};
use self::spelling::{PROTECTED, Spelled, escaped_host};
use crate::client::header_map;
use crate::explain::comparison::canonical;
use crate::harness::client::{self, Client};
use crate::harness::h2::{self as peer, block_on};
use crate::harness::origin;
use crate::harness::scale::scaled;
use crate::scene::Scene;

/// Number of configurations.
const SEEDS: u32 = 30;
/// Requests for each configuration, and how often each is spelled otherwise.
const MEANINGS: usize = 7;
const SPELLINGS: u32 = 4;

/// Headers whose values backends get, as lists.
const OBSERVED: usize = PROTECTED.len() - 1;
/// Those that say who the client is.
const IDENTITY: usize = 4;

/// A response.
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
}

/// What the response says of the decision, and what the backend got.
#[derive(Debug, PartialEq)]
struct Decision {
    status: u16,
    rule: String,
    limits: String,
    location: Option<(String, Pairs)>,
    seen: Option<Seen>,
    mirrored: Option<Seen>,
    /// What the authorization server was asked.
    asked: Option<Seen>,
}

type Pairs = Vec<(String, String)>;

/// What a backend makes of a request.
#[derive(Debug, PartialEq)]
struct Seen {
    path: String,
    query: Pairs,
    headers: BTreeMap<&'static str, Vec<String>>,
    authorization: BTreeSet<(String, String)>,
    cookies: BTreeSet<(String, String)>,
}

/// Returns path and query of a target as an application reads them.
fn read_target(target: &str) -> (String, Pairs) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = form_urlencoded::parse(query.as_bytes()).into_owned();
    (canonical(path), query.collect())
}

impl Seen {
    fn of(request: &origin::Request) -> Self {
        let (path, query) = read_target(request.target());
        let elements = |name: &'static str| {
            let lines = request.fields.all(name).into_iter();
            let elements = lines.flat_map(|line| line.split(',')).map(str::trim);
            let elements = elements.filter(|element| !element.is_empty());
            (name, elements.map(str::to_owned).collect())
        };
        let credentials = request.fields.all("authorization").into_iter();
        let credentials = credentials.map(|value| {
            let (scheme, credentials) = value.split_once(' ').unwrap_or((value, ""));
            (scheme.to_lowercase(), credentials.trim().to_owned())
        });
        let cookies = request.fields.all("cookie").into_iter();
        let cookies = cookies.flat_map(|line| line.split(';')).filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let value = value.trim().trim_matches('"');
            Some((name.trim().to_owned(), value.to_owned()))
        });
        Self {
            path,
            query,
            headers: PROTECTED.into_iter().take(OBSERVED).map(elements).collect(),
            authorization: credentials.collect(),
            cookies: cookies.filter(|(name, _)| name != "a").collect(),
        }
    }

    /// Whether there is any value of a header.
    fn has(&self, name: &str) -> bool {
        self.headers
            .get(name)
            .is_some_and(|values| !values.is_empty())
    }
}

/// A configuration in service.
struct Served {
    scene: Scene,
    origins: Origins,
    mirrored: BTreeSet<String>,
}

impl Served {
    /// Returns the decision about a request, and what is left of the limit.
    async fn decide(&self, meaning: &Meaning, spelled: &Spelled) -> (Decision, Option<u32>) {
        let Origins {
            backend,
            mirror,
            server,
        } = &self.origins;
        let before = [backend, mirror, server].map(|it| it.requests().len());
        let answer = self.send(meaning, spelled).await;
        let header = |name: &str| answer.headers.get(name).cloned().unwrap_or_default();
        let seen = (backend.requests().len() > before[0]).then(|| {
            backend.until("the body", |origin| origin.last().body.complete);
            Seen::of(&backend.last())
        });
        let is_mirrored = seen.is_some() && self.mirrored.contains(&header("x-rule"));
        let mirrored = is_mirrored.then(|| {
            mirror.until("the copy", |it| it.requests().len() > before[1]);
            Seen::of(&mirror.last())
        });
        let is_asked = server.requests().len() > before[2];
        let asked = is_asked.then(|| Seen::of(&server.last()));
        let location = answer.headers.get("location").map(|location| {
            let path = location
                .strip_prefix("/.")
                .filter(|it| it.starts_with("//"));
            read_target(path.unwrap_or(location))
        });
        let state = header("ratelimit");
        let left = state.split(';').find_map(|part| part.strip_prefix("r="));
        let decision = Decision {
            status: answer.status,
            rule: header("x-rule"),
            limits: header("ratelimit-policy"),
            location,
            seen,
            mirrored,
            asked,
        };
        (decision, left.map(|it| it.parse().expect("a number")))
    }

    async fn send(&self, meaning: &Meaning, spelled: &Spelled) -> Answer {
        let (port, scheme) = match meaning.is_tls {
            true => (443, "https"),
            false => (80, "http"),
        };
        let address = self.scene.at(port);
        if !spelled.is_http2 {
            let mut client = match meaning.is_tls {
                true => Client::connect_tls(address, meaning.host),
                false => Client::connect(address),
            };
            let response = client.round_trip(spelled.text(meaning.method));
            let headers = response.fields.0.into_iter();
            return Answer {
                status: response.status,
                headers: headers
                    .map(|(name, value)| (name.to_lowercase(), value))
                    .collect(),
            };
        }
        let (sender, _ended) = match meaning.is_tls {
            true => peer::connect_tls(address, meaning.host).await,
            false => peer::connect(address).await,
        };
        let uri = format!("{scheme}://{}{}", spelled.host, spelled.target);
        let mut request = Request::builder().method(meaning.method).uri(uri);
        let other_host = spelled.other_host.iter().map(|host| ("host", &**host));
        let lines = spelled
            .lines
            .iter()
            .map(|(name, value)| (&**name, &**value));
        for (name, value) in lines.chain(other_host) {
            request = request.header(name, value);
        }
        let request = request.body(()).expect("a request");
        let has_body = meaning.method == "POST";
        let mut sender = sender.ready().await.expect("open");
        let (response, mut stream) = sender.send_request(request, !has_body).expect("sent");
        if has_body {
            // A stream whose response has come may be closed.
            let _ = stream.send_data(Bytes::from_static(b"a"), spelled.trailers.is_empty());
            if !spelled.trailers.is_empty() {
                let _ = stream.send_trailers(header_map(&spelled.trailers));
            }
        }
        let (head, body) = response.await.expect("a response").into_parts();
        peer::read(body).await;
        let headers = head.headers.iter();
        let headers = headers
            .map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()));
        Answer {
            status: head.status.as_u16(),
            headers: headers.collect(),
        }
    }

    /// Returns what the admin server says about a request, without its spelling.
    fn explain(&self, meaning: &Meaning, spelled: &Spelled) -> Value {
        let (scheme, port) = if meaning.is_tls {
            ("https", 443)
        } else {
            ("http", 80)
        };
        let url = format!(
            "{} {scheme}://{}:{port}{}",
            meaning.method, meaning.host, spelled.target
        );
        let mut query = form_urlencoded::Serializer::new(String::new());
        query
            .append_pair("output", "json")
            .append_pair("request", &url);
        let host = ("Host".to_owned(), spelled.host.clone());
        for (name, value) in std::iter::once(&host).chain(&spelled.lines) {
            query.append_pair("header", &format!("{name}: {value}"));
        }
        let page = format!("/explain?{}", query.finish());
        let page = client::get(self.scene.admin_address(), "localhost", &page);
        assert_eq!(page.status, 200, "{spelled:?}: {}", page.text());
        let mut explained: Value = serde_json::from_str(&page.text()).expect("JSON");
        let mut explained = explained["ports"][0].take();
        let port = explained.as_object_mut().expect("a port");
        // Lines about the spelling.
        for label in ["canonical", "forwarded"] {
            port.remove(label);
        }
        explained
    }

    /// Returns what backend and mirror got in other spellings of headers that the proxy says or decides by, and in trailers with
    /// them.
    fn aliases(&self, decision: &Decision, said: &[&str]) -> Pairs {
        let Origins {
            backend, mirror, ..
        } = &self.origins;
        let got = [
            decision.seen.as_ref().map(|_| backend.last()),
            decision.mirrored.as_ref().map(|_| mirror.last()),
        ];
        let got = got.iter().flatten();
        got.flat_map(|request| aliases_in(request, said)).collect()
    }
}

/// Returns what a request says in other spellings of these headers, and in trailers with them.
fn aliases_in(request: &origin::Request, said: &[&str]) -> Pairs {
    let folded = |name: &str| -> String {
        let symbol = |it: char| if it.is_ascii_alphanumeric() { it } else { '-' };
        name.to_lowercase().chars().map(symbol).collect()
    };
    let is_said = |name: &str| said.contains(&&*folded(name));
    let is_alias = |(name, _): &&(String, String)| is_said(name) && folded(name) != *name;
    let is_credential = |name: &str| ["authorization", "cookie"].contains(&name);
    let is_trailer = |(name, _): &&(String, String)| is_said(name) || is_credential(name);
    let lower = |(name, value): &(String, String)| (name.to_lowercase(), value.clone());
    let fields: Pairs = request.fields.0.iter().map(lower).collect();
    let trailers: Pairs = request.body.trailers.0.iter().map(lower).collect();
    let fields = fields.iter().filter(is_alias);
    fields
        .chain(trailers.iter().filter(is_trailer))
        .cloned()
        .collect()
}

/// Returns the headers that the policies of a request name, as far as its explanation shows them.
fn mentioned(explained: &Value) -> Vec<&'static str> {
    let labels = [
        "limits",
        "policies",
        "credentials",
        "authorization",
        "clientIp",
    ];
    let texts = labels.map(|label| explained[label].to_string().to_lowercase());
    let text = texts.join(" ");
    let is_of_name = |character: char| character.is_ascii_alphanumeric() || character == '-';
    let words: BTreeSet<_> = text.split(|it| !is_of_name(it)).collect();
    PROTECTED
        .into_iter()
        .filter(|name| words.contains(name))
        .collect()
}

/// Compares the rule and the status of an explanation with those of a decision.
fn is_explained(explained: &Value, decision: &Decision) -> bool {
    let outcome = &explained["outcome"];
    match outcome["route"].as_str() {
        Some(route) => {
            let (own, rule) = decision.rule.split_once(' ').unwrap_or_default();
            let number = rule.strip_prefix("rule-").and_then(|it| it.parse().ok());
            let is_rule = number.is_none_or(|number: u64| outcome["rule"] == number);
            decision.rule.is_empty() || route.ends_with(&format!("/{own}")) && is_rule
        }
        None => outcome["status"] == decision.status,
    }
}

/// Counts of statuses, and of decisions with limits and with identities.
#[derive(Debug, Default)]
struct Met {
    statuses: BTreeMap<u16, usize>,
    limited: usize,
    identified: usize,
    mirrored: usize,
    asked: usize,
}

impl Met {
    fn add(&mut self, decision: &Decision) {
        *self.statuses.entry(decision.status).or_default() += 1;
        self.limited += usize::from(!decision.limits.is_empty());
        let is_identified = |seen: &Seen| PROTECTED[..IDENTITY].iter().any(|name| seen.has(name));
        self.identified += usize::from(decision.seen.as_ref().is_some_and(is_identified));
        self.mirrored += usize::from(decision.mirrored.is_some());
        self.asked += usize::from(decision.asked.is_some());
    }
}

/// Adds what differs between the decisions about requests that mean the same.
async fn check(seed: u64, tokens: &Tokens, met: &mut Met, differences: &mut Vec<String>) {
    let mut dice = Dice::of_seed(seed);
    let mut more = Dice::of_seed(u64::MAX - seed);
    let origins = Origins::new();
    let configuration = Configuration::new([&mut dice, &mut more], &origins, &tokens.key);
    let served = Served {
        scene: Scene::start(&configuration.objects),
        origins,
        mirrored: configuration.mirrored,
    };
    for number in 0..MEANINGS {
        let meaning = Meaning::new(&mut dice, tokens);
        let same = configuration.same_paths[usize::from(meaning.is_tls)];
        let plain = Spelled::plain(&meaning);
        let explained = served.explain(&meaning, &plain);
        let (expected, left) = served.decide(&meaning, &plain).await;
        met.add(&expected);
        let identity = &PROTECTED[..IDENTITY];
        let mut protected = mentioned(&explained);
        if let Some(seen) = &expected.seen {
            protected.extend(identity.iter().filter(|name| seen.has(name)));
        }
        let said = identity.iter().copied();
        let said: Vec<_> = said.filter(|name| protected.contains(name)).collect();
        let mut differ = |what: &str, found: &dyn Debug, spelled: &Spelled| {
            differences.push(format!(
                "seed {seed}, request {number}: {what}: {found:#?}\nexpected: {expected:#?}, {left:?} are left\n\
                 as {plain:?}\nand {spelled:?}\nexplained: {explained:#}"
            ));
        };
        if !is_explained(&explained, &expected) {
            differ("the explanation of", &expected, &plain);
        }
        for times in 1..=SPELLINGS {
            let spelled = Spelled::new(&mut dice, &meaning, same, &said);
            let (found, now_left) = served.decide(&meaning, &spelled).await;
            // The same limit of the same client counts it.
            let expected_left = left.map(|it| it - times);
            if found != expected || now_left != expected_left {
                differ("the decision", &(&found, now_left), &spelled);
            }
            let other = served.explain(&meaning, &spelled);
            if other != explained {
                differ("the explanation", &other, &spelled);
            }
            let aliases = served.aliases(&found, &protected);
            if !aliases.is_empty() {
                differ("other spellings", &aliases, &spelled);
            }
        }
        let escaped = Spelled {
            host: escaped_host(meaning.host),
            ..plain.clone()
        };
        let (found, _) = served.decide(&meaning, &escaped).await;
        if found.status != 400 || found.seen.is_some() {
            differ("the decision about an escaped host", &found, &escaped);
        }
    }
}

#[test]
fn requests_that_mean_the_same_get_the_same_decision() {
    block_on(async {
        let (tokens, mut met, mut differences) = (Tokens::new(), Met::default(), Vec::new());
        for seed in 0..scaled(SEEDS) {
            check(seed.into(), &tokens, &mut met, &mut differences).await;
        }
        assert!(
            differences.is_empty(),
            "{} differences, the first:\n{}",
            differences.len(),
            differences[..differences.len().min(3)].join("\n\n")
        );
        let count = |status| met.statuses.get(&status).copied().unwrap_or(0);
        let is_met = count(200) >= 40 && count(401) >= 20 && count(403) >= 20;
        assert!(
            is_met && met.limited >= 20 && met.identified >= 10,
            "{met:?}"
        );
        assert!(met.mirrored > 0 && met.asked > 0, "{met:?}");
        assert!(
            count(307) > 0 && count(400) > 0 && count(404) > 0,
            "{met:?}"
        );
    });
}
