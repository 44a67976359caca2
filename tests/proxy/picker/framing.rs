//! A model server that tells how each request is framed and whether its body is whole, and returns that body.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::origin::{Origin, Payload, full};

/// A request as a model server gets it.
pub(super) struct Seen {
    pub(super) path: String,
    /// Whether it is a POST whose body exactly one header frames. HTTP/2 needs none.
    pub(super) is_sound: bool,
    /// `None` if it has broken off.
    pub(super) body: Option<Bytes>,
}

type Tell = mpsc::UnboundedSender<Seen>;

/// Starts the server.
pub(super) async fn observed_model() -> (Origin, mpsc::UnboundedReceiver<Seen>) {
    let (tell, seen) = mpsc::unbounded_channel();
    let origin = Origin::raw(move |stream| serve(stream, tell.clone())).await;
    (origin, seen)
}

async fn serve(stream: TcpStream, tell: Tell) {
    let mut first = [0; 3];
    // `PRI` begins HTTP/2. An error of a connection is that of its requests.
    let _ = stream.peek(&mut first).await;
    if &first == b"PRI" {
        let service = service_fn(move |request| http2(request, tell.clone()));
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    } else {
        let mut stream = BufStream::new(stream);
        while http1(&mut stream, &tell).await.is_some() {}
    }
}

async fn http2(request: Request<Incoming>, tell: Tell) -> Result<Response<Payload>, Infallible> {
    let (head, body) = request.into_parts();
    let count = |name: HeaderName| head.headers.get_all(name).iter().count();
    let is_sound = count(CONTENT_LENGTH) <= 1 && count(TRANSFER_ENCODING) == 0;
    let body = body.collect().await.ok().map(|body| body.to_bytes());
    let seen = Seen {
        path: head.uri.path().to_owned(),
        is_sound,
        body: body.clone(),
    };
    // An error: the test has ended.
    let _ = tell.send(seen);
    Ok(Response::new(full(body.unwrap_or_default())))
}

/// Serves a request. Bytes that are left over begin the next one. `None` if the connection is of no more use.
async fn http1(stream: &mut BufStream<TcpStream>, tell: &Tell) -> Option<()> {
    let first = line(stream).await?;
    let mut framing = Vec::new();
    loop {
        let header = line(stream).await?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if header.starts_with("content-length:") || header.starts_with("transfer-encoding:") {
            framing.push(header.replace(' ', ""));
        }
    }
    let body = match framing.as_slice() {
        [only] => read(stream, only).await.map(Bytes::from),
        _ => None,
    };
    let seen = Seen {
        path: first.split(' ').nth(1).unwrap_or_default().to_owned(),
        is_sound: first.starts_with("POST ") && framing.len() == 1,
        body: body.clone(),
    };
    // An error: the test has ended.
    let _ = tell.send(seen);
    let body = body?;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&body).await.ok()?;
    stream.flush().await.ok()
}

/// Reads a body that this header frames; `None` if it breaks off.
async fn read(stream: &mut BufStream<TcpStream>, framing: &str) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    if let Some(length) = framing.strip_prefix("content-length:") {
        body.resize(length.parse().ok()?, 0);
        stream.read_exact(&mut body).await.ok()?;
        return Some(body);
    }
    if framing != "transfer-encoding:chunked" {
        return None;
    }
    loop {
        let size = usize::from_str_radix(&line(stream).await?, 16).ok()?;
        let begin = body.len();
        body.resize(begin + size, 0);
        stream.read_exact(&mut body[begin..]).await.ok()?;
        let end = line(stream).await?;
        match (end.is_empty(), size) {
            (false, _) => return None,
            (true, 0) => return Some(body),
            (true, _) => {}
        }
    }
}

/// Returns the next line without its end; `None` if there is no whole one.
async fn line(stream: &mut BufStream<TcpStream>) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.strip_suffix("\r\n").map(str::to_owned)
}
