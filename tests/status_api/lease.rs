//! Leader election: which candidate is the leader, and how other candidates learn its address.

use std::thread;
use std::time::{Duration, Instant};

use portcullis::status::lease::{self, Candidate, Leadership};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::api::{Api, Fault, Request};
use crate::{History, client, runtime};

const NAMESPACE: &str = "system";
const NAME: &str = "controller";
const LEASE_DURATION: Duration = Duration::from_secs(6);
/// The deadline of the product.
const RENEW_DEADLINE: Duration = Duration::from_secs(4);

/// A candidate on its own thread.
struct Running {
    history: History<Leadership>,
    leadership: watch::Sender<Leadership>,
    /// Stops it. With true, it resigns. Without a message, it dies.
    end: Option<oneshot::Sender<bool>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Running {
    /// Starts a candidate with this identity, which is also its token, and stream address.
    fn start(api: &Api, identity: &str, address: &str) -> Self {
        let history = History::new();
        let (seen, api) = (history.clone(), api.clone());
        let (identity, address) = (identity.to_owned(), address.to_owned());
        let (end, ended) = oneshot::channel();
        let (leadership, mut known) = watch::channel(Leadership::default());
        let publishes = leadership.clone();
        let thread = thread::spawn(move || {
            runtime().block_on(async {
                let client = client(&api, &identity);
                let address = Some(address);
                let mut candidate = Candidate::new(client, NAMESPACE, NAME, &identity, address);
                let record = async {
                    while known.changed().await.is_ok() {
                        seen.push(known.borrow_and_update().clone());
                    }
                };
                let resigns = tokio::select! {
                    () = candidate.campaign(&publishes) => false,
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
            leadership,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Waits until it is the leader. Returns since when.
    fn leads(&self) -> Instant {
        self.history.wait_for(0, |known| known.is_leader).0
    }

    /// Waits until it knows the address of another leader.
    fn follows(&self, address: &str) {
        let is_there = |known: &Leadership| known.leader_address.as_deref() == Some(address);
        self.history.wait_for(0, is_there);
    }

    fn end(mut self, resigns: bool) {
        let _ = self.end.take().unwrap().send(resigns);
        self.thread.take().unwrap().join().unwrap();
    }

    /// Reports whether it has been the leader without interruption.
    fn has_led_throughout(&self) -> bool {
        let history = self.history.all();
        let mut since = history.iter().skip_while(|(_, known)| !known.is_leader);
        since.all(|(_, known)| known.is_leader)
    }
}

fn lease(api: &Api, wanted: impl Fn(&Value) -> bool) -> Value {
    api.wait_for("Lease", NAMESPACE, NAME, wanted)
}

/// How often candidates have read the Lease.
fn reads(api: &Api) -> usize {
    let requests = api.requests("/leases/").into_iter();
    requests.filter(|request| request.method == "GET").count()
}

fn is_held_by(lease: &Value, identity: &str) -> bool {
    lease["spec"]["holderIdentity"] == identity
}

/// Returns a Lease of a dead holder.
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
fn first_candidate_leads_and_publishes_its_address() {
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
fn another_candidate_leads_after_the_lease_of_a_dead_leader_expires() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    two.follows("10.0.0.1:19443");
    let renewals = api.wait_for_requests(1, "PUT", "/leases/");
    let renewed = renewals[renewals.len() - 1].at;
    one.end(false);
    let seen = reads(&api);
    let leads = two.leads();
    assert!(
        leads - renewed >= LEASE_DURATION,
        "after {:?}",
        leads - renewed
    );
    // Candidates poll every second and when the Lease expires.
    let polls = reads(&api) - seen;
    assert!(polls as u64 <= LEASE_DURATION.as_secs() + 2, "{polls}");
    let lease = lease(&api, |lease| is_held_by(lease, "two"));
    assert_eq!(lease["spec"]["leaseTransitions"], 2);
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(
        annotations["portcullis.dev/stream-address"],
        "10.0.0.2:19443"
    );
}

#[test]
fn another_candidate_leads_at_once_after_a_resignation() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    two.follows("10.0.0.1:19443");
    one.end(true);
    let seen = reads(&api);
    two.leads();
    // The next poll, or the one after it, finds the Lease free.
    let polls = reads(&api) - seen;
    assert!(polls <= 2, "{polls}");
}

#[test]
fn candidate_with_the_holders_identity_leads_at_once() {
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
fn lease_expires_by_the_local_clock() {
    for renewed in ["2000-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"] {
        let api = Api::start();
        api.put(abandoned("other", 1, renewed));
        let began = Instant::now();
        let one = Running::start(&api, "one", "10.0.0.1:19443");
        let waited = one.leads() - began;
        assert!(
            waited >= Duration::from_secs(1),
            "{waited:?} with {renewed}"
        );
        // At first, after a second, and when the Lease has expired.
        assert!(reads(&api) <= 3, "{} with {renewed}", reads(&api));
    }
}

#[test]
fn unresponsive_api_server_ends_leadership_before_another_leads() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    let two = Running::start(&api, "two", "10.0.0.2:19443");
    two.follows("10.0.0.1:19443");
    let last = |renewals: &[Request]| renewals[renewals.len() - 1].at;
    let before = last(&api.wait_for_requests(1, "PUT", "/leases/"));
    api.silence("one");
    let renewals = api.wait_for_requests(1, "PUT", "/leases/");
    // The last renewal has ended when the next one begins.
    api.wait_for_requests(renewals.len() + 1, "PUT", "/leases/");
    // Nothing is left to compare if the leader has stopped already.
    if let Some(until) = one.leadership.borrow().until {
        assert!(until.into_std() <= last(&renewals) + RENEW_DEADLINE);
    }
    let (_, known) = one.history.wait_for(1, |known| !known.is_leader);
    assert_eq!(known, Leadership::default());
    let leads = two.leads();
    assert!(leads >= before + LEASE_DURATION, "{:?}", leads - before);
}

#[test]
fn single_failed_renewal_keeps_leadership() {
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
fn slow_responses_keep_leadership() {
    let api = Api::start();
    api.fail("Lease", Some(Fault::Slow(Duration::from_secs(1))));
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    // Longer than the renew deadline.
    api.wait_for_requests(5, "PUT", "/leases/");
    assert!(one.has_led_throughout(), "{:?}", one.history.all());
}

#[test]
fn holder_keeps_an_edited_or_deleted_lease() {
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
fn leader_steps_down_when_its_lease_is_taken() {
    let api = Api::start();
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    one.leads();
    api.put(abandoned("other", 15, "2026-01-01T00:00:00.000000Z"));
    let (_, known) = one.history.wait_for(1, |known| !known.is_leader);
    assert_eq!(known.leader_address.as_deref(), Some("10.0.0.9:19443"));
}

#[test]
fn only_one_of_two_candidates_takes_an_expired_lease() {
    let api = Api::start();
    api.put(abandoned("other", 1, "2026-01-01T00:00:00.000000Z"));
    // Both candidates read before one writes.
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
fn invalid_stream_address_is_not_published() {
    let api = Api::start();
    let mut lease = abandoned("other", 15, "2026-01-01T00:00:00.000000Z");
    lease["metadata"]["annotations"]["portcullis.dev/stream-address"] = "evil.example/x".into();
    api.put(lease);
    let one = Running::start(&api, "one", "10.0.0.1:19443");
    api.wait_for_requests(2, "GET", "/leases/");
    // A holder of a version without streams keeps the annotation.
    api.put(abandoned("old", 15, "2026-01-01T00:00:00.000000Z"));
    one.follows("10.0.0.9:19443");
    assert_eq!(one.history.all().len(), 1, "{:?}", one.history.all());
}

/// Runs leader's tasks on this thread, which is then blocked for `blocked`, while a candidate campaigns on another one.
/// Returns how often the tasks run after that, at most 10.
fn runs_after(api: &Api, blocked: Duration, before: impl FnOnce()) -> usize {
    let one = Running::start(api, "one", "10.0.0.1:19443");
    let mut leadership = one.leadership.subscribe();
    runtime().block_on(async {
        leadership.wait_for(Leadership::may_act).await.unwrap();
        before();
        let mut runs = 0;
        let tasks = async {
            // The block is the subject of the test.
            thread::sleep(blocked);
            for _ in 0..10 {
                tokio::task::yield_now().await;
                runs += 1;
            }
        };
        lease::lead(&mut leadership, tasks).await;
        runs
    })
}

#[test]
fn blocked_leader_keeps_the_lease_that_another_thread_renews() {
    let api = Api::start();
    let blocked = RENEW_DEADLINE + Duration::from_secs(1);
    assert_eq!(runs_after(&api, blocked, || {}), 10);
    assert_eq!(lease(&api, |_| true)["spec"]["leaseTransitions"], 1);
}

#[test]
fn blocked_leader_that_loses_the_lease_meanwhile_writes_nothing_more() {
    let api = Api::start();
    let blocked = RENEW_DEADLINE + Duration::from_secs(1);
    assert_eq!(runs_after(&api, blocked, || api.silence("one")), 0);
}

/// Simulates SIGSTOP and SIGCONT of a process whose election thread runs last afterwards.
#[test]
fn tasks_do_not_run_after_the_deadline_although_nobody_has_noticed_it() {
    let (sender, mut leadership) = watch::channel(Leadership::default());
    let leads_until = |until: tokio::time::Instant| Leadership {
        is_leader: true,
        leader_address: None,
        until: Some(until),
    };
    runtime().block_on(async {
        let now = tokio::time::Instant::now();
        sender.send_replace(leads_until(now));
        let tasks = async { panic!("a task ran after the deadline") };
        lease::lead(&mut leadership, tasks).await;
        sender.send_replace(leads_until(now + Duration::from_secs(60)));
        lease::lead(&mut leadership, async {}).await;
        assert!(leadership.borrow().may_act());
    });
}

/// Simulates SIGSTOP and SIGCONT: time passes, then everything is polled in order.
#[test]
fn suspended_leader_steps_down_before_acting() {
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
                // The suspension is the subject of the test.
                thread::sleep(RENEW_DEADLINE + Duration::from_secs(1));
                // Tasks that are polled after the candidate observe this.
                tokio::task::yield_now().await;
                assert!(!known.borrow().is_leader);
            } => {}
        }
    });
}
