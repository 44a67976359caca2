//! The session of one connected pod: sends the objects of its Gateway, their changes and the
//! leader's address at the pod's pace. Has no queue: a slow pod gets the latest state later.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::encode;
use super::hub::{Hub, Next, Session};
use crate::status::lease::Leadership;
use crate::wire::{ReadyPods, SessionSecrets, Update};

/// How long a pod may not read while there is something to send. It keeps what it was sent, and resumes from there.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Least bytes a second of a state, or of the changes since one, that a pod has to read once that time is over. Meanwhile, the
/// session holds objects that others may no longer need.
const LEAST_RATE: usize = 256 * 1024;

/// Inputs of a session besides the feed.
pub(super) struct SessionInputs {
    /// Revisions of the Gateway's objects; closed when the Gateway is deleted.
    pub(super) revisions: watch::Receiver<u64>,
    /// Ready pods of the Gateway, without the name of this one.
    pub(super) pods: watch::Receiver<Arc<ReadyPods>>,
    /// Current leader.
    pub(super) leadership: watch::Receiver<Leadership>,
    /// Secrets of the Gateway's session tokens.
    pub(super) session_secret: Option<SessionSecrets>,
}

/// The session has ended: the receiver is dropped, the pod does not read, or the Gateway is deleted.
struct Ended;

/// Sends until the receiver of `lines` is dropped or the Gateway is deleted. `have` is the pod's
/// revision.
pub(super) async fn run(
    hub: &Arc<Hub>,
    session: &Session,
    mut inputs: SessionInputs,
    have: Option<u64>,
    lines: mpsc::Sender<Bytes>,
) {
    let sender = Sender {
        hub,
        session,
        session_secret: inputs.session_secret.take(),
        lines,
    };
    let _: Result<(), Ended> = sender.run(&mut inputs, have).await;
}

struct Sender<'a> {
    hub: &'a Arc<Hub>,
    session: &'a Session,
    session_secret: Option<SessionSecrets>,
    lines: mpsc::Sender<Bytes>,
}

