//! The port of a pod over a WebSocket, as `v4.channel.k8s.io`: bytes on one channel, and why there are none on the other.

use std::io::Write;
use std::net::{self, SocketAddr};

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::http::header;

const DATA: u8 = 0;
const ERROR: u8 = 1;
/// The port that every pod is asked for.
const PORT: u16 = 19000;

/// Forwards bytes between a client and what listens at an address, until one of them ends.
pub(super) fn serve(mut client: &net::TcpStream, head: &str, to: SocketAddr) -> Option<()> {
    let accept = derive_accept_key(header(head, "sec-websocket-key")?.as_bytes());
    write!(
        client,
        "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    )
    .ok()?;
    let client = client.try_clone().ok()?;
    client.set_nonblocking(true).ok()?;
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(forward(client, to)).ok()?;
    // The connection has ended.
    None
}

async fn forward(client: net::TcpStream, to: SocketAddr) -> Result<(), Error> {
    let client = TcpStream::from_std(client)?;
    let mut client = WebSocketStream::from_raw_socket(client, Role::Server, None).await;
    for channel in [DATA, ERROR] {
        client.send(message(channel, &PORT.to_le_bytes())).await?;
    }
    match TcpStream::connect(to).await {
        Ok(pod) => exchange(&mut client, pod).await?,
        Err(_) => {
            let fault = message(ERROR, b"cannot forward: connection refused\n");
            client.send(fault).await?;
        }
    }
    client.close(None).await?;
    // A socket that is closed with unread bytes is reset, and the client may lose the last messages.
    while client.next().await.transpose()?.is_some() {}
    Ok(())
}

async fn exchange(
    client: &mut WebSocketStream<TcpStream>,
    mut pod: TcpStream,
) -> Result<(), Error> {
    let mut bytes = [0; 1000];
    loop {
        tokio::select! {
            received = client.next() => match received.transpose()? {
                Some(Message::Binary(sent)) if sent.first() == Some(&DATA) => {
                    pod.write_all(&sent[1..]).await?;
                }
                Some(Message::Close(_)) | None => return Ok(()),
                Some(_) => {}
            },
            read = pod.read(&mut bytes) => match read? {
                0 => return Ok(()),
                length => client.send(message(DATA, &bytes[..length])).await?,
            },
        }
    }
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    Message::binary([&[channel], bytes].concat())
}
