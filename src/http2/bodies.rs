//! Bodies that arrive on one connection. A frame that its reader leaves in h2 takes an event and
//! pins a read buffer, whatever its size, and flow control counts neither. The task that drives the
//! connection therefore collects what readers leave, into buffers of its size. Window is granted
//! only for bytes that a reader has taken.

use std::cell::{Cell, RefCell};
use std::mem;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use slab::Slab;

use super::header_blocks::HeaderBlocks;
use super::held::{self, Held, Holder, Owner};
use super::send_queue::SendQueue;
use super::stream::{BodyError, Stream};
use super::waiting::WaitingParts;
use super::wire::{Arrived, Counts, EmptyFrames, Wire};
use crate::header_memory;

/// Maximum empty frames of a stream without data in between. Each costs time, but no memory.
const MAX_EMPTY: u32 = 1000;
/// Bytes that readers must take before a connection gets its full windows.
const PROVEN: u64 = 256 * 1024;
/// Stream window while much is unread.
const MIN_WINDOW: u32 = 16 * 1024;

/// Flow-control windows of the streams of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    /// At first.
    pub(crate) initial: u32,
    /// Once bodies are read.
    pub(crate) full: u32,
    /// Unread bytes of the connection above which windows become small.
    pub(crate) max_unread: usize,
}

/// The bodies of one connection.
pub(crate) struct Bodies {
    streams: RefCell<Slab<Stream>>,
    counts: Rc<Counts>,
    /// The header blocks that were received.
    pub(super) blocks: Rc<RefCell<HeaderBlocks>>,
    /// Allocated bytes of what was collected.
    held: Cell<usize>,
    waiting: WaitingParts,
    /// Time of the last collection.
    collected: Cell<u64>,
    /// Bytes that readers have taken since the window changed last.
    taken: Cell<u64>,
    windows: Windows,
    window: Cell<u32>,
    /// Whether a smaller window is not acknowledged yet.
    is_shrinking: Cell<bool>,
    /// The client whose connection it is, an address or a network; `None` for one to a backend.
    client: Option<IpAddr>,
    key: usize,
}

/// Reads a body. Releases it on drop.
pub(crate) struct Body {
    bodies: Rc<Bodies>,
    key: usize,
}

impl Bodies {
    /// Creates the bodies of the connection of a client, or of one to a backend.
    pub(crate) fn new(windows: Windows, client: Option<IpAddr>) -> Rc<Self> {
        Rc::new_cyclic(|this| Self {
            streams: RefCell::default(),
            counts: Rc::default(),
            blocks: Rc::new(RefCell::new(HeaderBlocks::new(client.is_some()))),
            client,
            held: Cell::new(0),
            waiting: WaitingParts::default(),
            collected: Cell::new(held::now()),
            taken: Cell::new(0),
            windows,
            window: Cell::new(windows.initial),
            is_shrinking: Cell::new(false),
            key: held::register(this.clone()),
        })
    }

    /// Wraps the byte stream from which h2 reads the frames of the connection.
    pub(crate) fn wire<T>(&self, io: T, empty: EmptyFrames) -> Wire<T> {
        let (counts, blocks) = (self.counts.clone(), self.blocks.clone());
        Wire::new(io, self.client.is_some(), empty, counts, blocks)
    }

    /// Reports whether the peer permits little more data, of all streams together.
    pub(crate) fn is_window_low(&self) -> bool {
        self.counts.is_window_low()
    }

    /// Returns what h2 has got to send.
    pub(crate) fn send_queue(&self) -> &SendQueue {
        self.counts.queue()
    }

    /// Returns the bytes of a header block that is not complete.
    pub(crate) fn unfinished_block(&self) -> usize {
        self.blocks.borrow().unfinished()
    }

    /// Reports whether the head of a response is malformed.
    pub(crate) fn is_head_malformed(&self, stream: u32) -> bool {
        self.blocks.borrow().is_head_malformed(stream)
    }

    /// Reports whether the trailers of a stream are malformed.
    pub(crate) fn are_trailers_malformed(&self, stream: u32) -> bool {
        self.blocks.borrow().are_trailers_malformed(stream)
    }

    /// Returns the stream window that the connection has.
    pub(crate) fn window(&self) -> u32 {
        self.window.get()
    }

    /// Returns the number of bytes that were received since the last call.
    pub(crate) fn take_received(&self) -> usize {
        self.counts.take_received()
    }

    /// Returns the number of empty frames of the connection that h2 may have counted.
    pub(crate) fn counted_empty_frames(&self) -> u32 {
        self.counts.counted()
    }

    /// Returns the reader of a stream's body.
    pub(crate) fn read(self: &Rc<Self>, incoming: RecvStream) -> Body {
        self.read_for(incoming, self.client)
    }

