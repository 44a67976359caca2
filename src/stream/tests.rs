//! What a pod serves at any moment, in any order of events: what a controller knew, whole, with all that protects it.
//! Updates are late, cut off, and in any order within; controllers and the pod restart, and the pod cannot read all policies.

mod cluster;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::cluster::reordered;
use super::hub::{Hub, Next};
use super::session::{self, SessionInputs};
use crate::api::Key;
use crate::ir::ObjectRef;
use crate::provider::Load;
use crate::provider::fixtures::{self, Judge, options, runner};
use crate::provider::stream::fixtures::{ConnectionRole, Pod};
use crate::snapshot::Snapshot;
use crate::status::lease::Leadership;

/// Number of controllers.
const CONTROLLERS: usize = 2;

fn gateway() -> ObjectRef {
    ObjectRef::gateway_api("Gateway", "default", "edge")
}

/// A controller process.
struct Controller {
    hub: Arc<Hub>,
    /// The state of the cluster that it knows.
    at: usize,
}

/// A connection of the pod.
struct Link {
    session: JoinHandle<()>,
    body: mpsc::Receiver<Bytes>,
    /// What was sent and has not arrived.
    sent: Vec<u8>,
    _leadership: watch::Sender<Leadership>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.session.abort();
    }
}

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    /// Some writes that follow from a choice.
    Write(u32),
    /// A controller learns of some writes.
    Follow(usize, usize),
    ControllerRestarts(usize, usize),
    Connect(ConnectionRole, usize),
    /// A controller sends what the pod lacks, with the objects in some order.
    Send(ConnectionRole, usize),
    /// Some of what was sent arrives.
    Arrive(ConnectionRole, usize),
    /// Some of what was sent arrives, and the connection ends.
    CutOff(ConnectionRole, usize),
    Copy,
    /// The pod restarts, and its copy lacks some bytes at its end.
    PodRestarts(u64),
}

/// What happens last in every case: a copy is read, and a connection ends within what was sent.
const LAST: [Event; 8] = [
    Event::Connect(ConnectionRole::Current, 0),
    Event::Send(ConnectionRole::Current, 0),
    Event::Arrive(ConnectionRole::Current, usize::MAX),
    Event::Copy,
    Event::PodRestarts(0),
    Event::Connect(ConnectionRole::Current, 1),
    Event::Send(ConnectionRole::Current, 0),
    Event::CutOff(ConnectionRole::Current, 1),
];

fn events() -> impl Strategy<Value = Vec<Event>> {
    let place =
        || prop_oneof![2 => Just(ConnectionRole::Current), 1 => Just(ConnectionRole::Candidate)];
    let bytes = || prop_oneof![1 => 0..400_usize, 1 => 0..4_000_usize, 2 => Just(usize::MAX)];
    let torn = prop_oneof![2 => Just(0), 1 => 0..2_000_u64];
    let event = prop_oneof![
        5 => (0..100_000_u32).prop_map(Event::Write),
        4 => (0..CONTROLLERS, 1..12_usize).prop_map(|(one, writes)| Event::Follow(one, writes)),
        1 => (0..CONTROLLERS, 0..9_usize).prop_map(|(one, writes)| Event::ControllerRestarts(one, writes)),
        6 => (place(), 0..CONTROLLERS).prop_map(|(place, one)| Event::Connect(place, one)),
        9 => (place(), 0..9_usize).prop_map(|(place, order)| Event::Send(place, order)),
        9 => (place(), bytes()).prop_map(|(place, bytes)| Event::Arrive(place, bytes)),
        4 => (place(), bytes()).prop_map(|(place, bytes)| Event::CutOff(place, bytes)),
        4 => Just(Event::Copy),
        2 => torn.prop_map(Event::PodRestarts),
    ];
    vec(event, 1..80)
}

/// How often something has happened.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    published: u32,
    copies: u32,
    promoted: u32,
    cut_off: u32,
    unreadable: u32,
    protected: usize,
}

