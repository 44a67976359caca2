//! What both sides of a connection between pods do: read and write messages within a time and a size. Must not know what is
//! in a message.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::message::MAX_MESSAGE;

/// Reads a message without its length. The memory follows what has arrived.
///
/// # Errors
/// When the connection ends or the message is too long or too late.
pub(super) async fn read(
    from: &mut (impl AsyncReadExt + Unpin),
    within: Duration,
) -> io::Result<Vec<u8>> {
    let message = async {
        let length = from.read_u32().await? as usize;
        if length > MAX_MESSAGE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message is too long",
            ));
        }
        let mut message = vec![0; length];
        from.read_exact(&mut message).await?;
        Ok(message)
    };
    timeout(within, message).await.unwrap_or_else(late)
}

/// Writes a message with its length.
///
/// # Errors
/// When the connection ends or the other side does not read.
pub(super) async fn write(
    to: &mut (impl AsyncWriteExt + Unpin),
    message: &[u8],
    within: Duration,
) -> io::Result<()> {
    let written = async {
        to.write_all(message).await?;
        to.flush().await
    };
    timeout(within, written).await.unwrap_or_else(late)
}

fn late<T>(_: tokio::time::error::Elapsed) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}
