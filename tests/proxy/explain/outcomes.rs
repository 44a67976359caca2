//! Explanations of a configuration with every kind of rule say what the proxy does with random requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portcullis::settings::AccessLogTarget;
use serde_json::json;

use super::comparison::Exchange;
use super::configuration::{ECHOES, RULES, objects};
use super::requests::Dice;
use super::sent::{Connections, log};
use crate::harness::scale::scaled;
use crate::origin::Origin;
use crate::scene::Scene;

const SEED: u64 = 5;
const REQUESTS: u32 = 2_000;
/// Number of different outcomes that the requests have at least.
const OUTCOMES: usize = 50;

#[tokio::test]
async fn explanation_is_what_clients_and_backends_get() {
    let mut echoes = Vec::new();
    for name in ECHOES {
        echoes.push(Origin::echo(name).await);
    }
    let services: BTreeMap<SocketAddr, _> =
        echoes.iter().map(|it| it.address).zip(ECHOES).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("access.log");
    let scene = Scene::with(&objects(&echoes), |settings| {
        settings.access_log.target = AccessLogTarget::File(file.clone());
    });
    let mut dice = Dice::new(SEED);
    let mut connections = Connections::of(&scene);
    let mut exchanges = Vec::new();
    for _ in 0..scaled(REQUESTS) {
        let sent = dice.request();
        let explained = connections.explain(&sent).await;
        let answer = connections.send(&sent).await;
        exchanges.push((sent, explained, answer));
    }
    let answered = exchanges.iter().filter(|(.., answer)| answer.is_some());
    let lines = log(&file, answered.count());
    let (mut outcomes, mut differences) = (BTreeMap::new(), Vec::new());
    for (sent, explained, answer) in &exchanges {
        let compared = Exchange {
            sent,
            explained: &explained["ports"][0],
            answer: answer.as_ref(),
            line: lines.get(&sent.id),
            services: &services,
        };
        match compared.compare() {
            Ok(outcome) => *outcomes.entry(outcome).or_insert(0) += 1,
            Err(difference) => {
                differences.push(format!("{difference}\n{sent:?}\n{explained:#}\n{answer:?}"));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences with seed {SEED}; the first:\n{}",
        differences.len(),
        differences[..differences.len().min(3)].join("\n\n")
    );
    every_rule_is_met(&outcomes);
}

/// Asserts that the requests met every rule several times, and led to many outcomes.
fn every_rule_is_met(outcomes: &BTreeMap<String, usize>) {
    for (route, rules) in RULES {
        for rule in 0..rules {
            let of_rule = format!("{} {rule}: ", json!(route));
            let of_rule = outcomes.iter().filter(|(it, _)| it.starts_with(&of_rule));
            let count: usize = of_rule.map(|(_, count)| count).sum();
            assert!(
                count >= 5,
                "{route} rule {rule} is met by {count}: {outcomes:#?}"
            );
        }
    }
    let count = outcomes.len();
    assert!(count >= OUTCOMES, "only {count} outcomes: {outcomes:#?}");
}
