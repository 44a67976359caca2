//! Key sets that should be fetched again, since a token names a key that they lack. Workers and sessions of pods ask; what fetches
//! keys, or the stream to the controller that does, takes. Must not know how keys are fetched.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use crate::ir::ObjectRef;

/// Maximum number of key sets that are remembered. Without a connection to the controller, a pod takes none.
const MAX_ASKED: usize = 1024;

/// The key sets that were asked for.
#[derive(Debug, Default)]
pub struct KeyRequests {
    asked: Mutex<BTreeSet<ObjectRef>>,
    waker: AtomicWaker,
}

impl KeyRequests {
    /// Asks for a key set.
    pub fn ask(&self, key_set: &ObjectRef) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.len() < MAX_ASKED {
            asked.insert(key_set.clone());
        }
        drop(asked);
        self.waker.wake();
    }

    /// Takes the key sets that were asked for, once there are any. Only one task may wait.
    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<BTreeSet<ObjectRef>> {
        self.waker.register(cx.waker());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match asked.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(std::mem::take(&mut *asked)),
        }
    }
}
