//! Queues and maps that others fill: each one has a row in docs/security.md, or a reason why it needs none. A new one fails the
//! test until somebody has said what bounds it.

mod fields;

use std::collections::BTreeSet;

use self::fields::Bound::{self, Reason, Row};
use self::fields::FIELDS;
use crate::security::rows;
use crate::{files_below, read};

/// The parts of the program that read what clients, backends, other servers and pods send.
const FOLDERS: [&str; 18] = [
    "admin",
    "cluster",
    "datagrams",
    "dns",
    "http2",
    "http3",
    "https",
    "key_sets",
    "peers",
    "provider/kubernetes",
    "provider/stream",
    "proxy",
    "quic",
    "stream",
    "table",
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
    assert!(
        new.is_empty(),
        "say in {} what bounds {new:?}",
        fields::FILE
    );
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "{} has {gone:?}", fields::FILE);
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
