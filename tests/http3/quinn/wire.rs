//! Bytes on streams of QUIC, without HTTP/3.

use anyhow::bail;
use quinn::{Connection, RecvStream, SendStream, WriteError};

use crate::connect::{Connector, H3_NO_ERROR};
use crate::message::{Connect, Stream, Wire};

/// More than any response has.
const MAX_RESPONSE: usize = 1 << 20;

/// Writes bytes to streams. Returns what comes on the last one, or how it or the connection ends.
pub(crate) async fn run(connector: &Connector, sent: &Wire) -> anyhow::Result<Vec<u8>> {
    let to = Connect::new(sent.port, &sent.name, &sent.alpn);
    let connection = connector.connect(&to).await?;
    let received = exchange(&connection, &sent.streams).await;
    connection.close(H3_NO_ERROR, b"");
    received
}

async fn exchange(connection: &Connection, streams: &[Stream]) -> anyhow::Result<Vec<u8>> {
    // A stream that is dropped ends.
    let mut opened = Vec::new();
    for stream in streams {
        opened.push(open(connection, stream).await?);
    }
    let (Some((sender, receiver)), Some(last)) = (opened.last_mut(), streams.last()) else {
        bail!("no stream");
    };
    if let Some(receiver) = receiver {
        return Ok(receiver.read_to_end(MAX_RESPONSE).await?);
    }
    if last.fin {
        return Err(connection.closed().await.into());
    }
    match sender.stopped().await? {
        Some(code) => Err(WriteError::Stopped(code).into()),
        None => bail!("the server has read to an end that was not sent"),
    }
}

async fn open(
    connection: &Connection,
    stream: &Stream,
) -> anyhow::Result<(SendStream, Option<RecvStream>)> {
    let (mut sender, receiver) = if stream.uni {
        (connection.open_uni().await?, None)
    } else {
        let (sender, receiver) = connection.open_bi().await?;
        (sender, Some(receiver))
    };
    sender.write_all(&stream.data).await?;
    if stream.fin {
        sender.finish()?;
    }
    Ok((sender, receiver))
}
