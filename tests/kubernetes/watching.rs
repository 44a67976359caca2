//! The provider in this process, with a record of every published snapshot.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use kube::Config;
use portcullis::cluster::client::ApiServer;
use portcullis::provider::{KubernetesProvider, Load, Timing};
use tokio::sync::{oneshot, watch};

use crate::TEST_TIMEOUT;
use crate::api::Api;
use crate::harness::UNREACHED;

/// A provider that runs until the test ends.
pub(crate) struct Watching {
    history: Arc<(Mutex<Vec<Arc<Load>>>, Condvar)>,
    _end: oneshot::Sender<()>,
}

/// Shorter timeouts than those of a data plane.
pub(crate) const SHORT_TIMING: Timing = Timing {
    watch: 1,
    response_timeout: Duration::from_secs(2),
    stale_list_timeout: Duration::from_secs(2),
    fetch_wait: Duration::from_secs(2),
    removal_wait: Duration::from_secs(1),
};

impl Watching {
    pub(crate) fn start(api: &Api) -> Self {
        Self::start_with(Config::new(api.url().parse().unwrap()), |provider| provider)
    }

    /// Like [`Self::start`], where changes wait for what they refer to as long as it takes.
    pub(crate) fn patient(api: &Api) -> Self {
        Self::start_with(Config::new(api.url().parse().unwrap()), |provider| {
            provider.timed(Timing {
                fetch_wait: UNREACHED,
                ..Timing::default()
            })
        })
    }

    pub(crate) fn start_with(
        config: Config,
        adapt: impl FnOnce(KubernetesProvider) -> KubernetesProvider,
    ) -> Self {
        let history = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let seen = history.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let provider = {
            let _within = runtime.enter();
            adapt(KubernetesProvider::new(&ApiServer::new(config)).unwrap())
        };
        let (end, ended) = oneshot::channel();
        thread::spawn(move || {
            let (sender, mut loads) = watch::channel(Arc::<Load>::default());
            // On the same thread, so that it runs before the provider publishes the next snapshot.
            let record = async move {
                while loads.changed().await.is_ok() {
                    let load = loads.borrow_and_update().clone();
                    seen.0.lock().unwrap().push(load);
                    seen.1.notify_all();
                }
            };
            runtime.block_on(async {
                tokio::select! {
                    () = record => {}
                    () = provider.watch(sender, || {}, |_| {}) => {}
                    _ = ended => {}
                }
            });
        });
        Self { history, _end: end }
    }

    /// Returns all published snapshots.
    pub(crate) fn history(&self) -> Vec<Arc<Load>> {
        self.history.0.lock().unwrap().clone()
    }

    /// Waits until the last published snapshot is as wanted.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&Load) -> bool) -> Arc<Load> {
        let is_missing =
            |history: &mut Vec<Arc<Load>>| !history.last().is_some_and(|load| wanted(load));
        let history = self.history.0.lock().unwrap();
        let (history, waited) = self
            .history
            .1
            .wait_timeout_while(history, TEST_TIMEOUT, is_missing)
            .unwrap();
        let last = history.last().cloned();
        assert!(!waited.timed_out(), "still {last:?}");
        last.unwrap()
    }
}
