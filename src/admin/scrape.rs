//! The response to a scrape: all metrics, written by a thread of its own as fast as the client reads them. It takes little
//! memory, however many series there are, and delays no probe.

use std::fmt;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::problems;
use super::state::AdminState;
use crate::telemetry::metrics::{Metrics, write, write_with_exemplars};

/// Size of the pieces that are passed on, in bytes.
const PIECE: usize = 64 * 1024;
/// Number of pieces that wait for the client.
const AHEAD: usize = 2;

/// The body of a scrape. Its drop ends the writing.
pub(super) struct ScrapeBody {
    /// The pieces; an empty one is the end.
    pieces: mpsc::Receiver<Bytes>,
}

/// Begins to write all metrics, with exemplars if the client knows them.
pub(super) fn scrape(state: &Arc<AdminState>, with_exemplars: bool) -> ScrapeBody {
    let (sender, pieces) = mpsc::channel(AHEAD);
    let state = state.clone();
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let mut text = PieceWriter::new(sender, runtime, &state.computing);
        let table = state.table.load_full();
        let metrics = Metrics {
            problems: problems::by_kind(&state, &table),
            table,
            process: state.stats.clone(),
            dropped: state.access_log.dropped(),
            detail: state.detail,
        };
        let written = match with_exemplars {
            true => write_with_exemplars(&mut text, metrics),
            false => write(&mut text, metrics),
        };
        // Fails only if the client has left.
        let _ = written.and_then(|()| text.end());
    });
    ScrapeBody { pieces }
}

/// Passes text on in pieces. Waits for a client that reads slowly.
struct PieceWriter {
    piece: String,
    pieces: mpsc::Sender<Bytes>,
    runtime: Handle,
    computing: Arc<Semaphore>,
    /// Held while it writes, so that all clients together take at most one CPU from the workers.
    turn: Option<OwnedSemaphorePermit>,
}

impl PieceWriter {
    fn new(pieces: mpsc::Sender<Bytes>, runtime: Handle, computing: &Arc<Semaphore>) -> Self {
        let mut writer = Self {
            piece: String::with_capacity(PIECE),
            pieces,
            runtime,
            computing: computing.clone(),
            turn: None,
        };
        writer.take_turn();
        writer
    }

    fn take_turn(&mut self) {
        let turn = self.computing.clone().acquire_owned();
        // Fails only if the semaphore was closed, which nothing does.
        self.turn = self.runtime.block_on(turn).ok();
    }

    fn pass(&mut self) -> fmt::Result {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = mem::replace(&mut self.piece, String::with_capacity(PIECE));
        self.send(piece.into())
    }

    fn send(&mut self, piece: Bytes) -> fmt::Result {
        let piece = match self.pieces.try_send(piece) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(fmt::Error),
            Err(TrySendError::Full(piece)) => piece,
        };
        // Others have their turn until the client has read something.
        self.turn = None;
        let sent = self.runtime.block_on(self.pieces.send(piece));
        self.take_turn();
        sent.map_err(|_| fmt::Error)
    }

    fn end(mut self) -> fmt::Result {
        self.pass()?;
        self.send(Bytes::new())
    }
}

impl fmt::Write for PieceWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.piece.len() + text.len() > PIECE {
            self.pass()?;
        }
        self.piece.push_str(text);
        Ok(())
    }
}

impl Body for ScrapeBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(match ready!(self.get_mut().pieces.poll_recv(cx)) {
            Some(piece) if piece.is_empty() => None,
            Some(piece) => Some(Ok(Frame::data(piece))),
            None => Some(Err(io::Error::other("the metrics could not be written"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use http_body_util::BodyExt;
    use tokio::task::{JoinHandle, spawn_blocking};

    use super::*;

    /// Number of pieces of a text that no buffer holds.
    const PIECES: usize = 20;

    /// Writes a text of whole pieces, which begins with this letter.
    fn begin(computing: &Arc<Semaphore>, first: char) -> (ScrapeBody, JoinHandle<fmt::Result>) {
        let (sender, pieces) = mpsc::channel(AHEAD);
        let (runtime, computing) = (Handle::current(), computing.clone());
        let work = spawn_blocking(move || {
            let mut text = PieceWriter::new(sender, runtime, &computing);
            text.write_char(first)?;
            for _ in 0..PIECES * PIECE / 64 {
                text.write_str(&"x".repeat(64))?;
            }
            text.end()
        });
        (ScrapeBody { pieces }, work)
    }

    #[tokio::test]
    async fn client_that_does_not_read_delays_no_other_and_its_writer_ends_with_it() {
        let computing = Arc::new(Semaphore::new(1));
        let (unread, waiting) = begin(&computing, 'a');
        let (read, written) = begin(&computing, 'b');
        let text = read.collect().await.unwrap().to_bytes();
        assert_eq!((text[0], text.len()), (b'b', PIECES * PIECE + 1));
        written.await.unwrap().unwrap();
        drop(unread);
        assert!(waiting.await.unwrap().is_err());
        assert_eq!(computing.available_permits(), 1);
    }

    #[tokio::test]
    async fn pieces_are_as_large_as_they_may_be() {
        let (mut body, _written) = begin(&Arc::new(Semaphore::new(1)), 'a');
        let mut sizes = Vec::new();
        while let Some(frame) = body.frame().await {
            sizes.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!(sizes.len(), PIECES + 1);
        assert!(sizes[..PIECES].iter().all(|size| PIECE - size < 64));
    }

    #[tokio::test]
    async fn text_without_an_end_is_an_error() {
        let (sender, pieces) = mpsc::channel(AHEAD);
        sender.try_send(Bytes::from_static(b"a")).unwrap();
        drop(sender);
        assert!(ScrapeBody { pieces }.collect().await.is_err());
    }
}