    /// Returns the reader of the body of a stream that this client has caused.
    pub(crate) fn read_for(self: &Rc<Self>, incoming: RecvStream, client: Option<IpAddr>) -> Body {
        let stream = Stream::new(Some(incoming), client);
        let key = self.streams.borrow_mut().insert(stream);
        Body {
            bodies: self.clone(),
            key,
        }
    }

    /// Collects what readers have left, if much has arrived. To be called by the task that drives
    /// the connection, after h2 has returned. `resize` announces another stream window, and fails
    /// while an earlier one is not acknowledged. Returns whether h2 has to be polled again.
    pub(crate) fn on_driven(&self, resize: impl FnOnce(u32) -> Result<(), h2::Error>) -> bool {
        self.counts.queue().on_driven();
        match self.counts.take() {
            Arrived::Little => {}
            Arrived::Bytes => self.collect(false),
            Arrived::SmallFrames => self.collect(true),
        }
        if self.counts.has_empty() {
            self.limit_empty_frames();
        }
        if self.blocks.borrow_mut().take_news() {
            self.wake_malformed();
        }
        let current = self.window.get();
        let next = self.next_window();
        if next == current && !self.is_shrinking.get() || resize(next).is_err() {
            return false;
        }
        // The same window is announced again to learn that it is acknowledged.
        if self.is_shrinking.replace(next < current) {
            self.grant_released();
        }
        if next != current {
            self.window.set(next);
            self.taken.set(0);
        }
        true
    }

    /// Makes h2 grant what readers have released. It waits until that is half of a window, and
    /// misses that this is so when the window shrinks: the stream would stall.
    fn grant_released(&self) {
        for (_, stream) in self.streams.borrow_mut().iter_mut() {
            if let Some(incoming) = &mut stream.incoming {
                // Releasing nothing does not fail.
                let _ = incoming.flow_control().release_capacity(0);
            }
        }
    }

    fn collect(&self, is_small: bool) {
        let last = self.collected.replace(held::advance());
        let mut added = 0;
        for (_, stream) in self.streams.borrow_mut().iter_mut() {
            // h2 has woken a reader that waits. A reader that was active takes large frames from
            // h2 without a copy.
            let is_idle = !stream.is_awaited && stream.read < last;
            if is_small || is_idle {
                let before = stream.allocated();
                stream.collect();
                added += stream.allocated() - before;
            }
        }
        self.held.set(self.held.get() + added);
        held::add(added);
        held::enforce();
    }

    fn limit_empty_frames(&self) {
        for (id, count) in self.counts.take_empty() {
            let mut excess = None;
            for (key, stream) in self.streams.borrow_mut().iter_mut() {
                let incoming = stream.incoming.as_ref();
                if incoming.is_some_and(|it| it.stream_id().as_u32() == id) {
                    stream.empty += count;
                    excess = (stream.empty > MAX_EMPTY).then_some(key);
                }
            }
            if let Some(key) = excess {
                self.fail(key, BodyError::EmptyFrames);
            }
        }
    }

    /// Wakes the readers of bodies with malformed trailers, which may not have come to these yet.
    fn wake_malformed(&self) {
        let mut readers = Vec::new();
        for (_, stream) in self.streams.borrow_mut().iter_mut() {
            let id = stream.incoming.as_ref().map(RecvStream::stream_id);
            if id.is_some_and(|id| self.are_trailers_malformed(id.as_u32())) {
                readers.extend(stream.reader.take());
            }
        }
        readers.into_iter().for_each(Waker::wake);
    }

    /// Returns the stream window that the connection should have.
    fn next_window(&self) -> u32 {
        let max = self.windows.max_unread / if held::is_much() { 16 } else { 1 };
        let (held, current) = (self.held.get(), self.window.get());
        if held > max {
            MIN_WINDOW
        } else if held > max / 2 {
            current
        } else if self.taken.get() >= PROVEN {
            self.windows.full
        } else {
            current.max(self.windows.initial)
        }
    }

    /// Returns the allocated bytes of what was collected, and of what waits.
    pub(super) fn held(&self) -> usize {
        self.held.get() + self.waiting.held()
    }

    /// Returns what the tasks of streams keep while they wait.
    pub(super) fn waiting(&self) -> &WaitingParts {
        &self.waiting
    }

    /// Adds what is held, and whose it is.
    pub(super) fn add_holders(self: &Rc<Self>, holders: &mut Vec<Holder>) {
        let streams = self.streams.borrow();
        let collected = streams.iter().filter(|(_, it)| it.allocated() > 0);
        holders.extend(collected.map(|(key, it)| Holder {
            bodies: self.clone(),
            owner: self.owner(it.client),
            bytes: it.allocated(),
            since: it.read,
            what: Held::Collected(key),
        }));
        let waiting = self.waiting.all().into_iter();
        holders.extend(waiting.map(|(since, bytes, client, what)| Holder {
            bodies: self.clone(),
            owner: self.owner(client),
            bytes,
            since,
            what,
        }));
    }