struct World {
    cluster: fixtures::World,
    controllers: Vec<Controller>,
    /// Number of controller processes that have started.
    started: usize,
    /// What pods get at each position, by its text.
    known: BTreeMap<String, Snapshot>,
    /// The last of these of the first controller.
    latest: String,
    pod: Pod,
    current: Option<Link>,
    candidate: Option<Link>,
    served: Option<Load>,
    judge: Judge,
    seen: Seen,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            cluster: fixtures::World::new(),
            controllers: Vec::new(),
            started: 0,
            known: BTreeMap::new(),
            latest: String::new(),
            pod: Pod::new(Key::new("default", "edge")),
            current: None,
            candidate: None,
            served: None,
            judge: Judge::new(),
            seen: Seen::default(),
        };
        for _ in 0..CONTROLLERS {
            let controller = world.start();
            world.controllers.push(controller);
            world.follow(world.controllers.len() - 1, 0);
        }
        world
    }

    fn start(&mut self) -> Controller {
        self.started += 1;
        let hub = Hub::new(format!("c{}", self.started), options());
        Controller {
            hub: Arc::new(hub),
            at: 0,
        }
    }

    /// A controller learns of some writes.
    fn follow(&mut self, one: usize, writes: usize) {
        let controller = &mut self.controllers[one];
        controller.at = self.cluster.last().min(controller.at + writes);
        controller.hub.follow(&self.cluster.states[controller.at]);
        let Next::FullState(objects, revision) = controller.hub.next(&gateway(), None) else {
            panic!("a Gateway has a state");
        };
        let position = format!("{}/{revision}", controller.hub.instance());
        if one == 0 {
            self.latest.clone_from(&position);
        }
        self.known.insert(position, *objects);
    }

    fn link(&mut self, place: ConnectionRole) -> &mut Option<Link> {
        match place {
            ConnectionRole::Current => &mut self.current,
            ConnectionRole::Candidate => &mut self.candidate,
        }
    }

    fn connect(&mut self, place: ConnectionRole, one: usize) {
        let position = self.pod.connect(place);
        let hub = self.controllers[one].hub.clone();
        let position = position.filter(|position| position.instance == hub.instance());
        let have = position.map(|position| position.revision);
        let connected = hub.connect(&gateway(), "pod", "uid").unwrap();
        let (leadership, led) = watch::channel(Leadership::default());
        let (lines, body) = mpsc::channel(1);
        let inputs = SessionInputs {
            revisions: connected.revisions,
            pods: connected.pods,
            leadership: led,
            session_secret: None,
        };
        let session = connected.session;
        let session =
            tokio::spawn(async move { session::run(&hub, &session, inputs, have, lines).await });
        *self.link(place) = Some(Link {
            session,
            body,
            sent: Vec::new(),
            _leadership: leadership,
        });
    }

    /// A controller sends all that it has to send. The clock stands still, so that a session without more to send is found
    /// at once.
    async fn send(&mut self, place: ConnectionRole, order: usize) {
        let Some(link) = self.link(place) else {
            return;
        };
        let mut sent = Vec::new();
        while let Ok(Some(bytes)) = timeout(Duration::from_millis(1), link.body.recv()).await {
            sent.extend_from_slice(&bytes);
        }
        link.sent.extend(reordered(&sent, order));
    }

    fn arrive(&mut self, place: ConnectionRole, bytes: usize) {
        let Some(link) = self.link(place) else {
            return;
        };
        let arrived: Vec<u8> = link.sent.drain(..bytes.min(link.sent.len())).collect();
        match self.pod.receive(place, &arrived) {
            Ok(received) => {
                if received.is_promoted {
                    self.seen.promoted += 1;
                    self.current = self.candidate.take();
                }
                received.loads.into_iter().for_each(|load| self.judge(load));
            }
            // Only a state that another connection has replaced meanwhile.
            Err(why) => {
                assert!(why.starts_with("the stream continues"), "{why}");
                *self.link(place) = None;
            }
        }
    }

    async fn take(&mut self, event: &Event) {
        match *event {
            Event::Write(choice) => {
                (0..3).for_each(|more| self.cluster.write(choice + more * 7919));
            }
            Event::Follow(one, writes) => self.follow(one, writes),
            Event::ControllerRestarts(one, writes) => {
                let at = self.controllers[one].at;
                self.controllers[one] = self.start();
                self.controllers[one].at = at;
                self.follow(one, writes);
            }
            Event::Connect(place, one) => self.connect(place, one),
            Event::Send(place, order) => self.send(place, order).await,
            Event::Arrive(place, bytes) => self.arrive(place, bytes),
            Event::CutOff(place, bytes) => {
                self.arrive(place, bytes);
                let rest = self.link(place).as_ref().map(|link| link.sent.len());
                self.seen.cut_off += u32::from(rest > Some(0));
                self.pod.disconnect(place);
                *self.link(place) = None;
            }
            Event::Copy => self.pod.write_copy(),
            Event::PodRestarts(torn) => {
                (self.current, self.candidate) = (None, None);
                self.served = None;
                if let Some(load) = self.pod.restart(torn) {
                    self.seen.copies += 1;
                    self.judge(load);
                }
            }
        }
    }

    /// Judges what the pod publishes: it is a state that a controller knew, and opens nothing that was not open in that.
    fn judge(&mut self, load: Load) {
        let position = load.position.as_ref().unwrap().to_string();
        let known = &self.known[&position];
        assert_eq!(names(&load.snapshot), names(known), "{position}");
        let permitted = self.judge.open(known);
        let open = self.judge.open(&load.snapshot);
        assert_eq!(open.difference(&permitted).next(), None, "{position}");
        self.seen.protected = self.judge.protected;
        self.seen.unreadable += u32::from(has_stand_in(&load.snapshot));
        self.seen.published += 1;
        self.served = Some(load);
    }

    /// When all has arrived, the last state is served.
    async fn finish(&mut self) {
        self.candidate = None;
        self.pod.disconnect(ConnectionRole::Candidate);
        self.follow(0, usize::MAX / 2);
        self.connect(ConnectionRole::Current, 0);
        self.send(ConnectionRole::Current, 0).await;
        self.arrive(ConnectionRole::Current, usize::MAX);
        let served = self.served.as_ref().expect("a state is served");
        assert_eq!(served.position.as_ref().unwrap().to_string(), self.latest);
    }
}

