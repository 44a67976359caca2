//! Work for clients of the admin server that takes longer than a probe may wait: on a thread of its own, one at a time, so
//! that it takes at most one CPU from the workers.

use std::sync::Arc;

use super::state::AdminState;

/// Returns the result of `work`; `None` if it panics. It is completed even if the client leaves.
pub(super) async fn compute<T: Send + 'static>(
    state: &Arc<AdminState>,
    work: impl FnOnce(&AdminState) -> T + Send + 'static,
) -> Option<T> {
    // Fails only if the semaphore was closed, which nothing does. The thread keeps the permit if the client leaves.
    let turn = state.computing.clone().acquire_owned().await.ok()?;
    let state = state.clone();
    let computed = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work(&state)
    });
    computed.await.ok()
}
