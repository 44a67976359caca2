//! Active health checks: a thread that asks each endpoint of backends with such a policy, once in each interval, whatever the
//! number of workers, routes and uses of the backend. Tells the workers by the health that they share. Must not know how
//! an endpoint is asked.

mod probe;

use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rand::RngExt;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

use self::probe::Outcome;
use crate::ir::backend_policy::{ActiveCheck, Probe};
use crate::ir::{ObjectRef, UpstreamProtocol};
use crate::runtime::background::Background;
use crate::runtime::clock::Clock;
use crate::runtime::descriptors::Descriptors;
use crate::runtime::per_worker::WorkerId;
use crate::settings::Limits;
use crate::table::{Backend, Endpoint, Table, TlsIdentity, Transport};
use crate::upstream::Upstream;

/// Interval of the look for endpoints that DNS has added, and of the sweep over idle connections.
const TICK: Duration = Duration::from_secs(1);
/// Checks of the endpoints of one object at the same time. Slow endpoints of one delay no checks of another.
const CONCURRENT: usize = 64;
/// Checks of the endpoints of one namespace at the same time: a bound on what one takes of the process.
const CONCURRENT_OF_NAMESPACE: usize = 512;
/// Maximum delay of the first check of an endpoint, so that many do not begin at once.
const SPREAD: Duration = Duration::from_millis(500);

/// The thread of health checks.
pub(super) struct Prober {
    changed: mpsc::UnboundedSender<()>,
    thread: Background,
}

impl Prober {
    /// Starts the thread, which ends with [`Self::join`].
    pub(super) fn start(
        table: Arc<ArcSwap<Table>>,
        limits: Limits,
        descriptors: Arc<Descriptors>,
    ) -> Option<Self> {
        let (changed, changes) = mpsc::unbounded_channel();
        let checks = move || run(table, limits, descriptors, changes);
        let thread = Background::start("health", "the thread of health checks", checks)?;
        Some(Self { changed, thread })
    }

    /// Wakes the thread after a new table.
    pub(super) fn notify(&self) {
        // Fails only if the thread has panicked.
        let _ = self.changed.send(());
    }

    /// Ends the checks.
    pub(super) fn join(self) {
        drop(self.changed);
        self.thread.join();
    }
}

/// An endpoint of a port of an object. Two uses of the port, such as with HTTP and with gRPC, have the same endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProbeTarget {
    object: ObjectRef,
    port: u16,
    address: SocketAddr,
}

impl ProbeTarget {
    /// Calls `with` with each node of the endpoint in the present table.
    fn endpoints(&self, table: &Table, with: impl Fn(&Endpoint)) {
        for backend in table.backends_of(&self.object, self.port) {
            if backend.protocol == UpstreamProtocol::Udp {
                continue;
            }
            let endpoints = backend.endpoints();
            let found = endpoints.binary_search_by_key(&self.address, |it| it.address);
            if let Ok(at) = found {
                with(&endpoints[at]);
            }
        }
    }
}

/// The checks of one endpoint.
struct Running {
    check: Arc<ActiveCheck>,
    /// The settings of the connections.
    identity: TlsIdentity,
    task: AbortHandle,
}

/// The checks of all endpoints.
struct Checks {
    table: Arc<ArcSwap<Table>>,
    upstream: Rc<Upstream>,
    running: HashMap<ProbeTarget, Running>,
    /// Permits for checks at the same time, of objects and of namespaces.
    permits: HashMap<ObjectRef, Weak<Semaphore>>,
    /// What `running` was made from: the generation of the table, and the versions of endpoints.
    followed: (u64, u64),
}

