//! Queues and maps that others fill: each one has a row in docs/security.md, or a reason why it needs none. A new one fails the
//! test until somebody has said what bounds it.

use std::collections::BTreeSet;

use crate::security::rows;
use crate::{files_below, read};

/// What says that it is bounded.
enum Bound {
    /// The row of the page that begins like this.
    Row(&'static str),
    /// Why it needs none.
    Reason(&'static str),
}

use self::Bound::{Reason, Row};

/// The parts of the program that read what clients, backends, other servers and pods send.
const FOLDERS: [&str; 13] = [
    "datagrams",
    "dns",
    "http2",
    "http3",
    "https",
    "key_sets",
    "peers",
    "provider/kubernetes",
    "proxy",
    "stream",
    "telemetry",
    "token_endpoint",
    "upstream",
];

/// Types that grow with what is put into them.
const TYPES: [&str; 12] = [
    "BTreeMap<",
    "BTreeSet<",
    "BinaryHeap<",
    "FxHashMap<",
    "FxHashSet<",
    "HashMap<",
    "HashSet<",
    "KeyedMap<",
    "OrdMap<",
    "OrdSet<",
    "Slab<",
    "VecDeque<",
];

/// What the watches of an API server fill.
const DELETED: Bound = Row("policies that are deleted or lose targets");
const FETCHED: Bound = Row("Secrets and ConfigMaps to fetch");
const KINDS: Bound = Reason("kinds and watched namespaces, one each");
const OBJECTS: Bound = Row("objects, their conditions");
const WAITING: Bound = Row("objects that wait for what they refer to, or for policies");

/// Fields and statics of these types, or structs around one, by file below `src`.
const FIELDS: &[(&str, &str, Bound)] = &[
    ("dns/mod.rs", "names", Row("addresses of a name in DNS")),
    (
        "dns/mod.rs",
        "namespaces",
        Row("addresses of a name in DNS"),
    ),
    ("dns/mod.rs", "running", Row("look-ups of names in DNS")),
    (
        "http2/bodies.rs",
        "streams",
        Row("bodies and trailers of HTTP/2"),
    ),
    (
        "http2/header_blocks.rs",
        "Remembered",
        Row("state of HPACK"),
    ),
    (
        "http2/held.rs",
        "CONNECTIONS",
        Reason("one for each connection of HTTP/2, of clients and to backends"),
    ),
    ("http2/hpack.rs", "entries", Row("state of HPACK")),
    (
        "http2/waiting.rs",
        "parts",
        Row("bodies and trailers of HTTP/2"),
    ),
    (
        "key_sets/schedule.rs",
        "running",
        Row("key sets and discovery documents"),
    ),
    (
        "key_sets/schedule.rs",
        "sets",
        Row("key sets and discovery documents"),
    ),
    ("peers/server.rs", "tasks", Row("handshakes of other pods")),
    ("provider/kubernetes/deferrals.rs", "all", WAITING),
    ("provider/kubernetes/fetch.rs", "complete", FETCHED),
    ("provider/kubernetes/fetch.rs", "running", FETCHED),
    ("provider/kubernetes/fetch.rs", "waiting", FETCHED),
    ("provider/kubernetes/fetch.rs", "wanted", FETCHED),
    ("provider/kubernetes/moments.rs", "past", KINDS),
    ("provider/kubernetes/moments.rs", "refusals", KINDS),
    ("provider/kubernetes/moments.rs", "watches", KINDS),
    ("provider/kubernetes/once.rs", "not_served", KINDS),
    ("provider/kubernetes/once.rs", "served", KINDS),
    ("provider/kubernetes/pods.rs", "numbers", OBJECTS),
    ("provider/kubernetes/problems.rs", "Problems", OBJECTS),
    ("provider/kubernetes/referenced.rs", "children", OBJECTS),
    ("provider/kubernetes/referenced.rs", "named", FETCHED),
    (
        "provider/kubernetes/referenced.rs",
        "namespaces",
        Reason("namespaces that the operator names"),
    ),
    ("provider/kubernetes/referenced.rs", "versions", OBJECTS),
    ("provider/kubernetes/retained.rs", "all", DELETED),
    ("provider/kubernetes/retained.rs", "refused", DELETED),
    ("provider/kubernetes/store.rs", "awaited", KINDS),
    ("provider/kubernetes/store.rs", "expected", OBJECTS),
    ("provider/kubernetes/store.rs", "scopes", OBJECTS),
    ("provider/kubernetes/store.rs", "staged", OBJECTS),
    (
        "provider/kubernetes/store/endpoints.rs",
        "splits",
        Reason("labels of ReleaseBackends, while one change is applied"),
    ),
    (
        "proxy/connection/listener.rs",
        "open",
        Reason("ports of Gateways"),
    ),
    ("proxy/mod.rs", "protocols", Reason("ports of Gateways")),
    (
        "proxy/passwords.rs",
        "by_namespace",
        Row("passwords that wait"),
    ),
    ("proxy/passwords.rs", "ready", Row("passwords that wait")),
    ("proxy/passwords.rs", "waiting", Row("passwords that wait")),
    ("proxy/prober.rs", "permits", Row("health checks")),
    ("proxy/prober.rs", "running", Row("health checks")),
    ("proxy/quic_ports.rs", "open", Reason("ports of Gateways")),
    ("proxy/worker.rs", "accepting", Reason("ports of Gateways")),
    (
        "proxy/request/external_auth/message.rs",
        "headers",
        Row("response of an authorization server"),
    ),
    (
        "proxy/request/picker/message.rs",
        "fields",
        Row("messages of an endpoint picker"),
    ),
    (
        "proxy/request/picker/message.rs",
        "filter_metadata",
        Row("messages of an endpoint picker"),
    ),
    (
        "proxy/request/picker/outbox.rs",
        "waiting",
        Row("messages of an endpoint picker"),
    ),
    (
        "proxy/request/picker/protocol.rs",
        "messages",
        Row("messages of an endpoint picker"),
    ),
    (
        "proxy/request/picker/protocol.rs",
        "parts",
        Row("messages of an endpoint picker"),
    ),
    ("proxy/udp/sessions.rs", "by_path", Row("sessions of UDP")),
    (
        "proxy/worker_state/budget.rs",
        "addresses",
        Row("bodies for retries"),
    ),
    (
        "proxy/worker_state/budget.rs",
        "waiting",
        Reason("a question to an endpoint picker, which holds bytes of the budget"),
    ),
    (
        "proxy/worker_state/current_table.rs",
        "rules",
        Row("counters, health and budgets of rules and backends"),
    ),
    (
        "proxy/worker_state/handshakes.rs",
        "by_client",
        Row("handshakes of TLS"),
    ),
    (
        "proxy/worker_state/handshakes.rs",
        "by_place",
        Row("handshakes of TLS"),
    ),
    ("proxy/worker_state/idle.rs", "open", Row("connections")),
    (
        "proxy/worker_state/page_slots.rs",
        "PageSlots",
        Row("error pages that are fetched"),
    ),
    (
        "proxy/worker_state/port.rs",
        "Ports",
        Reason("ports of Gateways, and addresses of the machine"),
    ),
    (
        "stream/hub.rs",
        "by_gateway",
        Row("changes for pods that are behind"),
    ),
    (
        "stream/hub.rs",
        "configured",
        Row("changes for pods that are behind"),
    ),
    ("stream/hub.rs", "connected", Row("what a pod was not sent")),
    ("stream/hub.rs", "quic", Row("reports of a pod")),
    ("stream/hub.rs", "unbound", Row("reports of a pod")),
    (
        "stream/keys.rs",
        "Keys",
        Reason("the keys of the API server, which the controller trusts"),
    ),
    (
        "stream/log.rs",
        "changes",
        Row("changes for pods that are behind"),
    ),
    (
        "stream/mod.rs",
        "revisions",
        Row("changes for pods that are behind"),
    ),
    (
        "stream/pending.rs",
        "by_address",
        Row("connections without a pod"),
    ),
    (
        "stream/ready.rs",
        "addresses",
        Row("objects, their conditions"),
    ),
    (
        "stream/ready.rs",
        "by_gateway",
        Row("objects, their conditions"),
    ),
    (
        "stream/ready.rs",
        "gateways",
        Row("objects, their conditions"),
    ),
    (
        "stream/ready.rs",
        "slices",
        Row("objects, their conditions"),
    ),
    (
        "stream/ready.rs",
        "udp_ports",
        Row("objects, their conditions"),
    ),
    (
        "stream/reviews.rs",
        "accepted",
        Row("tokens that were reviewed"),
    ),
    (
        "stream/reviews.rs",
        "issuers",
        Row("tokens that were reviewed"),
    ),
    (
        "stream/reviews.rs",
        "pods",
        Row("tokens that were reviewed"),
    ),
    (
        "stream/reviews.rs",
        "refused",
        Row("tokens that were reviewed"),
    ),
    (
        "stream/reviews.rs",
        "refused_order",
        Row("tokens that were reviewed"),
    ),
    (
        "stream/reviews.rs",
        "suspects",
        Row("tokens that were reviewed"),
    ),
    (
        "stream/server.rs",
        "Refusals",
        Row("refusals that were logged"),
    ),
    (
        "telemetry/metrics/text/exemplars.rs",
        "by_series",
        Reason("a series each, while one response is written"),
    ),
    (
        "telemetry/metrics/text/outcomes.rs",
        "by_outcome",
        Reason("a series each, while one response is written"),
    ),
    (
        "telemetry/trace/queue.rs",
        "policies",
        Row("spans and records for collectors"),
    ),
    (
        "telemetry/trace/queue.rs",
        "waiting",
        Row("spans and records for collectors"),
    ),
    (
        "token_endpoint/mod.rs",
        "messages",
        Row("policies whose provider was reported"),
    ),
    (
        "token_endpoint/refreshes.rs",
        "Refreshes",
        Row("sessions that were refreshed"),
    ),
    (
        "token_endpoint/refreshes.rs",
        "entries",
        Row("sessions that were refreshed"),
    ),
    (
        "token_endpoint/refreshes.rs",
        "order",
        Row("sessions that were refreshed"),
    ),
    (
        "token_endpoint/room.rs",
        "Room",
        Row("requests to OpenID providers"),
    ),
    (
        "upstream/in_flight.rs",
        "by_id",
        Row("endpoints of a backend"),
    ),
    (
        "upstream/pool.rs",
        "entries",
        Row("connections to backends"),
    ),
];

/// What makes a channel without a bound.
const CHANNELS: [&str; 2] = ["unbounded_channel()", "mpsc::channel()"];

/// Files below `src` with such channels, one each.
const UNBOUNDED: &[(&str, Bound)] = &[
    (
        "peers/server.rs",
        Reason(
            "connections whose handshakes are complete, until the task that counts them takes them",
        ),
    ),
    (
        "proxy/mod.rs",
        Reason("connections, which count as open, and one command for each change of the table"),
    ),
    (
        "proxy/prober.rs",
        Reason("an empty message for each change of the table"),
    ),
    ("proxy/worker.rs", Reason("an error at the start")),
    (
        "proxy/worker_state/quic_socket.rs",
        Reason("nothing: it closes once no worker uses the socket"),
    ),
    ("status/stored.rs", Row("changes of stored statuses")),
    ("token_endpoint/mod.rs", Row("requests to OpenID providers")),
];

/// Returns the code of files below a folder of `src` without their tests, with the paths below `src`.
fn sources(folder: &str) -> Vec<(String, String)> {
    let is_test = |part: &str| matches!(part, "tests" | "tests.rs" | "fixtures.rs" | "oracle.rs");
    let paths = files_below(folder, "rs").into_iter();
    let paths = paths.filter(|path| !path.split('/').any(is_test));
    paths
        .map(|path| {
            let text = read(&path);
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let path = path.strip_prefix("src/").unwrap();
            (path.to_owned(), code.to_owned())
        })
        .collect()
}

/// Returns the name of the field or static, or of the struct around one, that a line declares with one of these types.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (name, value) = if let Some(rest) = line.strip_prefix("struct ") {
        rest.strip_suffix(");")?.split_once('(')?
    } else if let Some(rest) = line.strip_prefix("static ") {
        rest.split_once(" = ")?.0.split_once(": ")?
    } else {
        line.strip_suffix(',')?.split_once(": ")?
    };
    let is_name = name.chars().all(|it| it.is_alphanumeric() || it == '_');
    let grows = TYPES.iter().any(|kind| value.contains(kind));
    (is_name && grows && !value.starts_with('&')).then_some(name)
}

