//! Pods of a Gateway that share a limit, with simulated time and messages.

use super::*;

const MILLISECOND: u64 = 1_000_000;
/// Interval of messages between two pods, and time of one, in milliseconds.
const TICK: u64 = 10;
const DELAY: u64 = 2;
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A pod of the simulation.
pub(super) struct SimulatedPod {
    pub(super) name: String,
    pub(super) limiters: Limiters,
    pub(super) limits: Arc<CountedLimits>,
    /// By the name of the owner: the end of the message in flight, and its wishes.
    asked: FxHashMap<String, (u64, Vec<PendingAsk>)>,
    pub(super) is_running: bool,
}

impl SimulatedPod {
    pub(super) fn new(name: &str, limit: &Limit) -> Self {
        let limiters = Limiters::default();
        limiters.group.open();
        limiters.group.set_secret([1, 2]);
        Self {
            name: name.to_owned(),
            limits: policies_in(&limiters, std::slice::from_ref(limit)),
            limiters,
            asked: FxHashMap::default(),
            is_running: true,
        }
    }

    pub(super) fn index(&self) -> LimitIndex {
        LimitIndex::new(&self.limiters.all(), &self.limiters.group.view())
    }
}

/// Pods of a Gateway with one limit.
pub(super) struct Simulation {
    limit: Limit,
    pub(super) pods: Vec<SimulatedPod>,
    /// Names of pods whose messages do not arrive.
    pub(super) partitioned: Vec<String>,
    now: u64,
    random: usize,
}

impl Simulation {
    pub(super) fn new(pods: usize, limit: Limit) -> Self {
        let names = ["a", "b", "c", "d"];
        let pods = names[..pods].iter();
        let mut simulation = Self {
            pods: pods.map(|name| SimulatedPod::new(name, &limit)).collect(),
            limit,
            partitioned: Vec::new(),
            now: 5_000,
            random: 0,
        };
        let all: Vec<_> = simulation.pods.iter().map(|it| it.name.clone()).collect();
        simulation.list(&all);
        simulation
    }

    /// Tells all pods which are ready.
    pub(super) fn list(&mut self, ready: &[String]) {
        for pod in &self.pods {
            let ready = ready.iter().map(|name| (&**name, ADDRESS));
            pod.limiters.group.set_pods(&pod.name, ready);
        }
    }

    pub(super) fn nanos(&self) -> u64 {
        self.now * MILLISECOND
    }

    /// Sends a request of a key to a pod. Returns whether it is admitted.
    pub(super) fn request(&self, pod: usize, key: u16) -> bool {
        let [high, low] = key.to_be_bytes();
        let client = from([10, 0, high, low]);
        admit_from(&self.pods[pod].limits, client, self.nanos()).is_ok()
    }

    /// Lets a millisecond pass, with the messages that are due.
    pub(super) fn step(&mut self) {
        self.now += 1;
        self.random += 7;
        for at in 0..self.pods.len() {
            if !self.pods[at].is_running {
                continue;
            }
            self.deliver(at);
            if self.now.is_multiple_of(TICK) {
                self.ask(at);
            }
        }
    }

    pub(super) fn is_connected(&self, one: &str, other: &str) -> bool {
        let is_cut = |name: &str| self.partitioned.iter().any(|it| it == name);
        let runs = |name: &str| self.pods.iter().any(|it| it.name == name && it.is_running);
        !is_cut(one) && !is_cut(other) && runs(one) && runs(other)
    }

    pub(super) fn ask(&mut self, at: usize) {
        let now = self.nanos();
        let pod = &self.pods[at];
        let group = &pod.limiters.group;
        let view = group.view();
        view.count_absent(now);
        let others: FxHashMap<usize, String> = view
            .others()
            .map(|(index, other)| (index, other.name.to_string()))
            .collect();
        let is_free =
            |name: &String| !pod.asked.contains_key(name) && self.is_connected(&pod.name, name);
        let mut wishes: FxHashMap<String, Vec<PendingAsk>> = others
            .values()
            .filter(|name| is_free(name))
            .map(|name| (name.clone(), Vec::new()))
            .collect();
        pod.index().collect(&view, now, self.random, |owner, wish| {
            let batch = wishes.get_mut(&others[&owner]);
            let batch = batch.filter(|batch| batch.len() < 1_024);
            batch.map(|batch| batch.push(wish)).is_some()
        });
        let end = self.now + DELAY;
        let wishes = wishes
            .into_iter()
            .map(|(name, wishes)| (name, (end, wishes)));
        self.pods[at].asked.extend(wishes);
    }

    pub(super) fn deliver(&mut self, at: usize) {
        let now = self.nanos();
        let due: Vec<_> = self.pods[at]
            .asked
            .iter()
            .filter(|(_, (end, _))| *end <= self.now)
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            let (_, wishes) = self.pods[at].asked.remove(&name).unwrap_or_default();
            let own = self.pods[at].name.clone();
            if !self.is_connected(&own, &name) {
                continue;
            }
            let Some(owner) = self.pods.iter().find(|it| it.name == name) else {
                continue;
            };
            let view = owner.limiters.group.view();
            view.heard_of(&own, now);
            let index = owner.index();
            for wish in &wishes {
                let grant = index.grant(&view, wish.ask, now);
                wish.apply(grant, now).unwrap();
            }
            let view = self.pods[at].limiters.group.view();
            let mut others = view.others();
            if let Some((_, pod)) = others.find(|(_, pod)| *pod.name == *name) {
                pod.has_answered(now);
            }
        }
    }
}

/// What was admitted of a key, and the most that was above `rate` in any part of the time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Admitted {
    pub(super) total: u64,
    above: f64,
    pub(super) most: f64,
}

impl Admitted {
    /// Adds what a millisecond has admitted.
    pub(super) fn add(&mut self, count: u64, per_millisecond: f64) {
        self.total += count;
        self.above = (self.above + count as f64 - per_millisecond).max(0.0);
        self.most = self.most.max(self.above);
    }
}

pub(super) fn shared(requests: u64, burst: u64) -> Limit {
    Limit {
        key: vec![KeyPart::ClientIp { v4: 32, v6: 64 }],
        scope: Scope::Gateway,
        ..limit(requests, burst)
    }
}

/// Sends `per_millisecond` requests to each pod while `seconds` pass. Returns what is admitted.
pub(super) fn run(simulation: &mut Simulation, seconds: u64, key: u16, demand: &[f64]) -> Admitted {
    let rate = simulation.limit.rate.unwrap();
    let per_millisecond = rate.requests as f64 / rate.per.as_millis() as f64;
    let (mut admitted, mut due) = (Admitted::default(), vec![0.0; demand.len()]);
    for _ in 0..seconds * 1_000 {
        let mut count = 0;
        for (pod, demand) in demand.iter().enumerate() {
            due[pod] += demand;
            while due[pod] >= 1.0 {
                due[pod] -= 1.0;
                count += u64::from(simulation.request(pod, key));
            }
        }
        admitted.add(count, per_millisecond);
        simulation.step();
    }
    admitted
}

/// Lets pods hear of each other.
pub(super) fn warm(simulation: &mut Simulation) {
    (0..100).for_each(|_| simulation.step());
}
