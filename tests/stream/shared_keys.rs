//! Keys of limits that several pods share: what all pods admit of each key, however its requests are distributed over the pods,
//! and while pods come and go.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, EndOfLoad};
use crate::limits::{Running, SECRET, list, nodes, start, started_with, wait_until_away};
use crate::scale::scaled;

/// A limit by key, and what is sent.
#[derive(Clone, Copy, Debug)]
struct Case {
    keys: usize,
    /// Requests of a key in a second, and at once.
    limit: f64,
    burst: f64,
    /// Requests that are sent for each key, more than that.
    requests: u32,
}

const CASES: [Case; 3] = [
    Case {
        keys: 1,
        limit: 100.0,
        burst: 50.0,
        requests: 600,
    },
    Case {
        keys: 30,
        limit: 20.0,
        burst: 10.0,
        requests: 40,
    },
    Case {
        keys: 1_000,
        limit: 1.0,
        burst: 4.0,
        requests: 8,
    },
];

/// Which pods the requests of a key go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    /// All pods.
    Even,
    /// One pod of the key, for four of five.
    Skewed,
    /// One pod of the key.
    Single,
}

impl Distribution {
    /// Returns the key of a request to one of the pods, if that is the pod of any key.
    fn key(self, (pod, pods): (usize, usize), keys: usize, number: usize) -> Option<usize> {
        let any = |number: usize| Some((number * 7 + pod) % keys);
        let own = |number: usize| {
            let mut own = (pod..keys).step_by(pods);
            let at = number.checked_rem(own.len())?;
            own.nth(at)
        };
        match (self, number / 5, number % 5) {
            (Self::Even, ..) => any(number),
            (Self::Single, ..) => own(number),
            (Self::Skewed, turn, 0) => any(turn),
            (Self::Skewed, turn, rest) => own(turn * 4 + rest - 1),
        }
    }
}

/// A rule for each case.
fn rules() -> String {
    let rules = CASES.map(|case| {
        let Case {
            keys, limit, burst, ..
        } = case;
        format!(
            "{{name: of-{keys}, scope: Gateway, key: [{{type: Header, name: X-Key}}], \
             limit: {{requests: {limit}, per: Second, burst: {burst}}}, \
             match: {{headers: [{{name: X-Keys, value: '{keys}'}}]}}}}"
        )
    });
    rules.join(", ")
}

/// A request of a key.
struct Request {
    key: usize,
    begun: Instant,
    ended: Instant,
    is_admitted: bool,
}

/// Sends a request of each of these keys over one connection. `run` makes them others than those of other runs.
fn send(port: u16, case: Case, run: &str, keys: impl Iterator<Item = usize>) -> Vec<Request> {
    let mut client = Client::connect(port);
    let requests = keys.map(|key| {
        // The pace of the requests.
        thread::sleep(Duration::from_millis(1));
        let headers = format!("X-Keys: {}\r\nX-Key: {run}-{key}\r\n", case.keys);
        let begun = Instant::now();
        let status = client.status("a", &headers);
        assert!(matches!(status, 302 | 429), "{status}");
        Request {
            key,
            begun,
            ended: Instant::now(),
            is_admitted: status == 302,
        }
    });
    requests.collect()
}

/// Fails unless each key was admitted, and no more than its limit and so many bursts permit. Returns how many requests were
/// admitted.
fn check(case: Case, bursts: f64, requests: &[Request]) -> usize {
    let mut by_key = BTreeMap::<_, Vec<_>>::new();
    for request in requests {
        by_key.entry(request.key).or_default().push(request);
    }
    assert_eq!(by_key.len(), case.keys);
    for (key, requests) in by_key {
        let begun = requests.iter().map(|it| it.begun).min();
        let ended = requests.iter().map(|it| it.ended).max();
        let time = ended.zip(begun).map(|(ended, begun)| ended - begun);
        let time = time.unwrap_or_default().as_secs_f64();
        let most = 1.05 * case.limit * time + bursts * case.burst;
        let admitted = requests.iter().filter(|it| it.is_admitted).count();
        assert!(
            admitted > 0 && admitted as f64 <= most,
            "{admitted} of {} of key {key} in {time} s, not at most {most}: {case:?}",
            requests.len()
        );
    }
    requests.iter().filter(|it| it.is_admitted).count()
}

/// Sends the requests of a case, over one connection to each pod.
fn drive(pods: &[Running<'_>], case: Case, distribution: Distribution) {
    let number = pods.len();
    let count = case.keys * scaled(case.requests) as usize / number;
    let clients = pods.iter().enumerate().map(|(at, pod)| {
        let port = pod.port;
        thread::spawn(move || {
            let keys = (0..count).filter_map(|it| distribution.key((at, number), case.keys, it));
            send(port, case, &format!("{distribution:?}"), keys)
        })
    });
    let clients: Vec<_> = clients.collect();
    let clients = clients.into_iter();
    let requests: Vec<_> = clients.flat_map(|it| it.join().unwrap()).collect();
    let admitted = check(case, 1.0, &requests);
    let sent = requests.len();
    println!("{number} pods, {distribution:?}: {admitted} of {sent} admitted: {case:?}");
}

#[test]
fn pods_admit_of_each_key_what_its_limit_permits() {
    use Distribution::{Even, Single, Skewed};
    let is_long = scaled(1) > 1;
    let numbers = if is_long { 1..=4 } else { 4..=4 };
    for number in numbers {
        let nodes = nodes::<4>();
        let pods = started_with(&nodes[..number], &rules());
        for (case, usual) in CASES.into_iter().zip([Single, Even, Skewed]) {
            for distribution in [Even, Skewed, Single] {
                if is_long || distribution == usual {
                    drive(&pods, case, distribution);
                }
            }
        }
    }
}

#[test]
fn pods_admit_of_each_key_what_its_limit_permits_while_one_dies_and_one_is_added() {
    let nodes = nodes::<4>();
    let mut pods = started_with(&nodes[..3], &rules());
    let case = CASES[1];
    let ports = [pods[0].port, pods[1].port];
    let is_over = AtomicBool::new(false);
    let requests: Vec<_> = thread::scope(|scope| {
        let is_over = &is_over;
        let _end = EndOfLoad(is_over);
        let clients = ports.map(|port| {
            scope.spawn(move || {
                let numbers = (0..).take_while(|_| !is_over.load(SeqCst));
                send(port, case, "moved", numbers.map(|it| it % case.keys))
            })
        });
        drop(pods.pop());
        pods.iter().for_each(|pod| wait_until_away(pod, 1));
        list(&pods, &[0, 1]);
        pods.iter().for_each(|pod| wait_until_away(pod, 0));
        pods.push(start(&nodes[3], SECRET, &rules()));
        list(&pods, &[0, 1, 2]);
        // Until the list has arrived, no pod is missed.
        thread::sleep(Duration::from_millis(300));
        pods.iter().for_each(|pod| wait_until_away(pod, 0));
        is_over.store(true, SeqCst);
        let clients = clients.into_iter();
        clients.flat_map(|it| it.join().unwrap()).collect()
    });
    // Keys of the pod that dies begin anew at another one, and so do those that move to the added one.
    check(case, 3.0, &requests);
}
