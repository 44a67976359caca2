//! Leader election: who leads when, and where the others learn that the leader is.

use std::thread;
use std::time::{Duration, Instant};

use portcullis::status::lease::{Candidate, Leadership};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::api::{Api, Fault};
use crate::{History, client, runtime};

const NAMESPACE: &str = "system";
const NAME: &str = "controller";
const DURATION: Duration = Duration::from_secs(6);
const RENEW_DEADLINE: Duration = Duration::from_secs(4);

/// A candidate on a thread of its own.
struct Running {
    history: History<Leadership>,
    /// Ends it: with true it resigns, without a word it dies.
    end: Option<oneshot::Sender<bool>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Running {
    /// Campaigns under this name, which is its token too, and says that it serves streams at this address.
    fn start(api: &Api, identity: &str, address: &str) -> Self {
        let history = History::new();
        let (seen, api) = (history.clone(), api.clone());
        let (identity, address) = (identity.to_owned(), address.to_owned());
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || {
            runtime().block_on(async {
                let client = client(&api, &identity);
                let address = Some(address);
                let mut candidate = Candidate::new(client, NAMESPACE, NAME, &identity, address);
                let (leadership, mut known) = watch::channel(Leadership::default());
                let record = async {
                    while known.changed().await.is_ok() {
                        seen.push(known.borrow_and_update().clone());
                    }
                };
                let resigns = tokio::select! {
                    () = candidate.campaign(&leadership) => false,
                    () = record => false,
                    resigns = ended => resigns.unwrap_or(false),
                };
                if resigns {
                    candidate.resign().await;
                }
            });
        });
        Self {
            history,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Waits until it leads, and returns since when.
    fn leads(&self) -> Instant {
        self.history.wait_for(0, |known| known.is_leader).0
    }

    /// Waits until it knows where another serves as leader.
    fn follows(&self, address: &str) {
        let is_there = |known: &Leadership| known.leader_address.as_deref() == Some(address);
        self.history.wait_for(0, is_there);
    }

    fn end(mut self, resigns: bool) -> Instant {
        let _ = self.end.take().unwrap().send(resigns);
        self.thread.take().unwrap().join().unwrap();
        Instant::now()
    }

    /// Whether it has led ever since it began to.
    fn has_led_throughout(&self) -> bool {
        let history = self.history.all();
        let mut since = history.iter().skip_while(|(_, known)| !known.is_leader);
        since.all(|(_, known)| known.is_leader)
    }
}

fn lease(api: &Api, wanted: impl Fn(&Value) -> bool) -> Value {
    api.wait_for("Lease", NAMESPACE, NAME, wanted)
}

fn is_held_by(lease: &Value, identity: &str) -> bool {
    lease["spec"]["holderIdentity"] == identity
}

/// A Lease of a holder that no longer runs.
fn abandoned(identity: &str, seconds: i32, renewed: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": NAME, "namespace": NAMESPACE,
            "annotations": {"portcullis.dev/stream-address": "10.0.0.9:19443", "example.com/kept": "yes"},
        },
        "spec": {
            "holderIdentity": identity, "leaseDurationSeconds": seconds, "leaseTransitions": 3,
            "acquireTime": renewed, "renewTime": renewed,
        },
    })
}

#[test]
fn the_first_leads_and_the_others_learn_its_address() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    two.follows("10.0.0.1:19443");
    let lease = lease(&api, |_| true);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 6);
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    let known = one.history.all().remove(0).1;
    assert_eq!((known.is_leader, known.leader_address), (true, None));
    assert!(two.history.all().iter().all(|(_, known)| !known.is_leader));
}

#[test]
fn a_leader_that_dies_is_followed_once_its_lease_has_expired() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    two.follows("10.0.0.1:19443");
    let renewals = api.wait_for_requests(1, "PUT", "/leases/");
    let renewed = renewals[renewals.len() - 1].at;
    let died = one.end(false);
    let leads = two.leads();
    assert!(leads - renewed >= DURATION, "after {:?}", leads - renewed);
    // It looks every second, and when the Lease expires.
    let most = DURATION + Duration::from_secs(2);
    assert!(leads - died <= most, "only after {:?}", leads - died);
    let lease = lease(&api, |lease| is_held_by(lease, "two"));
    assert_eq!(lease["spec"]["leaseTransitions"], 2);
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(
        annotations["portcullis.dev/stream-address"],
        "10.0.0.2:19443"
    );
}

#[test]
fn a_leader_that_resigns_is_followed_at_once() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    two.follows("10.0.0.1:19443");
    let resigned = one.end(true);
    let waited = two.leads().saturating_duration_since(resigned);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[test]
fn a_process_that_starts_under_the_identity_of_the_holder_leads_at_once() {
    let api = Api::start();
    api.put(abandoned("one", 15, "2026-01-01T00:00:00.000000Z"));
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let requests = api.requests("/leases/");
    let methods: Vec<_> = requests.iter().take(2).map(|one| &*one.method).collect();
    assert_eq!(methods, ["GET", "PUT"]);
    let lease = lease(&api, |_| true);
    assert_eq!(lease["spec"]["leaseTransitions"], 3);
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(
        annotations["portcullis.dev/stream-address"],
        "10.0.0.1:19443"
    );
    assert_eq!(annotations["example.com/kept"], "yes");
}

