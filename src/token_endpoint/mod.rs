//! Asks OpenID providers for tokens: for codes of sign-ins, and for sessions whose tokens end soon. Runs on a thread of its own,
//! once something is asked. Must not know requests, cookies or how sessions are sealed.

mod error;
mod grant;
mod refreshes;
mod room;
mod session;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, timeout};

use self::grant::Granted;
use self::refreshes::{Joined, Outcome, Refreshes};
use self::room::{Entered, Room};
use self::session::renewed;
use crate::dns::{AllowedAddresses, SystemLookup};
use crate::https::{HttpsClient, HttpsError};
use crate::ir::ObjectRef;
use crate::runtime::monotonic;
use crate::table::{Attempt, GrantType, Oidc, Session, TokenOutcome};

pub use self::error::TokenError;
pub use self::grant::{Code, TokenResponse};
pub use self::session::{SessionFault, begin};

/// Timeout of a request, from the lookup of the name to the end of the response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// Time between two messages about a policy, in milliseconds, and number of policies of which that is known.
const MESSAGE_PERIOD: u64 = 10_000;
const MAX_MESSAGES: usize = 256;
/// Time between two looks for sessions that were refreshed long ago.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Asks for tokens. Cheap to clone.
#[derive(Clone)]
pub struct TokenClient(Arc<Inner>);

struct Inner {
    https: HttpsClient<SystemLookup>,
    /// The queue of the thread, once it runs.
    queue: Mutex<Option<mpsc::UnboundedSender<Job>>>,
    room: Arc<Room>,
    refreshes: Arc<Mutex<Refreshes>>,
    /// When a message about a policy was written, in milliseconds of the monotonic clock.
    messages: Mutex<VecDeque<(ObjectRef, u64)>>,
}

type Job = BoxFuture<'static, ()>;

impl fmt::Debug for TokenClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenClient").finish_non_exhaustive()
    }
}

impl TokenClient {
    /// Creates it. Requests go to public addresses and to those that are `allowed`.
    pub fn new(lookup: SystemLookup, allowed: AllowedAddresses) -> Self {
        Self(Arc::new(Inner {
            https: HttpsClient::new(lookup, allowed),
            queue: Mutex::default(),
            room: Arc::default(),
            refreshes: Arc::default(),
            messages: Mutex::default(),
        }))
    }

    /// Returns the tokens for the code of a sign-in.
    ///
    /// # Errors
    /// When there are none.
    pub async fn exchange(
        &self,
        oidc: &Arc<Oidc>,
        client: IpAddr,
        code: Code,
    ) -> Result<TokenResponse, TokenError> {
        let (attempt, entered) = self.0.admit(oidc, GrantType::Code, client)?;
        let (sender, receiver) = oneshot::channel();
        let (inner, oidc) = (self.0.clone(), oidc.clone());
        self.0.run(Box::pin(async move {
            let _entered = entered;
            let tokens = inner.ask(&oidc, &Granted::Code(code), attempt).await;
            if let Err(error) = &tokens {
                oidc.token_endpoint.count(GrantType::Code, error.outcome());
            }
            // The client may have left.
            let _ = sender.send(tokens);
        }))?;
        receiver.await.unwrap_or(Err(TokenError::Unavailable))
    }

    /// Returns a session with new tokens. Requests of one session share what the provider responds, also those that come
    /// with the old session soon after.
    ///
    /// # Errors
    /// When there are none. The next request may ask again, after some seconds.
    pub async fn refresh(
        &self,
        oidc: &Arc<Oidc>,
        session: &Arc<Session>,
        client: IpAddr,
    ) -> Outcome {
        let refresh_token = session.content.refresh_token.as_deref();
        let refresh_token = refresh_token.ok_or(TokenError::Denied)?;
        let policy = &oidc.ir.policy;
        let key = refreshes::key(policy, refresh_token);
        let joined = {
            let enter = || self.0.admit(oidc, GrantType::RefreshToken, client);
            lock(&self.0.refreshes).join(
                &policy.namespace,
                (key, session.size()),
                monotonic::now().get(),
                enter,
            )
        };
        let mut outcome = match joined? {
            Joined::Known(outcome) => outcome,
            Joined::New(outcome, sender, (attempt, entered)) => {
                let (inner, oidc, session) = (self.0.clone(), oidc.clone(), session.clone());
                self.0.run(Box::pin(async move {
                    let _entered = entered;
                    let outcome = inner.renew(&oidc, &session, attempt).await;
                    let counted = outcome.as_ref().err();
                    let counted = counted.map_or(TokenOutcome::Issued, |error| error.outcome());
                    oidc.token_endpoint.count(GrantType::RefreshToken, counted);
                    let size = outcome.as_ref().map_or(0, |session| session.size());
                    sender.send_replace(Some(outcome));
                    lock(&inner.refreshes).finish(&oidc.ir.policy.namespace, &key, size);
                }))?;
                outcome
            }
        };
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(TokenError::Unavailable)),
            Err(_) => Err(TokenError::Unavailable),
        }
    }
}

