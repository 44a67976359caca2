//! A connection to a port of a pod through the API server, as `kubectl port-forward` makes it, without a local port:
//! `v4.channel.k8s.io` over a WebSocket.

mod frames;

use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};

use self::frames::{BINARY, CLOSE, DATA, Frames, Message, PONG, of_client};
use crate::cluster::api_server::describe;
use crate::upstream::accept_of;

/// The protocol of port forwarding over a WebSocket.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Number of bytes that wait between the pod and the client.
const BUFFER: usize = 64 << 10;
/// Maximum size of a frame to the pod.
const CHUNK: usize = 16 << 10;
/// Maximum size of a refusal of the API server.
const REFUSAL_LIMIT: usize = 64 << 10;

/// Why a connection has ended before its time. Set before its end is seen.
pub(super) type Fault = Arc<OnceLock<String>>;

/// A connection to a port of a pod. The pod sees a client on its loopback.
pub(super) struct PortForward {
    pub(super) stream: DuplexStream,
    pub(super) fault: Fault,
}

/// Connects to a port of a pod, which is named after its namespace.
///
/// # Errors
/// Why the API server does not permit it. That the pod does not listen is known later, as the fault of the connection.
pub(super) async fn connect(
    client: &Client,
    (namespace, pod): (&str, &str),
    port: u16,
) -> Result<PortForward, String> {
    let key = STANDARD.encode(rand::random::<[u8; 16]>());
    let request = Request::get(format!(
        "/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
    ));
    let request = request
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key)
        .header(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let response = client.send(request).await;
    let response = response.map_err(|error| describe(&error))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await);
    }
    let is =
        |name: HeaderName, value: &str| response.headers().get(name).is_some_and(|it| it == value);
    let accept = accept_of(key.as_bytes());
    if !is(SEC_WEBSOCKET_ACCEPT, &accept) || !is(SEC_WEBSOCKET_PROTOCOL, PROTOCOL) {
        return Err(format!("the API server does not speak {PROTOCOL}"));
    }
    let upgraded = hyper::upgrade::on(response).await;
    let upgraded = upgraded.map_err(|error| describe(&error))?;
    let (stream, other) = duplex(BUFFER);
    let fault = Fault::default();
    // Ends with either side.
    tokio::spawn(forward(TokioIo::new(upgraded), other, fault.clone()));
    Ok(PortForward { stream, fault })
}

/// Returns the reason in a response that is no WebSocket.
async fn refusal(response: Response<Body>) -> String {
    let status = response.status();
    let body = Limited::new(response.into_body(), REFUSAL_LIMIT);
    let body = body.collect().await.ok();
    let refusal = body.and_then(|body| serde_json::from_slice::<Status>(&body.to_bytes()).ok());
    match refusal {
        Some(refusal) => describe(&kube::Error::Api(refusal.boxed())),
        None => format!("status {}", status.as_u16()),
    }
}

async fn forward<S>(socket: S, mut client: DuplexStream, fault: Fault)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = exchange(socket, &mut client).await {
        // It is set once only.
        drop(fault.set(error));
    }
}

/// Exchanges bytes until one side ends.
async fn exchange<S>(mut socket: S, client: &mut DuplexStream) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut frames = Frames::default();
    let mut chunk = vec![DATA; CHUNK];
    loop {
        while let Some(message) = frames.message()? {
            match message {
                Message::Data(bytes) => {
                    if client.write_all(&bytes).await.is_err() {
                        // The client has enough.
                        return Ok(());
                    }
                }
                Message::Fault(fault) => return Err(fault),
                Message::Ping(payload) => send(&mut socket, PONG, &payload).await?,
                Message::Close => return Ok(()),
            }
        }
        tokio::select! {
            read = socket.read_buf(&mut frames.bytes) => match read {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            },
            // The first byte is the channel.
            read = client.read(&mut chunk[1..]) => match read {
                Ok(end @ 1..) => send(&mut socket, BINARY, &chunk[..=end]).await?,
                // The server may have gone first.
                Ok(0) | Err(_) => return send(&mut socket, CLOSE, &[]).await.or(Ok(())),
            },
        }
    }
}

async fn send<S>(socket: &mut S, opcode: u8, payload: &[u8]) -> Result<(), String>
where
    S: AsyncWrite + Unpin,
{
    let frame = of_client(opcode, payload, rand::random());
    let sent = async {
        socket.write_all(&frame).await?;
        socket.flush().await
    };
    sent.await.map_err(|error| error.to_string())
}
