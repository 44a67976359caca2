//! Times and results of lookups, with a scripted resolver and paused time.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending, ready};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::{AllowedAddresses, Answer, CONCURRENT, Lookup, LookupError, MAX_ADDRESSES, Names};
use crate::ir::sharing::Text;
use crate::telemetry::metrics::DnsStats;

const SECOND: Duration = Duration::from_secs(1);

type Outcome = Result<Answer, LookupError>;

/// Returns the outcomes in order. Further lookups never complete.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    outcomes: VecDeque<Outcome>,
    lookups: Vec<(String, Instant)>,
}

impl Script {
    fn new(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        let script = Self::default();
        script.0.lock().unwrap().outcomes = outcomes.into_iter().collect();
        script
    }

    /// Returns the whole seconds from the first lookup to each lookup.
    fn seconds(&self) -> Vec<u64> {
        let state = self.0.lock().unwrap();
        let first = state.lookups[0].1;
        let times = state.lookups.iter();
        times.map(|(_, at)| (*at - first).as_secs()).collect()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().lookups.len()
    }
}

impl Lookup for Script {
    fn lookup(&mut self, name: &str) -> BoxFuture<'static, Outcome> {
        let mut state = self.0.lock().unwrap();
        state.lookups.push((name.to_owned(), Instant::now()));
        match state.outcomes.pop_front() {
            Some(outcome) => ready(outcome).boxed(),
            None => pending().boxed(),
        }
    }
}

/// A name, and what ends its lookup when it is used or dropped.
type Running = (String, oneshot::Sender<Outcome>);

/// Lookups that end one by one.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Vec<Running>>>);

impl Held {
    fn names(&self) -> Vec<String> {
        let lookups = self.0.lock().unwrap();
        lookups.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Ends the lookup that began first.
    fn end_first(&self) {
        self.0.lock().unwrap().remove(0);
    }
}

impl Lookup for Held {
    fn lookup(&mut self, name: &str) -> BoxFuture<'static, Outcome> {
        let (sender, outcome) = oneshot::channel();
        self.0.lock().unwrap().push((name.to_owned(), sender));
        async move { outcome.await.unwrap_or_else(|_| failed()) }.boxed()
    }
}

fn found(addresses: &[&str], seconds: u64) -> Outcome {
    Ok(Answer {
        addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        ttl: SECOND * seconds as u32,
    })
}

fn failed() -> Outcome {
    Err(LookupError::Failed("no answer".to_owned()))
}

fn names(script: &Script, allowed: &[&str]) -> (Names<Script>, Arc<DnsStats>) {
    let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
    let stats = Arc::<DnsStats>::default();
    let allowed = AllowedAddresses::new(allowed);
    (Names::new(script.clone(), allowed, stats.clone()), stats)
}

fn following(script: &Script) -> Names<Script> {
    let (mut names, _) = names(script, &[]);
    set(&mut names, &[("team", "a.example")]);
    names
}

/// Sets the names to resolve, each with its namespace.
fn set(names: &mut Names<impl Lookup>, all: &[(&str, &str)]) {
    let all = all.iter();
    let all = all.map(|(namespace, name)| (Text::from(*namespace), Arc::<str>::from(*name)));
    let all: Vec<_> = all.collect();
    names.set(all.iter().map(|(namespace, name)| (namespace, name)));
}

/// Returns names of a namespace.
fn many(namespace: &str, count: usize) -> Vec<(&str, String)> {
    let name = |number| (namespace, format!("{namespace}{number}.example"));
    (0..count).map(name).collect()
}

