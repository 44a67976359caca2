//! What the streams of an HTTP/3 connection share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use quinn::Connection;

use super::http2_shared::Cancellations;
use super::http3_send_window::SendWindow;
use super::request_heads::RequestHeads;
use crate::http2::{Bodies, Windows};
use crate::http3::{self, Code, StreamTypes};
use crate::proxy::activity::Activity;
use crate::proxy::body::inbound::InboundLimits;
use crate::proxy::client::{Client, USUAL_HEAD};
use crate::proxy::response::outbound::wire_code;

/// Bytes of a line of fields beyond name and value (RFC 9114, 4.2.2).
const LINE: usize = 32;
/// Flow control is that of QUIC.
const NO_WINDOWS: Windows = Windows {
    initial: 0,
    full: 0,
    max_unread: usize::MAX,
};

/// Connection state shared by its streams.
pub(super) struct Shared {
    pub(super) client: Rc<Client>,
    pub(super) activity: Rc<Activity>,
    pub(super) quic: Connection,
    pub(super) cancelled: Cancellations,
    pub(super) heads: RequestHeads,
    /// Counts what waits of streams, as for HTTP/2.
    pub(super) bodies: Rc<Bodies>,
    /// Types of unidirectional streams that the client has opened.
    pub(super) types: RefCell<StreamTypes>,
    /// Number of streams that are served.
    streams: Cell<usize>,
    /// Bytes of heads that are not complete.
    unfinished: Cell<usize>,
    send_window: SendWindow,
    /// The task of the connection.
    task: RefCell<Option<Waker>>,
}

impl Shared {
    pub(super) fn new(client: Rc<Client>, activity: Rc<Activity>, quic: Connection) -> Rc<Self> {
        let windows = client.worker.send_windows.share(client.peer.ip());
        Rc::new(Self {
            bodies: Bodies::new(NO_WINDOWS, Some(client.kept_bytes.client())),
            client,
            activity,
            quic,
            cancelled: Cancellations::default(),
            heads: RequestHeads::default(),
            types: RefCell::default(),
            streams: Cell::new(0),
            unfinished: Cell::new(0),
            send_window: SendWindow::new(&windows),
            task: RefCell::default(),
        })
    }

    /// Returns the limits of what is read of a stream.
    pub(super) fn inbound_limits(&self, window: usize) -> InboundLimits {
        let bytes = self.client.limits.max_header_bytes;
        InboundLimits {
            fields: http3::Limits {
                bytes,
                // How many there may be is checked later, so that the refusal is recorded.
                lines: bytes / LINE,
            },
            window,
            bodies: self.bodies.clone(),
        }
    }

    /// Remembers the task of the connection.
    pub(super) fn set_task(&self, cx: &Context<'_>) {
        let mut task = self.task.borrow_mut();
        let task = task.get_or_insert_with(|| cx.waker().clone());
        task.clone_from(cx.waker());
    }

    /// Wakes the task of the connection.
    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// Returns the number of streams that are served.
    pub(super) fn streams(&self) -> usize {
        self.streams.get()
    }

    /// Closes the connection.
    pub(super) fn close(&self, code: Code, reason: &str) {
        self.quic.close(wire_code(code), reason.as_bytes());
    }

    /// Closes the connection if its client has moved to another IP address, and reports whether it has. What was decided by the
    /// address of the handshake, rules and limits among it, does not hold for the new one. Another port is no other client.
    ///
    /// QUIC takes an address only from a new packet that is authentic (RFC 9000, 9.3).
    pub(super) fn ends_by_move(&self) -> bool {
        let address = self.quic.remote_address().ip().to_canonical();
        let has_moved = address != self.client.peer.ip();
        if has_moved {
            self.close(Code::NoError, "the client has another address");
        }
        has_moved
    }

    /// Counts a request that the client has cancelled, or a stream that has no use, unless its connection has ended.
    pub(super) fn count_cancelled(&self) {
        if self.quic.close_reason().is_none() {
            self.cancelled.count(&self.client.worker.clock);
            self.wake();
        }
    }

    /// Changes the bytes of one head that is not complete. Closes the connection if its client holds too much.
    pub(super) fn hold_head(&self, before: usize, after: usize) {
        let unfinished = self.unfinished.get() - before + after;
        self.unfinished.set(unfinished);
        let counted = match unfinished {
            0..=USUAL_HEAD => 0,
            bytes => bytes,
        };
        if !self.client.hold_unfinished(counted) {
            self.close(Code::ExcessiveLoad, "heads hold too much memory");
        }
    }

    /// Lets QUIC hold more of responses if the network takes that and the client may hold it. Returns whether there is more
    /// room now.
    pub(super) fn grow_send_window(&self) -> bool {
        let window = self.send_window.grow(self.quic.stats().path.cwnd);
        if let Some(window) = window {
            self.quic.set_send_window(window);
        }
        window.is_some()
    }

    /// Returns the number of frames with parts of streams that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.quic.stats().frame_tx.stream
    }
}

/// A stream that is served, until dropped.
pub(super) struct OpenStream(Rc<Shared>);

impl OpenStream {
    pub(super) fn new(shared: &Rc<Shared>) -> Self {
        shared.streams.set(shared.streams.get() + 1);
        Self(shared.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let streams = self.0.streams.get() - 1;
        self.0.streams.set(streams);
        // All that was sent is acknowledged, or given up.
        if streams == 0
            && let Some(window) = self.0.send_window.shrink()
        {
            self.0.quic.set_send_window(window);
        }
        self.0.wake();
    }
}
