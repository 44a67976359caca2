//! The other pods of the Gateway, with which limits and ends of sessions are shared: a thread that asks them for tokens of keys that
//! they own, grants them tokens of its own keys, and sends them the logout tokens that it gets. Requests never wait for it. Must not
//! know requests and how they are limited.

mod connection;
mod identity;
mod link;
mod logouts;
mod message;
mod server;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::identity::{Identity, hash_secret};
use self::link::Link;
use self::logouts::Couriers;
use self::server::Served;
use crate::runtime::background::Background;
use crate::runtime::monotonic;
use crate::table::{Group, LimitIndex, Table, View};

/// Interval of messages to a pod while keys lack tokens: 100 in a second.
const TICK: Duration = Duration::from_millis(10);
/// Interval of the look for such keys while there are none.
const IDLE_TICK: Duration = Duration::from_millis(40);
/// How long the shorter interval lasts after a key that lacked tokens.
const ACTIVE: Duration = Duration::from_secs(1);
/// Delay before the port is bound again after a failure.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// The other pods of the Gateway. The thread starts when a limit or an end of sessions is shared, and ends with [`Self::join`].
pub struct Peers {
    address: SocketAddr,
    table: Arc<ArcSwap<Table>>,
    group: Arc<Group>,
    wanted: watch::Sender<Wanted>,
    thread: Mutex<Option<Background>>,
}

/// What the thread is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// The secret of the Gateway, once it is known.
    secret: Option<Arc<str>>,
    /// Whether a limit is shared, or what OpenID providers end.
    is_shared: bool,
    /// Whether the process ends.
    has_ended: bool,
}

impl Peers {
    /// Prepares for other pods, which are asked at the same port as `address` has.
    pub fn new(address: SocketAddr, table: Arc<ArcSwap<Table>>) -> Self {
        let group = table.load().limit_group().clone();
        group.open();
        Self {
            address,
            table,
            group,
            wanted: watch::Sender::default(),
            thread: Mutex::default(),
        }
    }

    /// Sets the secret that the controller gives to all pods of the Gateway.
    pub fn set_secret(&self, secret: &str) {
        self.wanted.send_if_modified(|wanted| {
            let is_new = wanted.secret.as_deref() != Some(secret);
            if is_new {
                self.group.set_secret(hash_secret(secret));
                wanted.secret = Some(secret.into());
            }
            is_new
        });
    }

    /// Sets the name of this pod, and the ready pods of the Gateway.
    pub fn set_pods<'a>(&self, own: &str, ready: impl IntoIterator<Item = (&'a str, IpAddr)>) {
        self.group.set_pods(own, ready);
    }

    /// Follows a new table: starts the thread once a limit is shared, or what OpenID providers end.
    pub fn follow(&self, table: &Table) {
        let sign_ins = table.sign_ins();
        let mut sign_ins = sign_ins.values();
        let is_shared = table.limiters().iter().any(|limiter| limiter.is_shared())
            || sign_ins.any(|oidc| oidc.ir.back_channel_logout_path.is_some());
        self.wanted.send_if_modified(|wanted| {
            let is_new = wanted.is_shared != is_shared;
            wanted.is_shared = is_shared;
            is_new
        });
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if is_shared && thread.is_none() {
            *thread = self.start();
        }
    }

    fn start(&self) -> Option<Background> {
        let asked = Asked {
            address: self.address,
            table: self.table.clone(),
            group: self.group.clone(),
        };
        let wanted = self.wanted.subscribe();
        let what = "the thread of other pods";
        Background::start("limits", what, move || run(asked, wanted))
    }

    /// Ends the thread.
    pub fn join(&self) {
        self.wanted.send_modify(|wanted| wanted.has_ended = true);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            thread.join();
        }
    }
}

/// What the thread shares with the process.
struct Asked {
    address: SocketAddr,
    table: Arc<ArcSwap<Table>>,
    group: Arc<Group>,
}

