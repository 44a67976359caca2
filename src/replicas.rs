//! What the replicas of data planes serve: asks each of them, and waits at each for its next answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ETAG, HOST, IF_NONE_MATCH};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::ir::ObjectRef;
use crate::settings::Settings;
use crate::status::Served;

/// Seconds that a replica may wait for its next answer.
const WAIT: u64 = 25;
/// The longest that connecting, or an answer beyond that wait, may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The first and the longest wait before a replica that cannot be reached is asked again.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;

/// One replica of a Gateway's data plane.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    /// The Gateway.
    pub gateway: ObjectRef,
    /// Where its admin server listens, at the port of [`Settings::ADMIN`].
    pub address: IpAddr,
}

/// What a replica has said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What it serves.
    Served(Arc<Served>),
    /// Nothing that can be understood, and why.
    Unreachable(Arc<str>),
}

/// The last answers of replicas; those that have not answered yet are not in it.
pub type Answers = BTreeMap<Replica, Answer>;

/// Asks the replicas that `wanted` names, for as long as it is polled, and keeps `answers` theirs.
pub async fn ask(mut wanted: watch::Receiver<BTreeSet<Replica>>, answers: &watch::Sender<Answers>) {
    answers.send_replace(Answers::new());
    let mut asked = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let replicas = wanted.borrow_and_update().clone();
        asked.retain(|replica, task: &mut tokio::task::AbortHandle| {
            let stays = replicas.contains(replica);
            if !stays {
                task.abort();
            }
            stays
        });
        answers.send_if_modified(|answers| {
            let before = answers.len();
            answers.retain(|replica, _| replicas.contains(replica));
            answers.len() < before
        });
        for replica in replicas {
            asked.entry(replica.clone()).or_insert_with(|| {
                let answers = answers.clone();
                tasks.spawn(keep_asking(replica, answers))
            });
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() {
                return;
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Asks one replica again and again.
async fn keep_asking(replica: Replica, answers: watch::Sender<Answers>) {
    let address = SocketAddr::new(replica.address, Settings::ADMIN.port());
    let mut wait = WAITS.0;
    let mut known = None;
    loop {
        let error = exchange(address, &mut known, |served| {
            wait = WAITS.0;
            tell(&answers, &replica, Answer::Served(served));
        })
        .await;
        // A connection that ends after an answer is only old.
        if let Err(error) = error {
            known = None;
            tell(&answers, &replica, Answer::Unreachable(error.into()));
            sleep(wait).await;
            wait = (wait * 2).min(WAITS.1);
        }
    }
}

fn tell(answers: &watch::Sender<Answers>, replica: &Replica, answer: Answer) {
    answers.send_if_modified(|answers| {
        let is_news = answers.get(replica) != Some(&answer);
        if is_news {
            answers.insert(replica.clone(), answer);
        }
        is_news
    });
}

/// Asks over one connection until it ends. An error means that it gave no answer at all.
async fn exchange(
    address: SocketAddr,
    known: &mut Option<HeaderValue>,
    mut tell: impl FnMut(Arc<Served>),
) -> Result<(), String> {
    let stream = timeout(TIMEOUT, TcpStream::connect(address));
    let stream = stream
        .await
        .map_err(|_| "no connection within 3 s".to_owned())?;
    let stream = stream.map_err(|error| error.to_string())?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let mut has_answered = false;
    let asking = async {
        loop {
            match ask_once(&mut sender, address, known).await {
                Ok(Some(served)) => tell(Arc::new(served)),
                Ok(None) => {}
                Err(_) if has_answered => return Ok(()),
                Err(error) => return Err(error),
            }
            has_answered = true;
        }
    };
    tokio::select! {
        asked = asking => asked,
        _ = connection => Err("the connection ended".to_owned()),
    }
    .or_else(|error| if has_answered { Ok(()) } else { Err(error) })
}

/// One question; `None` when the answer is what is known.
async fn ask_once(
    sender: &mut SendRequest<Empty<Bytes>>,
    address: SocketAddr,
    known: &mut Option<HeaderValue>,
) -> Result<Option<Served>, String> {
    let mut request =
        Request::get(format!("/served?wait={WAIT}")).header(HOST, address.to_string());
    if let Some(known) = known.as_ref() {
        request = request.header(IF_NONE_MATCH, known);
    }
    let request = request
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let answered = timeout(Duration::from_secs(WAIT) + TIMEOUT, async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        Ok::<_, hyper::Error>((head, body.map(http_body_util::Collected::to_bytes)))
    });
    let answered = answered.await.map_err(|_| "no answer".to_owned())?;
    let (head, body) = answered.map_err(|error| error.to_string())?;
    match head.status {
        StatusCode::NOT_MODIFIED => Ok(None),
        StatusCode::OK => {
            let body = body.map_err(|error| error.to_string())?;
            let served = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
            *known = head.headers.get(ETAG).cloned();
            Ok(Some(served))
        }
        status => Err(format!("it answers {status}")),
    }
}
