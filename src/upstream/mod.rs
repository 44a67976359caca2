//! The upstream side of the data plane: gets a response from a selected backend. Owns upstream
//! connections, the health of endpoints and the retry rules.

mod attempt;
mod attempts;
mod balance;
mod byte_stream;
mod chosen;
mod connect;
mod connector;
mod ejections;
mod exchange;
mod exchange_error;
mod health;
pub mod http1;
mod http2;
mod in_flight;
mod io;
mod outgoing;
mod peer_watch;
mod pool;
mod proxy_header;
mod release;
mod response;
mod response_head;
mod restrictions;
mod room;
mod send_error;
mod slow_start;
#[cfg(target_os = "linux")]
mod sock_diag;
mod tcp;
mod totals;
mod udp;
mod unanswered;
mod upgraded;
mod websocket;

use std::rc::Rc;
use std::sync::Arc;

pub use self::attempt::FailedAttempt;
pub use self::attempts::{Attempts, Resend};
pub(crate) use self::byte_stream::byte_stream_by_variant;
pub use self::chosen::Chosen;
pub use self::exchange_error::ExchangeError;
pub use self::io::Io;
pub use self::outgoing::{BoxError, HeadLimits, Informational, Outgoing, Replay, Semantics};
use self::pool::Pool;
pub use self::response::{Response, ResponseBody};
pub use self::send_error::SendError;
pub use self::tcp::{Security, TcpClient, TcpConnection, Unconnected};
pub use self::udp::UdpFlow;
pub use self::unanswered::Unanswered;
pub use self::upgraded::{Upgraded, UpgradedIo};
pub(crate) use self::websocket::{WEBSOCKET, accept_of};
use crate::runtime::clock::Clock;
use crate::runtime::descriptors::Descriptors;
use crate::runtime::per_worker::WorkerId;
use crate::settings::Limits;

/// The upstream connections of one worker.
pub struct Upstream {
    pool: Rc<Pool>,
}

impl Upstream {
    /// Creates an empty set of connections for a worker.
    pub fn new(
        worker: WorkerId,
        clock: &Rc<Clock>,
        limits: &Limits,
        descriptors: &Arc<Descriptors>,
    ) -> Self {
        Self {
            pool: Rc::new(Pool::new(
                worker,
                clock.clone(),
                limits,
                descriptors.clone(),
            )),
        }
    }

    /// Closes connections that have been idle for too long. Called periodically.
    pub fn sweep(&self) {
        self.pool.sweep();
    }

    /// Frees unused read buffers. Called when the worker is idle.
    pub fn free_unused_buffers(&self) {
        self.pool.free_unused_buffers();
    }
}
