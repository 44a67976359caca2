//! Futures that may be absent, such as the wait for a deadline.

use std::future::pending;

/// Completes with a future; never without one.
pub async fn or_pending<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
