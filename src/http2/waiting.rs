//! What the tasks of streams keep while they wait: parts of bodies and long trailers that the peer does not take, and heads of
//! requests without a response. What is allocated counts as memory of the worker and of the connection, like bodies that are not read. If h2 bounded
//! what all streams of several connections hold, this count would not be needed.

use std::cell::{Cell, RefCell};
use std::mem;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Waker};

use http::HeaderMap;
use slab::Slab;

use super::bodies::Bodies;
use super::held::{self, Held, Owner};
use super::unsent_heads;
use crate::header_memory;

/// Memory of trailers up to which they do not count behind data that has no window.
pub(crate) const USUAL_TRAILERS: usize = 8 * 1024;

/// What waits of one connection.
#[derive(Default)]
pub(super) struct WaitingParts {
    parts: RefCell<Slab<Part>>,
    /// Allocated bytes of all of them.
    held: Cell<usize>,
}

struct Part {
    bytes: usize,
    /// The client that has caused it; `None` for that of the connection.
    client: Option<IpAddr>,
    /// The client that a response waits for, and the bytes of its head, if it has not begun.
    head: Option<(Owner, usize)>,
    /// When it began to wait ([`held::now`]).
    since: u64,
    /// The task that waits. `None` after the part has failed.
    task: Option<Waker>,
}

/// A part of a stream that waits. Counts until dropped.
pub(crate) struct Waiting {
    bodies: Rc<Bodies>,
    key: usize,
}

impl WaitingParts {
    /// Returns the allocated bytes.
    pub(super) fn held(&self) -> usize {
        self.held.get()
    }

    /// Returns the times since when parts wait, their bytes, the clients that have caused them if they are others than that of
    /// the connection, and what they are.
    pub(super) fn all(&self) -> Vec<(u64, usize, Option<IpAddr>, Held)> {
        let parts = self.parts.borrow();
        let waiting = parts.iter().filter(|(_, part)| part.task.is_some());
        waiting
            .map(|(key, part)| {
                let what = match part.head {
                    Some(_) => Held::Response(key),
                    None => Held::Waiting(key),
                };
                (part.since, part.bytes, part.client, what)
            })
            .collect()
    }

    /// Makes the task of a part give it up. Its bytes do not count any more.
    pub(super) fn fail(&self, key: usize) {
        let task = {
            let mut parts = self.parts.borrow_mut();
            let part = parts.get_mut(key);
            part.and_then(|part| {
                self.release(part);
                part.task.take()
            })
        };
        if let Some(task) = task {
            task.wake();
        }
    }

    fn release(&self, part: &mut Part) {
        let bytes = mem::take(&mut part.bytes);
        self.held.set(self.held.get() - bytes);
        held::remove(bytes);
        if let Some((owner, head)) = part.head.take() {
            unsent_heads::remove(owner, head);
        }
    }
}

impl Waiting {
    /// Counts allocated bytes that a task keeps for a connection. It is woken if they have to go.
    pub(crate) fn new(bodies: &Rc<Bodies>, bytes: usize, cx: &Context<'_>) -> Self {
        Self::caused_by(bodies, None, bytes, cx)
    }

    /// Counts a response that has to wait for the client of a connection before it begins: the bytes of its head, and those of
    /// its body. The task is woken if the response has to fail. A client has half of the memory of the worker for heads.
    pub(crate) fn for_response(
        bodies: &Rc<Bodies>,
        (head, body): (usize, usize),
        cx: &Context<'_>,
    ) -> Self {
        let owner = bodies.owner(None);
        unsent_heads::add(owner, head);
        let waiting = Self::insert(bodies, (None, Some((owner, head))), head + body, cx);
        unsent_heads::enforce(owner);
        waiting
    }

    /// Counts the trailers of a client's request, which h2 keeps while a backend grants no window for the data before them. The
    /// task is woken if the request has to fail. `None` for usual ones, which do not count.
    pub(crate) fn for_trailers(
        bodies: &Rc<Bodies>,
        client: Option<IpAddr>,
        trailers: &HeaderMap,
        cx: &Context<'_>,
    ) -> Option<Self> {
        let size = header_memory::size(trailers);
        (size > USUAL_TRAILERS).then(|| Self::caused_by(bodies, client, size, cx))
    }

    pub(super) fn caused_by(
        bodies: &Rc<Bodies>,
        client: Option<IpAddr>,
        bytes: usize,
        cx: &Context<'_>,
    ) -> Self {
        Self::insert(bodies, (client, None), bytes, cx)
    }

    fn insert(
        bodies: &Rc<Bodies>,
        (client, head): (Option<IpAddr>, Option<(Owner, usize)>),
        bytes: usize,
        cx: &Context<'_>,
    ) -> Self {
        let waiting = bodies.waiting();
        let key = waiting.parts.borrow_mut().insert(Part {
            bytes,
            client,
            head,
            since: held::advance(),
            task: Some(cx.waker().clone()),
        });
        waiting.held.set(waiting.held.get() + bytes);
        held::add(bytes);
        held::enforce();
        Self {
            bodies: bodies.clone(),
            key,
        }
    }

    /// Reports whether the bytes have to go.
    pub(crate) fn has_failed(&self) -> bool {
        let parts = self.bodies.waiting().parts.borrow();
        parts[self.key].task.is_none()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waiting = self.bodies.waiting();
        let mut part = waiting.parts.borrow_mut().remove(self.key);
        waiting.release(&mut part);
    }
}
