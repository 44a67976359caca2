//! Large futures that are built directly on the heap.

use std::pin::Pin;
use std::task::{Context, Poll};

/// A heap-allocated future that is never moved over the stack.
pub(in crate::proxy) struct InPlace<F>(Pin<Box<Option<F>>>);

/// Boxes the future of `build`. `Box::pin(build())` would build the future on the stack and copy
/// all of it, because the compiler must be able to drop it if the allocation fails.
pub(in crate::proxy) fn in_place<F: Future>(build: impl FnOnce() -> F) -> InPlace<F> {
    let mut place = Box::new(None);
    *place = Some(build());
    InPlace(Box::into_pin(place))
}

impl<F: Future> Future for InPlace<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.0.as_mut().as_pin_mut() {
            Some(future) => future.poll(cx),
            // Always `Some` until the value is dropped.
            None => Poll::Pending,
        }
    }
}
