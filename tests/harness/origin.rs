//! Scripted HTTP/1 origins: each connection runs the script on its own thread. All received data is
//! kept, raw and as requests.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::TEST_TIMEOUT;
use super::http::{Body, Fields, Fill, Framing, Wire, framing};

/// The response of [`Origin::hello`].
pub(crate) const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// An origin, listening until dropped.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    log: Arc<Log>,
    stopped: Arc<AtomicBool>,
}

/// What an origin has received.
#[derive(Default)]
struct Log {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    /// The bytes of every connection.
    connections: Vec<Arc<Mutex<Vec<u8>>>>,
    /// Number of connections whose script has ended.
    ended: usize,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Index of its connection, from 0.
    pub(crate) connection: usize,
    /// The first line.
    pub(crate) start: String,
    pub(crate) fields: Fields,
    /// Body, once read.
    pub(crate) body: Body,
}

impl Request {
    pub(crate) fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }
}

impl Origin {
    /// Starts an origin that runs this script on every connection; the connection closes at its
    /// end.
    pub(crate) fn start(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (log, stopped) = (Arc::<Log>::default(), Arc::<AtomicBool>::default());
        let (script, seen, stop) = (Arc::new(script), log.clone(), stopped.clone());
        thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                if stop.load(Relaxed) {
                    return;
                }
                let (script, mut peer) = (script.clone(), Peer::new(socket, seen.clone()));
                thread::spawn(move || script(&mut peer));
            }
        });
        Self {
            address,
            log,
            stopped,
        }
    }

    /// Returns an origin that reads each request completely and responds with 200 and `hello`.
    pub(crate) fn hello() -> Self {
        Self::answering(HELLO)
    }

    /// Returns an origin that reads each request completely and responds with these bytes.
    pub(crate) fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(
            move |peer| {
                while peer.request().is_some() && peer.send(&bytes) {}
            },
        )
    }

    /// Returns an origin that responds to the first request of each connection with these bytes and
    /// closes it.
    pub(crate) fn answering_once(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(move |peer| {
            if peer.request().is_some() {
                peer.send(&bytes);
            }
        })
    }

    /// Requests whose heads were received.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.log.lock().requests.clone()
    }

    /// Returns the last request whose head was received.
    pub(crate) fn last(&self) -> Request {
        self.requests().pop().expect("a request")
    }

    /// Returns number of accepted connections.
    pub(crate) fn connections(&self) -> usize {
        self.log.lock().connections.len()
    }

    /// Returns number of closed connections.
    pub(crate) fn ended(&self) -> usize {
        self.log.lock().ended
    }

    /// Returns all bytes received on a connection.
    pub(crate) fn raw(&self, connection: usize) -> Vec<u8> {
        let seen = self.log.lock().connections[connection].clone();
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    /// Waits until a condition holds. Checked when a connection or request begins, a body was read,
    /// or a connection ends.
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !condition(self) {
            assert!(Instant::now() < end, "{what} did not come about in time");
            let state = self.log.lock();
            let short = Duration::from_millis(20);
            drop(self.log.changed.wait_timeout(state, short));
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stopped.store(true, Relaxed);
        // Wakes the accepting thread.
        drop(TcpStream::connect(self.address));
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// The origin's side of a connection.
pub(crate) struct Peer {
    pub(crate) wire: Wire<TcpStream>,
    /// Index of the connection, from 0.
    pub(crate) index: usize,
    log: Arc<Log>,
    /// Declared after `wire`, so that the socket is closed first.
    _end: End,
}

/// Counts the end of a connection on drop.
struct End(Arc<Log>);

impl Peer {
    fn new(socket: TcpStream, log: Arc<Log>) -> Self {
        socket
            .set_read_timeout(Some(2 * TEST_TIMEOUT))
            .expect("a time");
        socket
            .set_write_timeout(Some(2 * TEST_TIMEOUT))
            .expect("a time");
        socket.set_nodelay(true).expect("set");
        let wire = Wire::new(socket);
        let mut index = 0;
        log.change(|state| {
            index = state.connections.len();
            state.connections.push(wire.seen.clone());
        });
        let _end = End(log.clone());
        Self {
            wire,
            index,
            log,
            _end,
        }
    }

    /// Reads the head of the next request; `None` at EOF.
    pub(crate) fn head(&mut self) -> Option<Request> {
        let head = self.wire.head().ok()?;
        let request = Request {
            connection: self.index,
            start: head.start,
            fields: head.fields,
            body: Body::default(),
        };
        let kept = request.clone();
        self.log.change(|state| state.requests.push(kept));
        Some(request)
    }

    /// Reads the body of a request whose head was read.
    pub(crate) fn body(&mut self, request: &mut Request) {
        let framing = framing(&request.fields).unwrap_or(Framing::Length(0));
        request.body = self.wire.body(framing);
        let (index, body) = (self.index, request.body.clone());
        self.log.change(|state| {
            let mut own = state.requests.iter_mut().rev();
            if let Some(request) = own.find(|request| request.connection == index) {
                request.body = body;
            }
        });
    }

    /// Reads a complete request; `None` at EOF or if it is truncated.
    pub(crate) fn request(&mut self) -> Option<Request> {
        let mut request = self.head()?;
        self.body(&mut request);
        request.body.complete.then_some(request)
    }

    /// Sends bytes; false if the connection is closed.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.write(bytes.as_ref())
    }

    /// Sends until the connection closes or `limit` is reached; returns the number of bytes.
    pub(crate) fn send_until_closed(&mut self, limit: usize) -> usize {
        let io = &mut self.wire.io;
        let (piece, mut sent) = ([b'x'; 64 * 1024], 0);
        while sent < limit {
            let size = piece.len().min(limit - sent);
            match io.write(&piece[..size]) {
                Ok(count) => sent += count,
                Err(_) => break,
            }
        }
        sent
    }

    /// Reads until the proxy closes the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while let Fill::Bytes(_) = self.wire.fill() {}
        std::mem::take(&mut self.wire.buffer)
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(&mut self) {
        let socket = socket2::SockRef::from(&self.wire.io);
        socket.set_linger(Some(Duration::ZERO)).expect("set");
        // The reset is sent when the last handle is closed at the end of the script.
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.0.change(|state| state.ended += 1);
    }
}