    /// Returns whose memory it is what this client has caused, or else the peer of the connection.
    pub(super) fn owner(&self, client: Option<IpAddr>) -> Owner {
        let client = client.or(self.client);
        client.map_or(Owner::Connection(self.key), Owner::Client)
    }

    /// Frees what is held, and fails its stream.
    pub(super) fn drop_held(&self, held: Held) {
        match held {
            Held::Collected(key) => self.fail(key, BodyError::TooSlow),
            Held::Waiting(key) | Held::Response(key) => self.waiting.fail(key),
        }
    }

    /// Fails a stream and frees what was collected.
    fn fail(&self, key: usize, error: BodyError) {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.get_mut(key) else {
            return;
        };
        let incoming = stream.incoming.take();
        self.release(stream.allocated());
        let collected = (mem::take(&mut stream.collected), stream.trailers.take());
        stream.error = Some(error);
        let reader = stream.reader.take();
        drop(streams);
        // h2 resets the stream, unless the request is still being sent.
        drop((incoming, collected));
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Adds a body of which this many bytes were collected.
    #[cfg(test)]
    pub(super) fn add_collected(self: &Rc<Self>, bytes: usize) -> Body {
        self.add_collected_for(bytes, self.client)
    }

    /// Adds a body of which this many bytes were collected, and which this client has caused.
    #[cfg(test)]
    pub(super) fn add_collected_for(self: &Rc<Self>, bytes: usize, client: Option<IpAddr>) -> Body {
        let mut collected = crate::byte_chain::ByteChain::default();
        collected.push(&vec![b'x'; bytes]);
        self.held.set(self.held.get() + collected.allocated());
        held::add(collected.allocated());
        let key = self.streams.borrow_mut().insert(Stream {
            collected,
            has_ended: true,
            read: held::advance(),
            ..Stream::new(None, client)
        });
        Body {
            bodies: self.clone(),
            key,
        }
    }

    fn release(&self, bytes: usize) {
        self.held.set(self.held.get() - bytes);
        held::remove(bytes);
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        held::unregister(self.key);
    }
}

impl Body {
    /// Returns the next data.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let bodies = &*self.bodies;
        let mut streams = bodies.streams.borrow_mut();
        let stream = &mut streams[self.key];
        stream.read = held::now();
        let before = stream.collected.allocated();
        let data = if let Some(data) = stream.collected.pop() {
            bodies.release(before - stream.collected.allocated());
            data
        } else {
            if let Some(error) = stream.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(incoming) = &mut stream.incoming else {
                return Poll::Ready(None);
            };
            let Poll::Ready(next) = incoming.poll_data(cx) else {
                let reader = stream.reader.as_ref();
                if !reader.is_some_and(|reader| reader.will_wake(cx.waker())) {
                    stream.reader = Some(cx.waker().clone());
                }
                stream.is_awaited = true;
                return Poll::Pending;
            };
            stream.empty = 0;
            match next {
                Some(Ok(data)) => data,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        };
        stream.is_awaited = false;
        bodies.taken.set(bodies.taken.get() + data.len() as u64);
        if let Some(incoming) = &mut stream.incoming {
            // Fails only if the stream has just ended, and then no window is needed.
            let _ = incoming.flow_control().release_capacity(data.len());
        }
        Poll::Ready(Some(Ok(data)))
    }

    /// Returns the trailers, after the data.
    pub(crate) fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, BodyError>> {
        let mut streams = self.bodies.streams.borrow_mut();
        let stream = &mut streams[self.key];
        if let Some(error) = stream.error.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(trailers) = stream.trailers.take() {
            self.bodies.release(header_memory::size(&trailers));
            return Poll::Ready(Ok(Some(trailers)));
        }
        match &mut stream.incoming {
            Some(incoming) => incoming.poll_trailers(cx).map_err(BodyError::from),
            None => Poll::Ready(Ok(None)),
        }
    }

    /// Reports whether the body is complete, without trailers that are still to be read.
    pub(crate) fn is_end_stream(&self) -> bool {
        let streams = self.bodies.streams.borrow();
        let stream = &streams[self.key];
        let incoming = stream.incoming.as_ref();
        stream.collected.is_empty()
            && stream.trailers.is_none()
            && stream.error.is_none()
            && incoming.is_some_and(RecvStream::is_end_stream)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // h2 may drop wakers: the borrow ends before.
        let stream = self.bodies.streams.borrow_mut().try_remove(self.key);
        if let Some(stream) = &stream {
            self.bodies.release(stream.allocated());
        }
    }
}