impl Sender<'_> {
    async fn run(&self, inputs: &mut SessionInputs, mut have: Option<u64>) -> Result<(), Ended> {
        let mut has_begun = false;
        loop {
            inputs.revisions.borrow_and_update();
            let next = self.hub.next(&self.session.gateway, have);
            if !has_begun && !matches!(next, Next::FullState(..)) {
                self.begin(have).await?;
            }
            let revision = match next {
                Next::Current => have,
                Next::Changes(changes, revision) => {
                    self.send_all(changes.into_iter().map(|change| change.text()))
                        .await?;
                    self.send_update(&Update::Commit { revision }).await?;
                    Some(revision)
                }
                Next::FullState(objects, revision) => {
                    self.begin(None).await?;
                    self.send_all(encode::full_state(&objects)).await?;
                    self.send_update(&Update::Commit { revision }).await?;
                    Some(revision)
                }
                Next::Gone => return Ok(()),
            };
            have = revision;
            if !has_begun {
                has_begun = true;
                inputs.leadership.mark_changed();
                inputs.pods.mark_changed();
            }
            self.wait(inputs).await?;
        }
    }

    /// Waits until there may be an update to send. Sends leader changes meanwhile.
    async fn wait(&self, inputs: &mut SessionInputs) -> Result<(), Ended> {
        loop {
            tokio::select! {
                () = self.lines.closed() => return Err(Ended),
                changed = inputs.revisions.changed() => return changed.map_err(|_| Ended),
                Ok(()) = inputs.leadership.changed() => {
                    let address = inputs.leadership.borrow_and_update().leader_address.clone();
                    self.send_update(&Update::Leader { address }).await?;
                }
                Ok(()) = inputs.pods.changed() => {
                    let mut pods = (**inputs.pods.borrow_and_update()).clone();
                    // Without ready pods, the pod keeps to those that it knows.
                    if !pods.ready.is_empty() {
                        pods.own.clone_from(&self.session.pod);
                        self.send_update(&Update::Pods(pods)).await?;
                    }
                }
            }
        }
    }

    async fn begin(&self, base: Option<u64>) -> Result<(), Ended> {
        let instance = self.hub.instance().to_owned();
        self.send_update(&Update::Begin { instance, base }).await?;
        match self.session_secret.clone() {
            Some(secrets) => self.send_update(&Update::SessionSecret(secrets)).await,
            None => Ok(()),
        }
    }

    async fn send_update(&self, update: &Update) -> Result<(), Ended> {
        self.place().await?.send(encode::update(update));
        Ok(())
    }

    /// Sends lines that belong together. Those that the pod has not read are a part in the channel and one in the response:
    /// no other part is encoded before there is a place for it.
    async fn send_all(&self, mut all: impl Iterator<Item = Bytes>) -> Result<(), Ended> {
        let (began, mut sent) = (Instant::now(), 0);
        loop {
            let place = self.place().await?;
            let longest = READ_TIMEOUT + Duration::from_secs((sent / LEAST_RATE) as u64);
            if began.elapsed() > longest {
                let seconds = began.elapsed().as_secs();
                return Err(self.too_slow(&format!("has read {sent} bytes in {seconds} s")));
            }
            let Some(lines) = all.next() else {
                return Ok(());
            };
            sent += lines.len();
            place.send(lines);
        }
    }

    /// Waits until the pod has read enough for further lines.
    async fn place(&self) -> Result<mpsc::Permit<'_, Bytes>, Ended> {
        match timeout(READ_TIMEOUT, self.lines.reserve()).await {
            Ok(place) => place.map_err(|_| Ended),
            Err(_) => {
                let seconds = READ_TIMEOUT.as_secs();
                Err(self.too_slow(&format!("has not read its stream for {seconds} s")))
            }
        }
    }

    fn too_slow(&self, how: &str) -> Ended {
        let Session { gateway, pod, .. } = self.session;
        tracing::warn!("pod {pod} of {gateway} {how}");
        Ended
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;
    use crate::api::Kind;
    use crate::ir::ObjectRef;
    use crate::snapshot::Snapshot;
    use crate::translate::Options;

    /// A route of more than a chunk.
    fn long_route(name: &str) -> serde_json::Value {
        let matches = |rule: usize| {
            let values = (0..8).map(|number| format!("/{rule}/{number}/{}", "a".repeat(1_000)));
            let matches = values.map(|it| json!({"path": {"type": "PathPrefix", "value": it}}));
            matches.collect::<Vec<_>>()
        };
        let rules = (0..16).map(|rule| json!({"matches": matches(rule)}));
        json!({
            "metadata": {"namespace": "infra", "name": name},
            "spec": {"parentRefs": [{"name": "edge"}], "rules": rules.collect::<Vec<_>>()},
        })
    }

    /// Returns a hub with the Gateway `infra/edge`.
    fn hub() -> Arc<Hub> {
        let options = Options {
            controller_name: "example.com/ours".into(),
            ..Options::default()
        };
        let hub = Hub::new("5f2c".to_owned(), options);
        let mut cluster = Snapshot::default();
        let class = json!({
            "metadata": {"name": "ours"}, "spec": {"controllerName": "example.com/ours"},
        });
        let gateway = json!({
            "metadata": {"namespace": "infra", "name": "edge"},
            "spec": {
                "gatewayClassName": "ours",
                "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
            },
        });
        let routes = (0..10).map(|number| ("HTTPRoute", long_route(&number.to_string())));
        let others = [("GatewayClass", class), ("Gateway", gateway)];
        for (kind, object) in others.into_iter().chain(routes) {
            let kind = Kind::find("gateway.networking.k8s.io/v1", kind).unwrap();
            cluster.insert(kind.decode(&object).unwrap());
        }
        hub.follow(&cluster);
        Arc::new(hub)
    }

    /// Runs the session of a pod of the Gateway.
    async fn serve(lines: mpsc::Sender<Bytes>) {
        let hub = hub();
        let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
        let connected = hub.connect(&gateway, "pod", "uid").unwrap();
        let (_leadership, led) = watch::channel(Leadership::default());
        let inputs = SessionInputs {
            revisions: connected.revisions,
            pods: connected.pods,
            leadership: led,
            session_secret: None,
        };
        run(&hub, &connected.session, inputs, None, lines).await;
    }

    /// Reports whether a pod gets the whole state that rests after each chunk.
    async fn is_complete(rest: Duration) -> bool {
        let (lines, mut body) = mpsc::channel::<Bytes>(1);
        let reading = async {
            while let Some(lines) = body.recv().await {
                if lines.windows(8).any(|it| it == b"\"commit\"") {
                    return;
                }
                tokio::time::sleep(rest).await;
            }
        };
        tokio::select! {
            () = serve(lines) => false,
            () = reading => true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_of_a_pod_that_reads_slowly_ends() {
        assert!(is_complete(Duration::from_millis(100)).await);
        assert!(!is_complete(READ_TIMEOUT / 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn session_of_a_pod_that_does_not_read_ends() {
        let (lines, mut body) = mpsc::channel(1);
        serve(lines).await;
        assert!(body.recv().await.is_some());
        assert!(body.recv().await.is_none(), "one chunk is held");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_encoded_before_there_is_a_place_for_it() {
        let hub = hub();
        let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
        let connected = hub.connect(&gateway, "pod", "uid").unwrap();
        let (lines, _body) = mpsc::channel(1);
        let sender = Sender {
            hub: &hub,
            session: &connected.session,
            session_secret: None,
            lines,
        };
        let encoded = Cell::new(0);
        let all = (0..9).map(|_| {
            encoded.set(encoded.get() + 1);
            Bytes::from_static(b"a line")
        });
        assert!(sender.send_all(all).await.is_err());
        assert_eq!(encoded.get(), 1);
    }
}
