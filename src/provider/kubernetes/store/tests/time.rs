//! Writes arrive in any order, a watch for each kind, and fetches are late: nothing opens before the policies for it that are
//! older, and in the end all is published.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::order::{answer, protecting};
use super::*;
use crate::provider::fixtures::{Judge, Published, World, Write, runner};

/// The kinds that are written.
const WRITTEN: [&str; 14] = [
    "ListenerSet",
    "HTTPRoute",
    "BackendTLSPolicy",
    "BackendTLSOverride",
    "AccessPolicy",
    "RateLimitPolicy",
    "RoutePolicy",
    "Service",
    "EndpointSlice",
    "Secret",
    "ConfigMap",
    "ReleaseBackend",
    "InferencePool",
    POD,
];

/// Pods are written of one namespace, and followed while something of it needs them.
const POD: &str = "Pod";

/// Longer than a case takes, also on a machine that is busy: only the end of a case lets this time pass.
const LONG: Duration = Duration::from_secs(60 * 60);

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u32),
    /// The next write of a kind arrives.
    Arrive(usize),
    /// The newest version of a kind of policies is known at the moment that something waits for.
    Answer(usize),
    /// The same of all kinds.
    Answers,
    /// A fetch ends that something waits for.
    Fetched,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..100_000_u32).prop_map(Step::Write),
        14 => (0..WRITTEN.len()).prop_map(Step::Arrive),
        2 => (0..protecting().len()).prop_map(Step::Answer),
        3 => Just(Step::Answers),
        3 => Just(Step::Fetched),
    ];
    vec(step, 1..250)
}

/// A cluster, and a store that follows it.
struct Followed {
    world: World,
    store: Store,
    /// How many of the writes have arrived, or are of other kinds.
    arrived: BTreeMap<&'static str, usize>,
    /// The scope of Pods while there is one, and whether it is listed.
    pods: Option<(usize, bool)>,
    moment: Moment,
    /// What is fetched.
    wanted: Vec<ObjectRef>,
    judge: Judge,
    published: Published,
}

impl Followed {
    fn new() -> Self {
        let (world, scopes) = (World::new(), scopes());
        let moments = Moments::of(&scopes);
        let timing = Timing {
            fetch_wait: LONG,
            removal_wait: LONG,
            ..Timing::default()
        };
        let mut store = Store::new(scopes.clone(), &kinds(), Referenced::default(), None)
            .timed(timing)
            .after(moments);
        for (number, scope) in scopes.iter().enumerate() {
            store.apply(number, Change::Listing);
            let first = world.first.iter();
            for write in first.filter(|it| it.kind.kind == scope.kind.kind) {
                store.apply(number, Change::Listed(version(write, None).unwrap()));
            }
            store.apply(number, Change::Complete);
        }
        answer(&mut store);
        let first = store.load().expect("all is listed").snapshot;
        store.published();
        Self {
            world,
            store,
            arrived: BTreeMap::new(),
            pods: None,
            moment: 1,
            wanted: Vec::new(),
            judge: Judge::new(),
            published: Published {
                objects: (*first).clone(),
                ..Published::default()
            },
        }
    }

    /// Takes a step. Returns what that opens although a policy for it is older.
    fn take(&mut self, step: Step) -> Vec<String> {
        match step {
            Step::Write(choice) => self.world.write(choice),
            Step::Arrive(kind) => {
                self.arrive(WRITTEN[kind]);
            }
            Step::Answer(place) => self.answer(&protecting()[place..=place]),
            Step::Answers => self.answer(&protecting()),
            Step::Fetched => {
                self.fetched();
            }
        }
        self.release(Instant::now())
    }

    fn release(&mut self, now: Instant) -> Vec<String> {
        for change in self.store.follow_pods(true) {
            self.pods = match change {
                ScopeChange::Added(number, _) => Some((number, false)),
                ScopeChange::Removed(_) => None,
            };
        }
        self.store.release(now);
        let objects = (*self.store.load().unwrap().snapshot).clone();
        if objects == self.published.objects {
            return Vec::new();
        }
        let open = self.judge.open(&objects);
        let published = Published { objects, open };
        let holes = self.world.holes(&self.published, &published);
        self.published = published;
        holes
    }

    /// Lets the next write of a kind arrive, or the list of Pods. Returns whether there is one.
    fn arrive(&mut self, kind: &'static str) -> bool {
        let scope = match (kind, self.pods) {
            (POD, None) => return false,
            (POD, Some((number, false))) => {
                self.list_pods(number);
                return true;
            }
            (POD, Some((number, true))) => number,
            _ => index(kind),
        };
        let arrived = self.arrived.entry(kind).or_default();
        let mut writes = self.world.writes.iter().enumerate().skip(*arrived);
        let Some((place, write)) = writes.find(|(_, it)| it.kind.kind == kind) else {
            return false;
        };
        *arrived = place + 1;
        let number = Some(place as u64 + 1);
        let change = match version(write, number) {
            Some(version) => Change::Applied(version),
            None => Change::Deleted(Key::new("default", &write.name), number),
        };
        self.store.apply(scope, change);
        true
    }