async fn run(
    table: Arc<ArcSwap<Table>>,
    limits: Limits,
    descriptors: Arc<Descriptors>,
    mut changes: mpsc::UnboundedReceiver<()>,
) {
    let clock = Clock::new();
    // No worker has the backends of checks.
    let upstream = Upstream::new(WorkerId::ONLY, &clock, &limits, &descriptors);
    spawn_local(async move { clock.run().await });
    let mut checks = Checks {
        table,
        upstream: Rc::new(upstream),
        running: HashMap::new(),
        permits: HashMap::new(),
        followed: (0, 0),
    };
    loop {
        checks.update();
        let tick = async {
            match checks.running.is_empty() && checks.followed.1 == 0 {
                true => std::future::pending().await,
                false => sleep(TICK).await,
            }
        };
        tokio::select! {
            changed = changes.recv() => if changed.is_none() { return },
            () = tick => {}
        }
        checks.upstream.sweep();
    }
}

impl Checks {
    /// Starts and ends checks, if backends or their endpoints have changed.
    fn update(&mut self) {
        let table = self.table.load_full();
        let checked = || table.backends().filter(|it| it.active_check().is_some());
        let versions = checked().fold(0_u64, |sum, it| sum.wrapping_add(it.endpoints().version()));
        let now = (table.generation, versions);
        if std::mem::replace(&mut self.followed, now) == now {
            return;
        }
        let mut wanted: HashMap<ProbeTarget, &Arc<Backend>> = HashMap::new();
        for backend in checked().filter(|it| it.protocol != UpstreamProtocol::Udp) {
            for endpoint in backend.endpoints().iter() {
                let target = ProbeTarget {
                    object: backend.id.object.clone(),
                    port: backend.id.port,
                    address: endpoint.address,
                };
                let known = wanted.entry(target).or_insert(backend);
                if rank(backend) > rank(known) {
                    *known = backend;
                }
            }
        }
        self.running.retain(|target, running| {
            let backend = wanted.get(target);
            let is_same = backend.is_some_and(|backend| {
                backend.active_check() == Some(&running.check)
                    && backend.transport.identity() == running.identity
            });
            if !is_same {
                running.task.abort();
            }
            if backend.is_none() {
                // The endpoint may still get requests, without checks.
                target.endpoints(&table, |endpoint| endpoint.health.pass_checks());
            }
            is_same
        });
        self.permits.retain(|_, permits| permits.strong_count() > 0);
        for (target, backend) in wanted {
            if !self.running.contains_key(&target) {
                self.start(target, backend);
            }
        }
    }

    fn permits_of(&mut self, object: &ObjectRef, count: usize) -> Rc<Semaphore> {
        let known = self.permits.get(object).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let permits = Rc::new(Semaphore::new(count));
            self.permits.insert(object.clone(), Rc::downgrade(&permits));
            permits
        })
    }

    fn start(&mut self, target: ProbeTarget, backend: &Arc<Backend>) {
        let Some(check) = backend.active_check().cloned() else {
            return;
        };
        let identity = backend.transport.identity();
        let namespace = ObjectRef::core("Namespace", "", &target.object.namespace);
        let permits = [
            self.permits_of(&target.object, CONCURRENT),
            self.permits_of(&namespace, CONCURRENT_OF_NAMESPACE),
        ];
        let protocol = match (&check.probe, backend.protocol) {
            (Probe::Grpc { .. }, _) | (_, UpstreamProtocol::H2c) => UpstreamProtocol::H2c,
            _ => UpstreamProtocol::Http1,
        };
        let checked = Checked {
            backend: backend.for_checks(target.address, protocol),
            check: check.clone(),
            upstream: self.upstream.clone(),
            table: self.table.clone(),
            target: target.clone(),
            permits,
            has_failed: Cell::new(false),
            in_succession: Cell::new(0),
        };
        let task = spawn_local(checked.run()).abort_handle();
        let running = Running {
            check,
            identity,
            task,
        };
        self.running.insert(target, running);
    }
}

