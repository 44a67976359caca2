//! All pairs of levels: two policies set the same section at two levels, in each order of creation and with each strategy.
//! Requests show which of them has an effect, and `/explain` and the conditions of both policies and of their targets say so.

mod case;
mod connections;
mod sections;
mod specification;
mod specs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use futures_util::{StreamExt, stream};
use portcullis::control::data_plane::ServedConfiguration;
use portcullis::status::{ConditionStatus, ConditionType};
use serde_json::Value;

use self::case::Case;
use self::sections::{Backends, Effect, ISSUER, Section, tokens};
use self::specification::{Level, Placed, pairs};
use crate::provider::{Provider, permitted};
use crate::scene::Scene;

/// Pairs of a scene whose requests take little time. An explanation takes as long as the scene is large.
const PAIRS: usize = 17;

/// Checks all pairs of these levels, and whether the outcome depends on the order in which objects arrive.
async fn check(section: Section, levels: &[Level]) {
    let backends = Backends::new().await;
    let _provider = provider_of(&section).await;
    let of_scene = PAIRS.max(section.effect.concurrency());
    for pairs in pairs(levels).chunks(of_scene) {
        check_scene(&section, &backends, pairs).await;
    }
}

/// Starts the provider of sign-ins.
async fn provider_of(section: &Section) -> Option<Provider> {
    if section.effect != Effect::SignIn {
        return None;
    }
    let provider = Provider::start().await;
    ISSUER.get_or_init(|| provider.issuer());
    Some(provider)
}

/// Checks these pairs in one scene.
async fn check_scene(section: &Section, backends: &Backends, pairs: &[[Placed; 2]]) {
    let pairs = pairs.iter().enumerate();
    let cases = pairs.map(|(index, pair)| Case {
        index,
        section,
        pair: *pair,
    });
    let cases: Vec<_> = cases.collect();
    let objects = |with_policies: bool| {
        let add = |objects, case: &Case<'_>| case.add_to(objects, with_policies);
        cases.iter().fold(backends.objects(), add)
    };
    let mut scene = Scene::with(&objects(true), permitted);
    let first = scene.outcome_with(is_resolved).await;
    let tokens = tokens();
    for case in &cases {
        case.check_conditions(&first);
    }
    let requests = cases
        .iter()
        .map(|case| case.check_requests(&scene, &tokens));
    let mut requests = stream::iter(requests).buffer_unordered(section.effect.concurrency());
    while requests.next().await.is_some() {}
    drop(requests);
    scene.replace(&objects(false)).await;
    scene.replace(&objects(true)).await;
    let count = first.report.policies.len();
    // The keys of a provider that is no longer needed may change what is served before.
    let is_whole = |it: &ServedConfiguration| it.report.policies.len() == count && is_resolved(it);
    let again = scene.outcome_with(is_whole).await;
    assert_eq!(again.report, first.report, "policies that arrive later");
}

/// Reports whether all policies have what they name: the keys of a provider are fetched once a policy is in service.
fn is_resolved(outcome: &ServedConfiguration) -> bool {
    let statuses = outcome.report.policies.iter();
    let mut conditions = statuses
        .flat_map(|(_, status)| status.iter())
        .flat_map(|status| status.conditions.iter());
    !conditions
        .any(|it| (it.kind, it.status) == (ConditionType::ResolvedRefs, ConditionStatus::False))
}

/// The levels of a Gateway alone, whose connections ListenerSets may share.
const OF_GATEWAYS: [Level; 2] = [Level::Gateway, Level::Listener];
/// The levels that have clients.
const OF_CLIENTS: [Level; 4] = [
    Level::Gateway,
    Level::Listener,
    Level::ListenerSet,
    Level::ListenerOfSet,
];

/// A test for each section of policies or some of them, with the levels at which they may be.
macro_rules! matrix {
    ($($test:ident: $levels:expr, [$($section:ident),+];)+) => {
        const SECTIONS: &[fn() -> Section] = &[$($(specs::$section),+),+];

        $(
            #[tokio::test]
            async fn $test() {
                $(check(specs::$section(), $levels).await;)+
            }
        )+
    };
}

matrix! {
    denied_addresses_of_all_levels_count: &Level::ALL, [denied_addresses];
    permitted_addresses_of_all_pairs_of_levels: &Level::ALL, [permitted_addresses];
    users_of_all_pairs_of_levels: &Level::ALL, [users];
    api_keys_of_all_pairs_of_levels: &Level::ALL, [api_keys];
    tokens_of_all_pairs_of_levels: &Level::ALL, [tokens];
    sign_ins_of_all_pairs_of_levels: &Level::ALL, [sign_ins];
    authorization_servers_of_all_pairs_of_levels: &Level::ALL, [authorization_servers];
    authorization_of_all_pairs_of_levels: &Level::ALL, [authorization];
    required_credentials_of_all_pairs_of_levels: &Level::ALL, [any_of_first, any_of_second];
    limits_of_all_pairs_of_levels: &Level::ALL, [limits];
    headers_of_all_pairs_of_levels: &Level::ALL, [response_headers, request_headers];
    bodies_of_all_pairs_of_levels: &Level::ALL, [request_bodies, compression];
    timeouts_of_all_pairs_of_levels: &Level::ALL, [timeout_of_first, timeout_of_second];
    retries_of_all_pairs_of_levels: &Level::ALL, [retries];
    error_pages_of_all_pairs_of_levels: &Level::ALL, [error_pages];
    paths_of_all_pairs_of_levels: &OF_CLIENTS, [paths];
    connections_of_all_pairs_of_levels: &OF_GATEWAYS, [header_limits, connection_limits];
    addresses_of_clients_of_all_pairs_of_levels: &OF_CLIENTS, [client_addresses];
    tls_of_all_pairs_of_levels: &OF_CLIENTS, [tls];
    timeouts_of_connections_of_all_pairs_of_levels: &OF_GATEWAYS, [connection_timeouts];
    http2_of_all_pairs_of_levels: &OF_GATEWAYS, [http2];
    http3_of_all_pairs_of_levels: &OF_GATEWAYS, [http3];
    proxy_protocol_of_all_pairs_of_levels: &OF_GATEWAYS, [proxy_protocol];
}

/// The fields of policies by kind.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// Returns the sections of all kinds that are inherited, by their CRDs.
fn fields_of_crds() -> Fields {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/crds");
    let mut fields = Fields::new();
    for file in fs::read_dir(folder).expect("a folder") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("text");
        let crd: Value = serde_saphyr::from_str(&text).expect("a CRD");
        let label = &crd["metadata"]["labels"]["gateway.networking.k8s.io/policy"];
        if label.as_str() != Some("inherited") {
            continue;
        }
        let kind = crd["spec"]["names"]["kind"].as_str().expect("a kind");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = schema["properties"]["spec"]["properties"].as_object();
        let names = spec.expect("fields").keys().cloned();
        let sections = names.filter(|name| !matches!(&**name, "targetRefs" | "strategy"));
        fields.insert(kind.to_owned(), sections.collect());
    }
    fields
}

#[test]
fn matrix_has_every_section_of_inherited_policies() {
    let mut fields = Fields::new();
    for section in SECTIONS {
        let section = section();
        let spec = (section.spec)('a');
        let names = spec.as_object().expect("sections").keys().cloned();
        let known = fields.entry(section.kind.to_owned()).or_default();
        known.extend(names);
    }
    assert_eq!(fields, fields_of_crds());
}
