//! Leader election and status writer against an API server in this process: conflicts, overload,
//! slow and lost responses, two candidates, deleted objects. Uses the real lease durations, so that
//! a test takes some seconds.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../api_server/mod.rs"]
mod api;
mod events;
mod experimental;
mod lease;
mod release_backend;
mod writer;

use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kube::config::AuthInfo;
use kube::{Client, Config};
use portcullis::cluster::client::ApiServer;
use tokio::runtime::{Builder, Runtime};

use crate::api::Api;

/// Timeout of any wait on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Values with the time of observation.
type Entries<T> = Vec<(Instant, T)>;

/// Observed values and their times.
struct History<T>(Arc<(Mutex<Entries<T>>, Condvar)>);

impl<T> Clone for History<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone + Debug> History<T> {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(Vec::new()), Condvar::new())))
    }

    fn push(&self, seen: T) {
        self.0.0.lock().unwrap().push((Instant::now(), seen));
        self.0.1.notify_all();
    }

    fn all(&self) -> Vec<(Instant, T)> {
        self.0.0.lock().unwrap().clone()
    }

    /// Waits for a matching value after `skip` others.
    fn wait_for(&self, skip: usize, wanted: impl Fn(&T) -> bool) -> (Instant, T) {
        let find = |seen: &Vec<(Instant, T)>| {
            let mut rest = seen.iter().skip(skip);
            rest.find(|(_, one)| wanted(one)).cloned()
        };
        let is_missing = |seen: &mut Vec<(Instant, T)>| find(seen).is_none();
        let waited =
            self.0
                .1
                .wait_timeout_while(self.0.0.lock().unwrap(), TEST_TIMEOUT, is_missing);
        let (seen, _) = waited.unwrap();
        find(&seen).unwrap_or_else(|| panic!("only {seen:?}"))
    }
}

/// Returns the controller's client with this token.
fn client(api: &Api, token: &str) -> Client {
    let mut config = Config::new(api.url().parse().unwrap());
    config.auth_info = AuthInfo {
        token: Some(token.to_owned().into()),
        ..AuthInfo::default()
    };
    ApiServer::new(config).client().unwrap()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}