/// Returns the names of routes and policies.
fn names(objects: &Snapshot) -> BTreeSet<String> {
    let routes = objects.http_routes.iter().map(|it| &it.metadata.name);
    let policies = objects.access_policies.iter().map(|it| &it.metadata.name);
    let routes = routes.map(|name| format!("HTTPRoute {name}"));
    routes
        .chain(policies.map(|name| format!("AccessPolicy {name}")))
        .collect()
}

/// Reports whether a policy cannot be read and had no version before.
fn has_stand_in(objects: &Snapshot) -> bool {
    let mut policies = objects.access_policies.iter();
    policies.any(|policy| policy.unreadable.is_some())
}

#[test]
fn nothing_is_served_without_its_policies_in_any_order_of_events() {
    let seen = Cell::new(Seen::default());
    let result = runner(80).run(&events(), |events| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let now = runtime.block_on(async {
            let mut world = World::new();
            for event in events.iter().chain(&LAST) {
                world.take(event).await;
            }
            world.finish().await;
            world.seen
        });
        let before = seen.get();
        seen.set(Seen {
            published: before.published + now.published,
            copies: before.copies + now.copies,
            promoted: before.promoted + now.promoted,
            cut_off: before.cut_off + now.cut_off,
            unreadable: before.unreadable + now.unreadable,
            protected: before.protected + now.protected,
        });
        Ok(())
    });
    result.unwrap();
    let Seen {
        published,
        copies,
        promoted,
        cut_off,
        unreadable,
        protected,
    } = seen.get();
    let all = [published, copies, promoted, cut_off, unreadable];
    let happened = all.iter().all(|times| *times > 0) && protected > 0;
    assert!(happened, "{:?}", seen.get());
}