/// Talks to other pods as long as there is something to share and the secret stays the same, and begins again when it changes.
async fn run(asked: Asked, mut wanted: watch::Receiver<Wanted>) {
    loop {
        let now = wanted.borrow_and_update().clone();
        if now.has_ended {
            return;
        }
        let identity = now.secret.filter(|_| now.is_shared);
        let identity = identity.map(|secret| Identity::from_secret(&secret));
        let exchange = async {
            match identity {
                Some(Ok(identity)) => exchange(&asked, &identity).await,
                Some(Err(error)) => {
                    tracing::error!("limits and ends of sessions are not shared: {error}");
                    std::future::pending().await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = exchange => {}
            changed = wanted.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

async fn exchange(asked: &Asked, identity: &Identity) {
    let index = Rc::new(RefCell::new(LimitIndex::default()));
    let served = Served {
        group: asked.group.clone(),
        index: index.clone(),
        table: asked.table.clone(),
    };
    let serve = async {
        let listener = bind(asked.address).await;
        server::serve(listener, identity.server.clone(), served).await;
    };
    tokio::join!(serve, ask(asked, identity, &index));
}

async fn bind(address: SocketAddr) -> TcpListener {
    let mut logged = false;
    // Of a node without IPv6.
    let of_ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
    let others = address.ip() == Ipv6Addr::UNSPECIFIED;
    let addresses = [Some(address), others.then_some(of_ipv4)];
    let addresses: Vec<_> = addresses.into_iter().flatten().collect();
    loop {
        match TcpListener::bind(&*addresses).await {
            Ok(listener) => return listener,
            Err(error) if !logged => {
                logged = true;
                tracing::error!(
                    "cannot bind {address} for other pods of the Gateway: {error}; other pods count this one as away; retrying"
                );
            }
            Err(_) => {}
        }
        sleep(BIND_RETRY).await;
    }
}

/// Asks other pods while polled.
async fn ask(asked: &Asked, identity: &Identity, index: &RefCell<LimitIndex>) {
    let group = &asked.group;
    let mut links: Vec<Link> = Vec::new();
    let logouts = asked.table.load().logouts().clone();
    let mut couriers = Couriers::new(asked.address.port(), &identity.logouts, &logouts);
    let mut places = Vec::new();
    let mut connected: Option<(u64, Arc<View>)> = None;
    let mut active = Instant::now();
    loop {
        let view = group.view();
        let generation = asked.table.load().generation;
        let is_connected = connected
            .as_ref()
            .is_some_and(|(of, known)| *of == generation && Arc::ptr_eq(known, &view));
        if !is_connected {
            let limiters = asked.table.load().limiters();
            index.replace(LimitIndex::new(&limiters, &view));
            connect_to_pods(&mut links, &view, asked, identity);
            places = by_index(&links, &view);
            couriers.follow(&view, Instant::now());
            connected = Some((generation, view.clone()));
        }
        let now = monotonic::nanos();
        let away = view.count_absent(now);
        group.counts.away.store(away as u64, Relaxed);
        let lacks =
            index
                .borrow()
                .collect(&view, now, rand::random::<u32>() as usize, |owner, wish| {
                    let link = places.get(owner).copied().flatten();
                    link.is_some_and(|link| links[link].add(wish))
                });
        links.iter().for_each(Link::send);
        couriers.notice(Instant::now());
        if lacks {
            active = Instant::now() + ACTIVE;
        }
        drop(view);
        sleep(if Instant::now() < active {
            TICK
        } else {
            IDLE_TICK
        })
        .await;
    }
}

/// Connects to pods that are new, and no longer to those that have left.
fn connect_to_pods(links: &mut Vec<Link>, view: &View, asked: &Asked, identity: &Identity) {
    let others: Vec<_> = view.others().map(|(_, pod)| pod).collect();
    links.retain(|link| others.iter().any(|pod| Arc::ptr_eq(pod, &link.pod)));
    for pod in others {
        if !links.iter().any(|link| Arc::ptr_eq(pod, &link.pod)) {
            links.push(Link::new(
                pod.clone(),
                asked.address.port(),
                identity.client.clone(),
                asked.group.clone(),
            ));
        }
    }
}

/// Returns the places of links by the index of their pods.
fn by_index(links: &[Link], view: &View) -> Vec<Option<usize>> {
    let mut places = vec![None; view.pods()];
    for (index, pod) in view.others() {
        places[index] = links.iter().position(|link| Arc::ptr_eq(pod, &link.pod));
    }
    places
}

#[cfg(test)]
mod tests;