    /// Lists the Pods as they are now: earlier writes do not arrive.
    fn list_pods(&mut self, number: usize) {
        self.pods = Some((number, true));
        self.arrived.insert(POD, self.world.last());
        let mut last = BTreeMap::new();
        for (place, write) in (1_u64..).zip(&self.world.writes) {
            if write.kind.kind == POD {
                last.insert(&write.name, (place, write));
            }
        }
        self.store.apply(number, Change::Listing);
        for (place, write) in last.into_values() {
            if let Some(pod) = version(write, Some(place)) {
                self.store.apply(number, Change::Listed(pod));
            }
        }
        self.store.apply(number, Change::Complete);
    }

    /// Says what the newest versions of the objects of these scopes are.
    fn answer(&mut self, asked: &[usize]) {
        self.moment = self.store.take_moment().unwrap_or(self.moment);
        let scopes = scopes();
        for scope in asked {
            let kind = scopes[*scope].kind.kind;
            let mut newest = BTreeMap::new();
            for (place, write) in (1..).zip(&self.world.writes) {
                if write.kind.kind == kind {
                    newest.insert(&write.name, write.value.as_ref().map(|_| place));
                }
            }
            let existing = newest.iter().filter(|(_, version)| version.is_some());
            let keys = existing.map(|(name, _)| Key::new("default", name));
            let existed = Message::Existed(*scope, self.world.last() as u64, keys.collect());
            self.store.apply_message(existed);
            let newest: Option<u64> = newest.into_values().flatten().max();
            let answer = Message::Newest(*scope, self.moment, newest);
            self.store.apply_message(answer);
        }
    }

    /// Fetches something that is wanted. Returns whether there is something.
    fn fetched(&mut self) -> bool {
        let wanted = self.store.take_wanted().into_iter();
        let wanted = wanted.filter(|(_, of)| !of.is_empty());
        self.wanted.extend(wanted.map(|(name, _)| name));
        let Some(name) = self.wanted.pop() else {
            return false;
        };
        let mut writes = self.world.writes.iter().enumerate().rev();
        let last = writes.find(|(_, write)| write.object_ref() == name);
        let found = last.and_then(|(place, write)| version(write, Some(place as u64 + 1)));
        self.store.apply_message(Message::Fetched(name, found));
        true
    }

    /// Lets everything arrive. Returns what that opens although a policy for it is older.
    fn finish(&mut self) -> Vec<String> {
        let mut holes = Vec::new();
        for kind in WRITTEN {
            while self.arrive(kind) {
                holes.extend(self.release(Instant::now()));
            }
        }
        // What was written before a policy was deleted has arrived after this time.
        let later = LONG * 9;
        for _ in 0..8 {
            while self.fetched() {}
            self.answer(&protecting());
            holes.extend(self.release(Instant::now() + later));
        }
        holes
    }

    /// Returns the objects whose last version is not published. Those that are held by reference may be none, and so may Pods
    /// that nothing needs.
    fn missing(&self) -> Vec<String> {
        let published = self.store.load().unwrap().snapshot;
        let differing = published.changes_since(self.world.state()).into_iter();
        let differing = differing.filter(|it| {
            let kind = Kind::of(&it.object).unwrap();
            let is_needed = kind.kind != POD || self.pods.is_some();
            is_needed && !is_held_by_reference(kind)
        });
        differing.map(|it| it.object.to_string()).collect()
    }
}

/// Returns a version of an object as it arrives; `None` if it is its end.
pub(super) fn version(write: &Write, number: Option<u64>) -> Option<ParsedObject> {
    let object = write.kind.decode(write.value.as_ref()?).unwrap();
    Some(ParsedObject {
        generation: object.meta().generation,
        key: Key::new(&object.meta().namespace, &object.meta().name),
        content: Content::Parsed(Ok(object)),
        version: number,
        observed: None,
    })
}

#[test]
fn nothing_opens_before_policies_that_are_older_in_any_order_of_arrival() {
    let (protected, open) = (Cell::new(0), Cell::new(0));
    let result = runner(30).run(&steps(), |steps| {
        let mut followed = Followed::new();
        let none = Vec::<String>::new();
        for step in steps {
            prop_assert_eq!(&followed.take(step), &none, "{:?}", step);
        }
        prop_assert_eq!(&followed.finish(), &none);
        prop_assert_eq!(&followed.missing(), &none);
        protected.set(protected.get() + followed.judge.protected);
        open.set(open.get() + followed.published.open.len());
        Ok(())
    });
    result.unwrap();
    assert!(protected.get() > 0 && open.get() > 0);
}
