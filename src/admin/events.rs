//! `/api/v1/events`: the counters of all routes every two seconds, as server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use super::api;
use super::background::compute;
use super::response::{Reply, events, text};
use super::state::{AdminState, MAX_EVENT_STREAMS};

/// Time between two events.
const PERIOD: Duration = Duration::from_secs(2);

/// Opens a stream. Its reader does not delay others: an event is computed when the one before is taken.
pub(super) fn open(state: &Arc<AdminState>) -> Reply {
    let Ok(place) = state.event_streams.clone().try_acquire_owned() else {
        return text(
            StatusCode::TOO_MANY_REQUESTS,
            &format!("{MAX_EVENT_STREAMS} streams of events are open, which is the maximum\n"),
        );
    };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(feed(state.clone(), sender, place));
    events(receiver)
}

/// Sends events until the stream is closed.
async fn feed(state: Arc<AdminState>, sender: mpsc::Sender<Bytes>, _place: OwnedSemaphorePermit) {
    let mut times = interval(PERIOD);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = times.tick() => {}
            () = sender.closed() => return,
        }
        let Some(totals) = compute(&state, api::totals).await else {
            return;
        };
        let event = format!("event: totals\ndata: {totals}\n\n");
        if sender.send(event.into()).await.is_err() {
            return;
        }
    }
}