#[test]
fn queues_and_maps_are_bounded() {
    let found: BTreeSet<(String, String)> = FOLDERS
        .iter()
        .flat_map(|folder| sources(&format!("src/{folder}")))
        .flat_map(|(path, code)| {
            let names: Vec<_> = code
                .lines()
                .filter_map(declared)
                .map(str::to_owned)
                .collect();
            names.into_iter().map(move |name| (path.clone(), name))
        })
        .collect();
    let known = FIELDS
        .iter()
        .map(|(path, name, _)| ((*path).to_owned(), (*name).to_owned()));
    let known: BTreeSet<_> = known.collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "say in {} what bounds {new:?}", file!());
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "{} has {gone:?}", file!());
}

#[test]
fn channels_without_a_bound_are_bounded_otherwise() {
    let found = sources("src").into_iter().flat_map(|(path, code)| {
        let channels = CHANNELS.map(|channel| code.matches(channel).count());
        std::iter::repeat_n(path, channels.iter().sum())
    });
    let found: Vec<_> = found.collect();
    let known: Vec<_> = UNBOUNDED.iter().map(|(path, _)| *path).collect();
    assert_eq!(found, known, "say in {} what bounds each", file!());
}

#[test]
fn bounds_are_rows_of_the_page() {
    let page = read("docs/security.md");
    let rows = rows(&page, "| limited by | proof |");
    let fields = FIELDS.iter().map(|(_, _, bound)| bound);
    let channels = UNBOUNDED.iter().map(|(_, bound)| bound);
    for bound in fields.chain(channels) {
        match bound {
            Row(begin) => assert!(rows.iter().any(|row| row[0].starts_with(*begin)), "{begin}"),
            Reason(why) => assert!(!why.is_empty()),
        }
    }
}
