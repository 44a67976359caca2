//! Parts of bodies that wait because the peer takes no more of them. What they keep allocated counts as memory of the
//! worker and of the connection, like bodies that are not read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use slab::Slab;

use super::bodies::Bodies;
use super::held;

/// The waiting parts of one connection.
#[derive(Default)]
pub(super) struct UnsentParts {
    parts: RefCell<Slab<Part>>,
    /// Allocated bytes of all of them.
    held: Cell<usize>,
}

struct Part {
    bytes: usize,
    /// When it began to wait ([`held::now`]).
    since: u64,
    /// The task that waits. `None` after the part has failed.
    sender: Option<Waker>,
}

/// A part of a body that waits. Counts until dropped.
pub(crate) struct Unsent {
    bodies: Rc<Bodies>,
    key: usize,
}

impl UnsentParts {
    /// Returns the allocated bytes.
    pub(super) fn held(&self) -> usize {
        self.held.get()
    }

    /// Returns the times since when parts wait, and their keys.
    pub(super) fn times(&self) -> Vec<(u64, usize)> {
        let parts = self.parts.borrow();
        let waiting = parts.iter().filter(|(_, part)| part.sender.is_some());
        waiting.map(|(key, part)| (part.since, key)).collect()
    }

    /// Makes the sender of a part give it up. Its bytes do not count any more.
    pub(super) fn fail(&self, key: usize) {
        let sender = {
            let mut parts = self.parts.borrow_mut();
            let part = parts.get_mut(key);
            part.and_then(|part| {
                self.release(std::mem::take(&mut part.bytes));
                part.sender.take()
            })
        };
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    fn release(&self, bytes: usize) {
        self.held.set(self.held.get() - bytes);
        held::remove(bytes);
    }
}

impl Unsent {
    /// Counts allocated bytes that a task keeps for a connection. It is woken if they have to go.
    pub(crate) fn new(bodies: &Rc<Bodies>, bytes: usize, cx: &Context<'_>) -> Self {
        let unsent = bodies.unsent();
        let key = unsent.parts.borrow_mut().insert(Part {
            bytes,
            since: held::advance(),
            sender: Some(cx.waker().clone()),
        });
        unsent.held.set(unsent.held.get() + bytes);
        held::add(bytes);
        held::enforce();
        Self {
            bodies: bodies.clone(),
            key,
        }
    }

    /// Reports whether the bytes have to go.
    pub(crate) fn has_failed(&self) -> bool {
        let parts = self.bodies.unsent().parts.borrow();
        parts[self.key].sender.is_none()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let unsent = self.bodies.unsent();
        let part = unsent.parts.borrow_mut().remove(self.key);
        unsent.release(part.bytes);
    }
}