#[test]
fn a_lease_expires_by_what_is_seen_of_it_whatever_its_clock_says() {
    for renewed in ["2000-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"] {
        let api = Api::start();
        api.put(abandoned("other", 1, renewed));
        let began = Instant::now();
        let one = Running::start(&api, "one", "10.0.0.1:19443");
        let waited = one.leads() - began;
        let expected = Duration::from_secs(1)..Duration::from_secs(4);
        assert!(expected.contains(&waited), "{waited:?} with {renewed}");
    }
}

#[test]
fn a_leader_without_answers_stops_before_another_begins() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    two.follows("10.0.0.1:19443");
    api.silence("one");
    let silenced = Instant::now();
    let (stopped, known) = one.history.wait_for(1, |known| !known.is_leader);
    assert_eq!(known, Leadership::default());
    let waited = stopped - silenced;
    assert!(
        waited <= RENEW_DEADLINE + Duration::from_secs(1),
        "{waited:?}"
    );
    let followed = two.leads().saturating_duration_since(stopped);
    assert!(followed >= Duration::from_secs(1), "{followed:?}");
}

#[test]
fn a_failed_renewal_does_not_end_leadership() {
    let faults = [
        Fault::Status(500),
        Fault::RetryAfter(429, 60),
        Fault::Page(502),
        Fault::Reset,
    ];
    for fault in faults {
        let api = Api::start();
        let one = Running::start(&api, "one", "10.0.0.1:19443");
        one.leads();
        let renewals = api.wait_for_requests(1, "PUT", "/leases/").len();
        api.fail("Lease", Some(fault));
        api.wait_for_requests(renewals + 1, "PUT", "/leases/");
        api.fail("Lease", None);
        let before = lease(&api, |_| true);
        lease(&api, |lease| {
            lease["spec"]["renewTime"] != before["spec"]["renewTime"]
        });
        assert!(
            one.has_led_throughout(),
            "{fault:?}: {:?}",
            one.history.all()
        );
    }
}

#[test]
fn slow_answers_do_not_end_leadership() {
    let api = Api::start();
    api.fail("Lease", Some(Fault::Slow(Duration::from_millis(1200))));
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    // Longer than a leader acts without renewing.
    api.wait_for_requests(5, "PUT", "/leases/");
    assert!(one.has_led_throughout(), "{:?}", one.history.all());
}

#[test]
fn a_lease_that_somebody_edits_or_deletes_stays_with_its_holder() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let mut edited = lease(&api, |_| true);
    edited["metadata"]["labels"] = json!({"example.com/edited": "yes"});
    api.put(edited.clone());
    let renewed = &edited["spec"]["renewTime"];
    let lease_then = lease(&api, |lease| lease["spec"]["renewTime"] != *renewed);
    assert_eq!(
        lease_then["metadata"]["labels"]["example.com/edited"],
        "yes"
    );
    api.delete("Lease", NAMESPACE, NAME);
    lease(&api, |lease| is_held_by(lease, "one"));
    assert!(one.has_led_throughout(), "{:?}", one.history.all());
}

#[test]
fn a_leader_whose_lease_is_taken_stops_and_follows() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    api.put(abandoned("other", 15, "2026-01-01T00:00:00.000000Z"));
    let (_, known) = one.history.wait_for(1, |known| !known.is_leader);
    assert_eq!(known.leader_address.as_deref(), Some("10.0.0.9:19443"));
}

#[test]
fn of_two_candidates_for_an_expired_lease_one_leads() {
    let api = Api::start();
    api.put(abandoned("other", 1, "2026-01-01T00:00:00.000000Z"));
    // Both read before one writes.
    api.fail_writes("Lease", Some(Fault::Slow(Duration::from_millis(300))));
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    lease(&api, |lease| !is_held_by(lease, "other"));
    let (loser, address) = match is_held_by(&lease(&api, |_| true), "one") {
        true => (two, "10.0.0.1:19443"),
        false => (one, "10.0.0.2:19443"),
    };
    loser.follows(address);
    assert!(
        loser
            .history
            .all()
            .iter()
            .all(|(_, known)| !known.is_leader)
    );
}

#[test]
fn an_address_that_is_none_is_not_passed_on() {
    let api = Api::start();
    let mut lease = abandoned("other", 15, "2026-01-01T00:00:00.000000Z");
    lease["metadata"]["annotations"]["portcullis.dev/stream-address"] = "evil.example/x".into();
    api.put(lease);
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    api.wait_for_requests(2, "GET", "/leases/");
    // What a holder of a version that knows no streams leaves of ours.
    api.put(abandoned("old", 15, "2026-01-01T00:00:00.000000Z"));
    one.follows("10.0.0.9:19443");
    assert_eq!(one.history.all().len(), 1, "{:?}", one.history.all());
}

/// What the controller does with SIGSTOP and SIGCONT: time passes, and then everything is polled in order.
#[test]
fn a_leader_that_has_stood_still_stops_before_it_does_anything_else() {
    let api = Api::start();
    runtime().block_on(async {
        let client = client(&api, "one");
        let mut candidate = Candidate::new(client, NAMESPACE, NAME, "one", None);
        let (leadership, mut known) = watch::channel(Leadership::default());
        tokio::select! {
            biased;
            () = candidate.campaign(&leadership) => {}
            () = async {
                known.wait_for(|known| known.is_leader).await.unwrap();
                thread::sleep(RENEW_DEADLINE + Duration::from_secs(1));
                // Whatever is polled after the candidate sees this.
                tokio::task::yield_now().await;
                assert!(!known.borrow().is_leader);
            } => {}
        }
    });
}