fn borrowed<'a>(all: &'a [(&'a str, String)]) -> Vec<(&'a str, &'a str)> {
    let all = all.iter();
    all.map(|(namespace, name)| (*namespace, &**name)).collect()
}

fn addresses(names: &Names<Script>) -> Vec<String> {
    let found = names.addresses("a.example").iter();
    found.map(IpAddr::to_string).collect()
}

/// Advances the time.
async fn pass(names: &mut Names<impl Lookup>, time: Duration) {
    let end = Instant::now() + time;
    while timeout(end - Instant::now(), names.changed()).await.is_ok() {}
}

#[tokio::test(start_paused = true)]
async fn resolves_again_when_the_ttl_expires() {
    let script = Script::new([
        found(&["1.1.1.2", "2606:4700::1", "1.1.1.1", "1.1.1.2"], 30),
        found(&["1.1.1.3"], 45),
        found(&["1.1.1.3"], 300),
    ]);
    let mut names = following(&script);
    assert!(addresses(&names).is_empty());
    names.changed().await;
    assert_eq!(addresses(&names), ["1.1.1.1", "1.1.1.2", "2606:4700::1"]);
    names.changed().await;
    assert_eq!(addresses(&names), ["1.1.1.3"]);
    pass(&mut names, 100 * SECOND).await;
    assert_eq!(script.seconds(), [0, 30, 75]);
}

#[tokio::test(start_paused = true)]
async fn bounds_the_ttl() {
    let script = Script::new([
        found(&["1.1.1.1"], 0),
        found(&["1.1.1.1"], 86_400),
        found(&["1.1.1.1"], 30),
    ]);
    let mut names = following(&script);
    pass(&mut names, 310 * SECOND).await;
    assert_eq!(script.seconds(), [0, 1, 301]);
}

#[tokio::test(start_paused = true)]
async fn keeps_addresses_and_backs_off_while_lookups_fail() {
    let mut outcomes = vec![found(&["1.1.1.1"], 10)];
    outcomes.extend((0..7).map(|_| failed()));
    outcomes.extend([Err(LookupError::NoAddress), found(&["1.1.1.2"], 60)]);
    let script = Script::new(outcomes);
    let (mut names, stats) = names(&script, &[]);
    set(&mut names, &[("team", "a.example")]);
    names.changed().await;
    let waiting = timeout(130 * SECOND, names.changed()).await;
    assert!(waiting.is_err());
    assert_eq!(addresses(&names), ["1.1.1.1"]);
    names.changed().await;
    assert_eq!(addresses(&names), ["1.1.1.2"]);
    assert_eq!(script.seconds(), [0, 10, 11, 13, 17, 25, 41, 71, 101, 131]);
    let counts: Vec<_> = stats.lookups().collect();
    assert_eq!(counts, [("found", 2), ("no_address", 1), ("failed", 7)]);
}

#[tokio::test(start_paused = true)]
async fn rejects_non_public_addresses_unless_allowed() {
    let outcomes = || {
        [
            found(&["127.0.0.1", "1.1.1.1", "::ffff:169.254.169.254"], 30),
            found(&["10.0.0.1", "fd00::1"], 30),
        ]
    };
    let script = Script::new(outcomes());
    let (mut refusing, stats) = names(&script, &[]);
    set(&mut refusing, &[("team", "a.example")]);
    refusing.changed().await;
    assert_eq!(addresses(&refusing), ["1.1.1.1"]);
    // The name no longer resolves to its previous address.
    refusing.changed().await;
    assert!(addresses(&refusing).is_empty());
    assert_eq!(stats.refused_addresses(), 4);

    let script = Script::new(outcomes());
    let (mut allowing, stats) = names(&script, &["127.0.0.0/8", "10.0.0.0/16"]);
    set(&mut allowing, &[("team", "a.example")]);
    allowing.changed().await;
    assert_eq!(addresses(&allowing), ["1.1.1.1", "127.0.0.1"]);
    allowing.changed().await;
    assert_eq!(addresses(&allowing), ["10.0.0.1"]);
    assert_eq!(stats.refused_addresses(), 2);
}

#[tokio::test(start_paused = true)]
async fn number_of_addresses_is_bounded() {
    let address = |first: u8, index: usize| {
        let [.., high, low] = index.to_be_bytes();
        IpAddr::from([first, 1, high, low])
    };
    let many = (0..2 * MAX_ADDRESSES).flat_map(|index| [address(10, index), address(11, index)]);
    let script = Script::new([Ok(Answer {
        addresses: many.collect(),
        ttl: SECOND,
    })]);
    let mut names = following(&script);
    names.changed().await;
    let name = &names.names["a.example"];
    assert_eq!(name.addresses.len(), MAX_ADDRESSES);
    assert_eq!(name.addresses[..2], [address(11, 0), address(11, 1)]);
    assert_eq!(name.refused.len(), MAX_ADDRESSES);
}

#[tokio::test(start_paused = true)]
async fn resolves_only_the_names_of_the_configuration() {
    let script = Script::new([found(&["1.1.1.1"], 30), found(&["1.1.1.2"], 30)]);
    let (mut names, _) = names(&script, &[]);
    pass(&mut names, 100 * SECOND).await;
    assert_eq!(script.count(), 0);
    let (a, b) = (("team", "a.example"), ("team", "b.example"));
    set(&mut names, &[a, a]);
    names.changed().await;
    set(&mut names, &[b, a]);
    assert_eq!(addresses(&names), ["1.1.1.1"]);
    names.changed().await;
    assert_eq!(names.addresses("b.example").len(), 1);
    set(&mut names, &[]);
    assert!(addresses(&names).is_empty());
    pass(&mut names, 100 * SECOND).await;
    assert_eq!(script.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn names_without_an_answer_delay_no_names_of_other_namespaces() {
    let script = Script::default();
    let (mut names, _) = names(&script, &[]);
    let silent = many("a", 3 * CONCURRENT.1);
    // Another namespace may have the same name.
    let all = [
        borrowed(&silent),
        vec![("z", "a0.example"), ("z", "z.example")],
    ]
    .concat();
    set(&mut names, &all);
    pass(&mut names, SECOND).await;
    let looked_up = |name: &str| {
        let state = script.0.lock().unwrap();
        state.lookups.iter().any(|(it, _)| it == name)
    };
    assert!(looked_up("a0.example") && looked_up("z.example"));
    // One of these is a lookup of the other namespace.
    let of_other = names.running_of(&"z".into());
    assert!(of_other >= 1, "{of_other}");
    assert_eq!(script.count(), CONCURRENT.0 + of_other);
}

#[tokio::test(start_paused = true)]
async fn namespace_without_a_lookup_is_the_next() {
    let held = Held::default();
    let mut names = Names::new(held.clone(), AllowedAddresses::default(), Arc::default());
    let silent: Vec<_> = ["a", "b", "c", "d", "e"]
        .iter()
        .flat_map(|namespace| many(namespace, 3 * CONCURRENT.0))
        .collect();
    set(&mut names, &borrowed(&silent));
    pass(&mut names, SECOND).await;
    assert_eq!(held.names().len(), CONCURRENT.1);
    let all = [borrowed(&silent), vec![("z", "z.example")]].concat();
    set(&mut names, &all);
    pass(&mut names, SECOND).await;
    assert_eq!(held.names().len(), CONCURRENT.1);
    held.end_first();
    pass(&mut names, SECOND).await;
    assert_eq!(held.names().last().map(String::as_str), Some("z.example"));
    assert_eq!(held.names().len(), CONCURRENT.1);
}
