//! Large futures that are built where they stay.

use std::pin::Pin;
use std::task::{Context, Poll};

/// A future on the heap that was never anywhere else.
pub(super) struct InPlace<F>(Pin<Box<Option<F>>>);

/// Boxes the future that `build` makes. `Box::pin(build())` would build it on the stack and copy all of it, although it
/// holds little more than its arguments yet: should the allocation fail, the stack is where it would be dropped.
pub(super) fn in_place<F: Future>(build: impl FnOnce() -> F) -> InPlace<F> {
    let mut place = Box::new(None);
    *place = Some(build());
    InPlace(Box::into_pin(place))
}

impl<F: Future> Future for InPlace<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.0.as_mut().as_pin_mut() {
            Some(future) => future.poll(cx),
            // It is there from the beginning to the end.
            None => Poll::Pending,
        }
    }
}
