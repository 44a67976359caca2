//! The port of a pod over a WebSocket, as `v4.channel.k8s.io`: bytes on one channel, and why there are none on the other.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::http::header;

const DATA: u8 = 0;
const ERROR: u8 = 1;
/// Opcodes of frames that are whole messages.
const BINARY: u8 = 0x82;
const PING: u8 = 0x89;
const CLOSE: u8 = 0x88;
/// Constant of the opening handshake (RFC 6455, 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The port that every pod is asked for.
const PORT: u16 = 19000;

/// Forwards bytes between a client and what listens at an address, until one of them ends.
pub(super) fn serve(mut client: &TcpStream, head: &str, to: SocketAddr) -> Option<()> {
    let key = header(head, "sec-websocket-key")?;
    let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    let accept = STANDARD.encode(accept);
    write!(
        client,
        "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    )
    .ok()?;
    for channel in [DATA, ERROR] {
        send(
            client,
            BINARY,
            &[&[channel], &PORT.to_le_bytes()[..]].concat(),
        )?;
    }
    let Ok(pod) = TcpStream::connect(to) else {
        let fault = b"cannot forward: connection refused";
        send(client, BINARY, &[&[ERROR], &fault[..]].concat())?;
        return None;
    };
    send(client, PING, b"alive?")?;
    thread::scope(|scope| {
        scope.spawn(|| from_pod(&pod, client));
        // Ends with the client, or with the close that the pod's end has brought it.
        while let Some((opcode, payload)) = receive(client) {
            let is_sent = match (opcode, payload.split_first()) {
                (BINARY, Some((&DATA, bytes))) => (&pod).write_all(bytes).is_ok(),
                (CLOSE, _) => false,
                // A pong.
                _ => true,
            };
            if !is_sent {
                break;
            }
        }
        // Fails only if it has ended.
        let _ = pod.shutdown(Shutdown::Both);
    });
    None
}

fn from_pod(mut pod: &TcpStream, client: &TcpStream) -> Option<()> {
    let mut message = [DATA; 1000];
    loop {
        let length = pod.read(&mut message[1..]).ok()?;
        if length == 0 {
            return send(client, CLOSE, &[]);
        }
        send(client, BINARY, &message[..=length])?;
    }
}

/// Sends a frame, which servers do not mask.
fn send(mut client: &TcpStream, opcode: u8, payload: &[u8]) -> Option<()> {
    let mut frame = vec![opcode];
    match u8::try_from(payload.len()) {
        Ok(length @ 0..=125) => frame.push(length),
        _ => {
            frame.push(126);
            frame.extend(u16::try_from(payload.len()).ok()?.to_be_bytes());
        }
    }
    frame.extend(payload);
    client.write_all(&frame).ok()
}

/// Receives a frame, which clients mask.
fn receive(mut client: &TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut take = |length: usize| {
        let mut bytes = vec![0; length];
        client.read_exact(&mut bytes).ok()?;
        Some(bytes)
    };
    let head = take(2)?;
    assert_ne!(head[1] & 0x80, 0, "a frame of a client is masked");
    let length = match head[1] & 0x7f {
        126 => {
            let length = take(2)?;
            usize::from(u16::from_be_bytes([length[0], length[1]]))
        }
        length => usize::from(length),
    };
    let mask = take(4)?;
    let payload = take(length)?.into_iter().zip(mask.iter().cycle());
    Some((head[0], payload.map(|(byte, mask)| byte ^ mask).collect()))
}