/// Orders the uses of a port: the greatest is the one that checks use. Clients of a backend in TLS do not speak to it in plain
/// text, whatever policies say for others.
fn rank(backend: &Backend) -> (bool, bool, bool) {
    let is_grpc = |check: &Arc<ActiveCheck>| matches!(check.probe, Probe::Grpc { .. });
    let wants_http2 = backend.active_check().is_some_and(is_grpc);
    let is_http2 = backend.protocol == UpstreamProtocol::H2c;
    let is_http = backend.protocol != UpstreamProtocol::Tcp;
    let is_protected = !matches!(backend.transport, Transport::Plain);
    (is_protected, is_http, wants_http2 == is_http2)
}

/// An endpoint that is checked.
struct Checked {
    backend: Backend,
    check: Arc<ActiveCheck>,
    upstream: Rc<Upstream>,
    table: Arc<ArcSwap<Table>>,
    target: ProbeTarget,
    /// Of the object and of its namespace.
    permits: [Rc<Semaphore>; 2],
    has_failed: Cell<bool>,
    /// Number of checks in succession whose outcome is not `has_failed`.
    in_succession: Cell<u32>,
}

impl Checked {
    async fn run(self) {
        let table = self.table.load_full();
        // Earlier checks may have failed, with other settings.
        self.target.endpoints(&table, |endpoint| {
            let has_failed = endpoint.health.has_failed_checks();
            self.has_failed.set(self.has_failed.get() || has_failed);
        });
        drop(table);
        let spread = SPREAD.min(self.check.interval / 2);
        sleep(spread.mul_f64(rand::rng().random_range(0.0..1.0))).await;
        loop {
            let outcome = self.ask().await;
            self.record(outcome);
            let jitter = f64::from(self.check.jitter) / 100.0;
            let factor = rand::rng().random_range(1.0 - jitter..=1.0 + jitter);
            sleep(self.check.interval.mul_f64(factor)).await;
        }
    }

    async fn ask(&self) -> Outcome {
        let [of_object, of_namespace] = &self.permits;
        // In this order: what waits for its own object holds no permit of the namespace.
        let _permits = (of_object.acquire().await, of_namespace.acquire().await);
        let asked = probe::ask(&self.upstream, &self.backend, &self.check.probe);
        let outcome = timeout(self.check.timeout, asked).await;
        outcome.unwrap_or(Outcome::Failed)
    }

    fn record(&self, outcome: Outcome) {
        let has_failed = match outcome {
            Outcome::Healthy => false,
            Outcome::Failed => true,
            Outcome::NotAsked => return,
        };
        let threshold = match has_failed {
            true => self.check.unhealthy,
            false => self.check.healthy,
        };
        if has_failed == self.has_failed.get() {
            self.in_succession.set(0);
        } else {
            let count = self.in_succession.get() + 1;
            self.in_succession.set(count);
            if count >= threshold {
                self.in_succession.set(0);
                self.has_failed.set(has_failed);
                let (id, address) = (&self.backend.id, self.target.address);
                match has_failed {
                    true => {
                        tracing::debug!(backend = %id, endpoint = %address, "health checks fail")
                    }
                    false => {
                        tracing::debug!(backend = %id, endpoint = %address, "health checks succeed")
                    }
                }
            }
        }
        // Each time, since there may be new nodes of the endpoint.
        let has_failed = self.has_failed.get();
        let table = self.table.load();
        self.target.endpoints(&table, |endpoint| match has_failed {
            true => endpoint.health.fail_checks(),
            false => endpoint.health.pass_checks(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir;
    use crate::ir::TlsUse;

    #[test]
    fn use_in_plain_text_by_a_policy_ranks_below_one_in_tls() {
        let used = |policy: &str, transport: Transport| {
            let mut backend = ir::Backend::plain(Vec::<SocketAddr>::new().into());
            backend.id.tls = Some(TlsUse {
                policy: ObjectRef::core("Policy", "ns", policy),
                client: None,
            });
            Backend::new(&backend, transport, Arc::default())
        };
        let plain = used("none", Transport::Plain);
        // Stands for settings of TLS: in plain text it sends nothing.
        let protected = used("tls", Transport::Unusable);
        assert!(rank(&protected) > rank(&plain));
    }
}
