//! What a limit that pods share adds to a request in a pod that does not own the key: instructions of the release program, whose
//! number a busy machine does not change.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::limits::{Running, nodes, started_with};
use crate::pod::Node;

/// Requests of two runs, of which the difference counts: both have the start and the end of a program.
const REQUESTS: [u32; 2] = [1_000, 6_000];
/// What messages between pods, which are sent by time, are a part of.
const REQUESTS_PER_SECOND: f64 = 20_000.0;
/// 5 % of the CPU time of a request that is forwarded: 40 % of that time are 23,600 instructions (benches/README.md).
const BUDGET: f64 = 2_950.0;
/// A limit that no request exceeds.
const RULE: &str = "{name: one, scope: Gateway, key: [{type: Header, name: X-Key}], limit: {requests: 1000000, per: Second}}";

/// Instructions by thread, and how long the requests took.
struct Counted {
    by_thread: BTreeMap<String, u64>,
    time: Duration,
}

/// Instructions of the worker for a request, and of all other threads in a second.
struct Cost {
    of_request: f64,
    of_second: f64,
}

fn release_program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/release/portcullis")
}

fn has_valgrind() -> bool {
    let mut version = Command::new("valgrind");
    let status = version.arg("--version").stdout(Stdio::null()).status();
    status.is_ok_and(|it| it.success())
}

/// The release program under callgrind, which writes a file for each thread when it ends.
fn counting(node: &Node) -> Vec<OsString> {
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(node.path("callgrind"));
    let tool = [
        "valgrind",
        "--quiet",
        "--tool=callgrind",
        "--separate-threads=yes",
    ];
    let tool = tool.into_iter().map(OsString::from);
    tool.chain([file, release_program().into()]).collect()
}

/// Returns what callgrind has written.
fn by_thread(node: &Node) -> BTreeMap<String, u64> {
    let prefix = node.path("callgrind");
    let mut totals = BTreeMap::new();
    for entry in fs::read_dir(prefix.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(thread) = name.strip_prefix("callgrind-") else {
            continue;
        };
        let text = fs::read_to_string(&path).unwrap();
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let total = total.unwrap_or_else(|| panic!("no totals in {name}"));
        totals.insert(thread.to_owned(), total.trim().parse().unwrap());
    }
    totals
}

/// Returns a key whose tokens the pod asks another one for.
fn key_of_another(pod: &Running<'_>) -> u32 {
    let mut client = Client::connect(pod.port);
    let asked = || -> u64 {
        let metrics = pod.pod.metrics();
        let prefix = "portcullis_limit_lease_tokens_total{what=\"asked\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(prefix));
        value.unwrap().parse().unwrap()
    };
    let mut keys = 0..100;
    let is_of_another = |key: &u32| {
        let before = asked();
        assert_eq!(client.status("a", &format!("X-Key: {key}\r\n")), 302);
        // No metric tells that nothing is asked for.
        thread::sleep(Duration::from_millis(500));
        asked() > before
    };
    keys.find(is_of_another).expect("two pods share the keys")
}

/// Counts so many requests to a pod beside another one, with these rules of limits.
fn run(requests: u32, rules: &str) -> Counted {
    let mut nodes = nodes::<2>();
    nodes[0].program = counting(&nodes[0]);
    let mut pods = started_with(&nodes, rules);
    let key = match rules {
        "" => 0,
        _ => key_of_another(&pods[0]),
    };
    let headers = format!("X-Key: {key}\r\n");
    let mut client = Client::connect(pods[0].port);
    let begun = Instant::now();
    for _ in 0..requests {
        assert_eq!(client.status("a", &headers), 302);
    }
    let time = begun.elapsed();
    drop(client);
    pods[0].pod.terminate();
    Counted {
        by_thread: by_thread(&nodes[0]),
        time,
    }
}

fn cost(rules: &str) -> Cost {
    let [few, many] = REQUESTS.map(|requests| run(requests, rules));
    let more = many.by_thread.iter().map(|(thread, total)| {
        let before = few.by_thread.get(thread).copied().unwrap_or_default();
        total.saturating_sub(before) as f64
    });
    let mut more: Vec<_> = more.collect();
    more.sort_by(f64::total_cmp);
    let of_worker = more.pop().expect("a worker");
    let seconds = many.time.saturating_sub(few.time).as_secs_f64();
    Cost {
        of_request: of_worker / f64::from(REQUESTS[1] - REQUESTS[0]),
        of_second: more.iter().sum::<f64>() / seconds,
    }
}

#[test]
#[ignore = "counts target/release/portcullis: cargo test --test stream cost -- --ignored"]
fn shared_limit_takes_little_of_a_request_whose_key_another_pod_owns() {
    if !has_valgrind() || !release_program().exists() {
        println!(
            "left out: needs valgrind and {}",
            release_program().display()
        );
        return;
    }
    let (without, with) = (cost(""), cost(RULE));
    let of_request = with.of_request - without.of_request;
    let of_messages = (with.of_second - without.of_second) / REQUESTS_PER_SECOND;
    println!(
        "{of_request:.0} instructions of a request, and {of_messages:.0} of messages to the other pod"
    );
    assert!(
        of_request + of_messages <= BUDGET,
        "{of_request} and {of_messages} instructions, not at most {BUDGET}"
    );
}
