//! HTTP/2 peers that write raw frames.

use h2::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const DATA: u8 = 0;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM_AND_HEADERS: u8 = 5;
const END_HEADERS: u8 = 4;

/// A peer that writes raw frames.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Reads the client's preface and sends empty SETTINGS.
    pub(crate) async fn accept(mut socket: TcpStream) -> Self {
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.expect("a preface");
        let mut raw = Self(socket);
        raw.send(SETTINGS, 0, 0, &[]).await;
        raw
    }

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = (payload.len() as u32).to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        // Ignored: the client may have disconnected.
        let _ = self.0.write_all(&frame).await;
    }

    /// Reads a frame; returns its type and stream id.
    pub(crate) async fn frame(&mut self) -> Option<(u8, u32)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], stream))
    }

    /// Reads up to the next HEADERS frame; returns its stream id.
    pub(crate) async fn request(&mut self) -> Option<u32> {
        loop {
            if let (HEADERS, stream) = self.frame().await? {
                return Some(stream);
            }
        }
    }

    /// Responds with 200 and no body.
    pub(crate) async fn answer(&mut self, stream: u32) {
        self.send(HEADERS, END_STREAM_AND_HEADERS, stream, &[0x88])
            .await;
    }

    /// Sends a 103 without headers.
    pub(crate) async fn hint(&mut self, stream: u32) {
        self.send(HEADERS, END_HEADERS, stream, b"\x08\x03103")
            .await;
    }

    pub(crate) async fn go_away(&mut self, last: u32) {
        let payload = [last.to_be_bytes(), [0; 4]].concat();
        self.send(GOAWAY, 0, 0, &payload).await;
    }

    pub(crate) async fn reset(&mut self, stream: u32, reason: Reason) {
        let reason = u32::from(reason).to_be_bytes();
        self.send(RST_STREAM, 0, stream, &reason).await;
    }
}
