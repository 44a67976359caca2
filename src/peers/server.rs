//! The port that other pods of the Gateway ask at. Bounds what clients take before they have shown that they are pods of the
//! Gateway, and what each pod may ask.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::{read, write};
use super::identity::LOGOUTS;
use super::logouts::hear;
use super::message::{read_request, response};
use crate::runtime::monotonic;
use crate::table::{Group, LimitIndex, Table};

/// Maximum time of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Handshakes at the same time from addresses of known pods, and from others. A new one replaces the oldest.
const HANDSHAKES: usize = 64;
const HANDSHAKES_OF_OTHERS: usize = 8;
/// Connections in addition to two for each pod.
const SPARE_CONNECTIONS: usize = 16;
/// Maximum time between messages. Pods send one every 400 ms.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time until a pod has read a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum interval of messages of a connection: 100 in a second, and some for timers that are early.
const INTERVAL: Duration = Duration::from_millis(9);
/// Delay after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What connections of other pods need.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) group: Arc<Group>,
    pub(super) index: Rc<RefCell<LimitIndex>>,
    pub(super) table: Arc<ArcSwap<Table>>,
}

/// Serves other pods while polled.
pub(super) async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, served: Served) {
    let acceptor = TlsAcceptor::from(tls);
    let mut of_pods = Handshakes::new(HANDSHAKES);
    let mut of_others = Handshakes::new(HANDSHAKES_OF_OTHERS);
    let mut connections = JoinSet::new();
    let (done, mut accepted) = mpsc::unbounded_channel();
    loop {
        tokio::select! {
            socket = listener.accept() => match socket {
                Ok((socket, address)) => {
                    let lane = match is_pod(&served.group, address) {
                        true => &mut of_pods,
                        false => &mut of_others,
                    };
                    lane.start(socket, acceptor.clone(), done.clone());
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(stream) = accepted.recv() => {
                let max = 3 * served.group.view().pods() + SPARE_CONNECTIONS;
                if connections.len() < max {
                    connections.spawn_local(connection(stream, served.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn is_pod(group: &Group, address: SocketAddr) -> bool {
    let address: IpAddr = address.ip().to_canonical();
    group.view().others().any(|(_, pod)| pod.address == address)
}

/// Handshakes in progress, the oldest first. They end when this is dropped.
struct Handshakes {
    max: usize,
    tasks: VecDeque<AbortHandle>,
}

impl Handshakes {
    fn new(max: usize) -> Self {
        Self {
            max,
            tasks: VecDeque::new(),
        }
    }

    fn start(
        &mut self,
        socket: TcpStream,
        acceptor: TlsAcceptor,
        done: mpsc::UnboundedSender<TlsStream<TcpStream>>,
    ) {
        self.tasks.retain(|task| !task.is_finished());
        if self.tasks.len() >= self.max
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        let task = spawn_local(async move {
            // Responses are small, and each is waited for.
            let _ = socket.set_nodelay(true);
            if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket)).await {
                // The receiver is dropped when this pod no longer serves.
                let _ = done.send(stream);
            }
        });
        self.tasks.push_back(task.abort_handle());
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Serves one pod until its connection ends or it breaks the protocol.
async fn connection(stream: TlsStream<TcpStream>, served: Served) {
    if stream.get_ref().1.alpn_protocol() == Some(LOGOUTS) {
        hear(stream, &served.table, &served.group.counts.faults).await;
    } else {
        grant(stream, &served).await;
    }
}

async fn grant(mut stream: TlsStream<TcpStream>, served: &Served) {
    loop {
        let message = match read(&mut stream, IDLE_TIMEOUT).await {
            Ok(message) => message,
            Err(error) => {
                let is_fault = error.kind() == io::ErrorKind::InvalidData;
                let faults = &served.group.counts.faults;
                faults.fetch_add(u64::from(is_fault), Relaxed);
                return;
            }
        };
        let next = Instant::now() + INTERVAL;
        let Some(response) = respond(&message, served) else {
            served.group.counts.faults.fetch_add(1, Relaxed);
            return;
        };
        if write(&mut stream, &response, WRITE_TIMEOUT).await.is_err() {
            return;
        }
        sleep_until(next).await;
    }
}

fn respond(message: &[u8], served: &Served) -> Option<Vec<u8>> {
    let (name, asks) = read_request(message).ok()?;
    let now = monotonic::nanos();
    let view = served.group.view();
    view.heard_of(name, now);
    let index = served.index.borrow();
    Some(response(asks.map(|ask| index.grant(&view, ask, now))))
}