impl Inner {
    /// Runs a job on the thread, which starts with the first one. It ends with the last client.
    fn run(&self, job: Job) -> Result<(), TokenError> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let job = match &*queue {
            None => job,
            Some(sender) => match sender.send(job) {
                Ok(()) => return Ok(()),
                Err(unsent) => unsent.0,
            },
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        start(receiver, self.refreshes.clone()).map_err(|error| {
            tracing::error!("cannot start the thread that asks OpenID providers: {error}");
            TokenError::Unavailable
        })?;
        let sent = sender.send(job);
        *queue = Some(sender);
        sent.map_err(|_| TokenError::Unavailable)
    }

    /// Admits a request to the provider of a policy, for a client.
    fn admit(
        &self,
        oidc: &Oidc,
        grant: GrantType,
        client: IpAddr,
    ) -> Result<(Attempt, Entered), TokenError> {
        let attempt = oidc.token_endpoint.admit(monotonic::now().get());
        let admitted = attempt.map_err(TokenError::Deferred).and_then(|attempt| {
            let entered = self.room.enter(&oidc.ir.policy.namespace, client);
            Ok((attempt, entered.ok_or(TokenError::Busy)?))
        });
        admitted.inspect_err(|error| oidc.token_endpoint.count(grant, error.outcome()))
    }

    /// Asks the provider of a policy.
    async fn ask(
        &self,
        oidc: &Oidc,
        granted: &Granted,
        attempt: Attempt,
    ) -> Result<TokenResponse, TokenError> {
        let oidc = &oidc.ir;
        let Some(endpoints) = &oidc.endpoints else {
            return Err(TokenError::Unavailable);
        };
        let request = grant::request(oidc, endpoints, granted).ok_or(TokenError::Invalid)?;
        let uri = &endpoints.token;
        let sent = self.https.send(uri, &oidc.authorities, request, MAX_BODY);
        let sent = timeout(TIMEOUT, sent).await;
        match &sent {
            Ok(Ok(response)) if is_away(response.status) => attempt.failed(monotonic::now().get()),
            Ok(Ok(_) | Err(HttpsError::TooLong)) => attempt.responded(),
            _ => attempt.failed(monotonic::now().get()),
        }
        let (error, problem) = match sent {
            Ok(Ok(response)) => match grant::read(&response) {
                Ok(tokens) => return Ok(tokens),
                Err((TokenError::Denied, _)) => return Err(TokenError::Denied),
                Err(failed) => failed,
            },
            Ok(Err(HttpsError::Refused(problem) | HttpsError::Unreachable(problem))) => {
                self.https.on_failure();
                (TokenError::Unavailable, problem)
            }
            Ok(Err(HttpsError::TooLong)) => {
                let problem = format!("the response has more than {} KiB", MAX_BODY / 1024);
                (TokenError::Invalid, problem)
            }
            Err(_) => {
                let problem = format!("no response within {} s", TIMEOUT.as_secs());
                (TokenError::Unavailable, problem)
            }
        };
        self.report(&oidc.policy, oidc.issuer(), &problem);
        Err(error)
    }

    /// Refreshes a session.
    async fn renew(&self, oidc: &Oidc, session: &Session, attempt: Attempt) -> Outcome {
        let refresh_token = session.content.refresh_token.clone().unwrap_or_default();
        let granted = Granted::RefreshToken(refresh_token);
        let tokens = self.ask(oidc, &granted, attempt).await?;
        let renewed = renewed(oidc, session, tokens, now()).map_err(|problem| {
            self.report(&oidc.ir.policy, oidc.ir.issuer(), problem);
            TokenError::Invalid
        });
        renewed.map(Arc::new)
    }

    /// Writes a message about a provider, once in a while for each policy. It has no text of a response.
    fn report(&self, policy: &ObjectRef, issuer: &str, problem: &str) {
        let now = monotonic::now().get();
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.retain(|(_, at)| now.saturating_sub(*at) < MESSAGE_PERIOD);
        if messages.len() < MAX_MESSAGES && !messages.iter().any(|(it, _)| it == policy) {
            messages.push_back((policy.clone(), now));
            tracing::warn!("{policy}: the token endpoint of {issuer}: {problem}");
        }
    }
}

/// Reports whether a status says that the provider is not available, rather than something about a request: clients choose the
/// codes.
fn is_away(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn lock(refreshes: &Mutex<Refreshes>) -> MutexGuard<'_, Refreshes> {
    refreshes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(
    mut jobs: mpsc::UnboundedReceiver<Job>,
    refreshes: Arc<Mutex<Refreshes>>,
) -> std::io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let thread = thread::Builder::new().name("token-endpoint".to_owned());
    let run = move || {
        runtime.block_on(async {
            let mut sweeps = interval(SWEEP_INTERVAL);
            loop {
                tokio::select! {
                    job = jobs.recv() => match job {
                        Some(job) => drop(tokio::spawn(job)),
                        None => return,
                    },
                    _ = sweeps.tick() => lock(&refreshes).sweep(monotonic::now().get()),
                }
            }
        });
        // A pending DNS lookup must not delay the exit.
        runtime.shutdown_background();
    };
    thread.spawn(run).map(drop)
}

/// Returns the time in seconds since 1970.
pub fn now() -> u64 {
    since_epoch().as_secs()
}

/// Returns the time in microseconds since 1970.
pub fn now_micros() -> u64 {
    since_epoch().as_micros().try_into().unwrap_or(u64::MAX)
}

fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
