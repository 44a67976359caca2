//! Requests of HTTP/3, which share connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{anyhow, bail};
use bytes::{BufMut as _, Bytes};
use futures_util::future::join_all;
use h3::client::{RequestStream, SendRequest};
use h3::error::StreamError;
use http::header::{CONTENT_LENGTH, HeaderName, TRAILER, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use quinn::Connection;
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;

use crate::connect::Connector;
use crate::message::{Answer, Cancel, Connect, Interim, Request, fields};
use crate::within;

type Opener = SendRequest<h3_quinn::OpenStreams, Bytes>;
type Sender = RequestStream<h3_quinn::SendStream<Bytes>, Bytes>;
type Receiver = RequestStream<h3_quinn::RecvStream, Bytes>;

pub(crate) struct Requests {
    connector: Rc<Connector>,
    /// By server name and port.
    connections: Mutex<HashMap<(String, u16), (Connection, Opener)>>,
    /// By the ids of requests that wait to be cancelled.
    cancels: RefCell<HashMap<u64, Rc<Notify>>>,
}

impl Requests {
    pub(crate) fn new(connector: Rc<Connector>) -> Self {
        Self {
            connector,
            connections: Mutex::default(),
            cancels: RefCell::default(),
        }
    }

    pub(crate) fn cancel(&self, id: u64) {
        if let Some(cancelled) = self.cancels.borrow_mut().remove(&id) {
            cancelled.notify_one();
        }
    }

    /// Sends a request as often as it says. Fails if the answers are not equal.
    pub(crate) async fn run(&self, id: u64, request: &Request) -> Answer {
        let attempts = (0..request.together.max(1)).map(|_| self.attempt(id, request));
        let mut answers = join_all(attempts).await;
        let summary = |it: &Answer| format!("{} {} {}", it.status, it.digest, it.error);
        let first = answers.swap_remove(0);
        let unequal = answers.iter().find(|it| summary(it) != summary(&first));
        match unequal {
            Some(other) => Answer::failed(&anyhow!(
                "several answers: {}, {}",
                summary(&first),
                summary(other)
            )),
            None => first,
        }
    }

    async fn attempt(&self, id: u64, request: &Request) -> Answer {
        let (mut answer, cancelled) = (Answer::default(), Rc::new(Notify::new()));
        if request.cancel == Cancel::Waiting {
            self.cancels.borrow_mut().insert(id, cancelled.clone());
        }
        // A stream that is dropped is stopped. `stop_sending` of h3-quinn panics while a read is pending.
        let result = tokio::select! {
            result = within(self.exchange(request, &mut answer)) => result,
            () = cancelled.notified() => Err(anyhow!("cancelled")),
        };
        if let Err(error) = result {
            answer.fail(&error);
        }
        answer
    }

    async fn exchange(&self, request: &Request, answer: &mut Answer) -> anyhow::Result<()> {
        let (head, trailers) = (head(request)?, trailers(request)?);
        let mut opener = self.opener(request).await?;
        let (sender, receiver) = opener.send_request(head).await?.split();
        let responds = Notify::new();
        // A server that needs no more of a request stops it, and responds: how the request ends is what the response says.
        let (_, received) = tokio::join!(
            send(request, trailers, sender, &responds),
            receive(request, receiver, &responds, answer),
        );
        received
    }

    /// The opener of the one connection for all requests with this server name and port.
    async fn opener(&self, request: &Request) -> anyhow::Result<Opener> {
        let mut connections = self.connections.lock().await;
        let key = (request.name.clone(), request.port);
        if let Some((connection, opener)) = connections.get(&key)
            && connection.close_reason().is_none()
        {
            return Ok(opener.clone());
        }
        let to = Connect::new(request.port, &request.name, "h3");
        let connection = self.connector.connect(&to).await?;
        let (mut driver, opener) =
            h3::client::new(h3_quinn::Connection::new(connection.clone())).await?;
        spawn_local(async move { driver.wait_idle().await });
        connections.insert(key, (connection, opener.clone()));
        Ok(opener)
    }
}

fn head(request: &Request) -> anyhow::Result<http::Request<()>> {
    let mut head = http::Request::builder()
        .method(request.method.as_str())
        .uri(format!("https://{}{}", request.host, request.path))
        .header(USER_AGENT, "test");
    for (name, value) in &request.headers {
        head = head.header(name.as_str(), value.as_str());
    }
    let mut names: Vec<_> = request.trailers.iter().map(|it| it.0.as_str()).collect();
    if !names.is_empty() {
        names.sort_unstable();
        head = head.header(TRAILER, names.join(","));
    }
    let has_content = matches!(request.method.as_str(), "POST" | "PUT" | "PATCH");
    if request.sized && (has_content || !request.body.is_empty()) {
        head = head.header(CONTENT_LENGTH, request.body.len());
    }
    Ok(head.body(())?)
}

fn trailers(request: &Request) -> anyhow::Result<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for (name, value) in &request.trailers {
        let name = HeaderName::try_from(name.as_str())?;
        trailers.append(name, HeaderValue::try_from(value.as_str())?);
    }
    Ok(trailers)
}

/// Sends what follows the head of a request. A body that is expected to be asked for waits until the server `responds`.
async fn send(
    request: &Request,
    trailers: HeaderMap,
    mut sender: Sender,
    responds: &Notify,
) -> Result<(), StreamError> {
    if request.headers.iter().any(|(name, _)| name == "expect") {
        responds.notified().await;
    }
    if !request.body.is_empty() {
        sender.send_data(request.body.clone()).await?;
    }
    if !trailers.is_empty() {
        sender.send_trailers(trailers).await?;
    }
    sender.finish().await
}

async fn receive(
    request: &Request,
    mut receiver: Receiver,
    responds: &Notify,
    answer: &mut Answer,
) -> anyhow::Result<()> {
    let head = loop {
        let head = receiver.recv_response().await;
        responds.notify_one();
        let head = head?;
        if !head.status().is_informational() {
            break head;
        }
        answer.interim.push(Interim {
            status: head.status().as_u16(),
            headers: fields(head.headers()),
        });
    };
    answer.status = head.status().as_u16();
    answer.headers = fields(head.headers());
    let mut body = Vec::new();
    while read(&mut receiver, &mut body).await? {
        if request.cancel == Cancel::Reading {
            bail!("cancelled");
        }
    }
    if let Some(trailers) = receiver.recv_trailers().await? {
        answer.trailers = fields(&trailers);
    }
    answer.contents(&body);
    Ok(())
}

/// Adds a part to a body. False at its end.
async fn read(receiver: &mut Receiver, body: &mut Vec<u8>) -> Result<bool, StreamError> {
    match receiver.recv_data().await? {
        Some(part) => {
            body.put(part);
            Ok(true)
        }
        None => Ok(false),
    }
}
