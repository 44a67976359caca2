//! A running controller: each replica watches the cluster, and the leader also writes. Owns the
//! order of startup and shutdown.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use imbl::OrdSet;
use kube::Client;
use kube::core::GroupVersionKind;
use tokio::sync::{mpsc, watch};

use super::announce::Announced;
pub use super::controller_settings::{ControllerSettings, StreamSettings};
use super::election::ElectionThread;
use super::stream::StreamThread;
use super::supervised::{Supervised, Tasks};
use crate::admin::{AdminState, AdminThread, TokenFile};
use crate::api::Kind;
use crate::cluster::api_server;
use crate::cluster::client::ApiServer;
use crate::cluster::events;
use crate::cluster::events::{Events, Publisher};
use crate::control::cluster;
use crate::control::cluster::{Inputs, Outputs, PodSettings};
use crate::ir::ObjectRef;
use crate::provider::file::Locations;
use crate::provider::{Load, Observed, Observer};
use crate::provision::{self, ClassUsage, DesiredState, Failures};
use crate::runtime::shutdown;
use crate::runtime::shutdown::Shutdown;
use crate::settings::Drain;
use crate::settings::controller_name::ControllerName;
use crate::status::lease::{self, Leadership};
use crate::status::stored::{Stored, StoredStatus};
use crate::status::writer::{self, Statuses, Writer};
use crate::status::{SUPPORTED_FEATURES, StatusReport};
use crate::stream;
use crate::stream::hub::Reports;
use crate::table::Table;
use crate::telemetry::metrics::ControllerStats;
use crate::telemetry::{AccessLog, ProcessStats};

/// Deadline of the shutdown, within which the Lease is released. There is nothing to drain.
const END: Drain = Drain {
    delay: Duration::ZERO,
    deadline: Duration::from_secs(5),
};

/// Runs the controller until a signal starts a shutdown.
///
/// # Errors
/// When the cluster configuration is missing, or the admin address or signal handlers cannot be set
/// up.
pub fn run(settings: &ControllerSettings) -> anyhow::Result<()> {
    if settings.controller_name != ControllerName::default() {
        api_server::identify(settings.controller_name.as_arc());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (trigger, shutdown) = shutdown::new(END);
    let settings = settings.clone();
    let control = Supervised::spawn("control", move || {
        let result = runtime.block_on(control(&settings, shutdown));
        // A pending DNS lookup must not delay the exit.
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    })?;
    let tasks = Tasks {
        // Without effect, since there is no folder to reload and no file to reopen.
        reload: mpsc::channel(1).0,
        on_user_signal: || {},
        starting: || None,
    };
    control.supervise(&trigger, tasks)
}

async fn control(settings: &ControllerSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    let (stored, mut changes) = Stored::new();
    let stored = Arc::new(stored);
    let api_server = ApiServer::from_environment().await?;
    let client = api_server.client()?;
    let stats = Arc::new(ControllerStats::default());
    let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
    let mut state = AdminState::new(
        table,
        ProcessStats {
            controller: Some(stats.clone()),
            ..ProcessStats::default()
        },
        AccessLog::disabled(),
    );
    state.token = TokenFile::open(settings.admin_token_file.as_deref())?;
    let state = Arc::new(state);
    let mut terminating = shutdown.clone();
    let _admin = match settings.admin {
        Some(address) => Some(
            AdminThread::start(address, state.clone(), shutdown)
                .with_context(|| format!("cannot serve on the admin address {address}"))?,
        ),
        None => None,
    };
    let (events, mut publisher) = events::channel(&settings.identity);
    let channels = Channels::new(events);
    let mut election =
        ElectionThread::start(settings, api_server.clone(), channels.leadership.clone())?;
    let mut stream = StreamThread::start(
        settings,
        api_server,
        Arc::new(StoredStatuses(stored.clone())),
        state.clone(),
        channels.leadership.subscribe(),
        stats.stream.clone(),
        terminating.clone(),
    )?;
    let (outputs, reports) = (stream.outputs.clone(), stream.reports.clone());
    let mut has_failed = false;
    tokio::select! {
        biased;
        () = terminating.terminating() => {}
        () = election.ended() => has_failed = !terminating.is_terminating(),
        // Polled before `lead`, so that a new leader knows the CRD version that it writes.
        () = crate::provider::watch_bundle_version(&client, &channels.bundle_version) => {}
        () = run_control_loop(&outputs, reports, settings, &channels, &state) => {}
        () = lead(&client, settings, &channels, stored, &stats, &mut changes, &mut publisher) => {}
        () = stream.ended() => has_failed = !terminating.is_terminating(),
    }
    election.resign().await;
    anyhow::ensure!(
        !has_failed,
        "the election or the configuration stream has ended"
    );
    Ok(())
}

/// Channels between the parts of a controller.
struct Channels {
    leadership: watch::Sender<Leadership>,
    desired: watch::Sender<Option<Arc<DesiredState>>>,
    failures: watch::Sender<Failures>,
    wants_nodes: watch::Sender<bool>,
    nodes: watch::Sender<BTreeSet<IpAddr>>,
    statuses: watch::Sender<Option<Statuses>>,
    class_usage: watch::Sender<ClassUsage>,
    bundle_version: watch::Sender<Option<String>>,
    serving: watch::Sender<OrdSet<ObjectRef>>,
    events: Events,
}

impl Channels {
    fn new(events: Events) -> Self {
        Self {
            events,
            leadership: watch::Sender::default(),
            desired: watch::Sender::default(),
            failures: watch::Sender::default(),
            wants_nodes: watch::Sender::default(),
            nodes: watch::Sender::default(),
            statuses: watch::Sender::default(),
            class_usage: watch::Sender::default(),
            bundle_version: watch::Sender::default(),
            serving: watch::Sender::default(),
        }
    }
}

/// Runs the control loop from the first complete snapshot on.
async fn run_control_loop(
    stream: &stream::Outputs,
    reports: watch::Receiver<Reports>,
    settings: &ControllerSettings,
    channels: &Channels,
    state: &AdminState,
) {
    let mut published = stream.published.subscribe();
    if published.changed().await.is_err() {
        return;
    }
    let options = settings.options();
    let mut announced = Announced::default();
    let inputs = Inputs {
        published,
        reports,
        nodes: channels.nodes.subscribe(),
        failures: channels.failures.subscribe(),
        ca_bundle: stream.trust.bundle.subscribe(),
        leadership: channels.leadership.subscribe(),
        bundle_version: channels.bundle_version.subscribe(),
    };
    let outputs = Outputs {
        desired: channels.desired.clone(),
        wants_nodes: channels.wants_nodes.clone(),
        statuses: channels.statuses.clone(),
        serving: channels.serving.clone(),
        events: channels.events.clone(),
        class_usage: channels.class_usage.clone(),
        publish: |load: &Arc<Load>, report: Option<&Arc<StatusReport>>| {
            let report = report.cloned().unwrap_or_default();
            // Objects of a cluster are in no file.
            announced.announce(load, &report, &Locations::default());
            state.report.store(report);
            state.ready.store(true, Release);
        },
    };
    let pods = PodSettings {
        image: settings.image.clone(),
        controller_url: settings.stream.url.to_string(),
        arguments: pod_arguments(settings),
    };
    cluster::run(inputs, options, &pods, outputs).await;
}

/// Returns the command-line arguments that pass the controller's settings to all pods of Gateways.
fn pod_arguments(settings: &ControllerSettings) -> Vec<String> {
    let allowed = settings.allowed_external_addresses.iter();
    let allowed: Vec<_> = allowed.map(ToString::to_string).collect();
    let mut arguments = settings.permissions.flags();
    arguments.extend(settings.controller_name.flag());
    if !allowed.is_empty() {
        arguments.push(format!("--allow-external-address={}", allowed.join(",")));
    }
    // Pods ask OpenID providers for tokens.
    let allowed = settings.allowed_jwks_addresses.iter();
    let allowed: Vec<_> = allowed.map(ToString::to_string).collect();
    if !allowed.is_empty() {
        arguments.push(format!("--allow-jwks-address={}", allowed.join(",")));
    }
    arguments
}

/// Runs the leader's tasks while this replica is the leader.
async fn lead(
    client: &Client,
    settings: &ControllerSettings,
    channels: &Channels,
    stored: Arc<Stored>,
    stats: &Arc<ControllerStats>,
    changes: &mut mpsc::UnboundedReceiver<ObjectRef>,
    publisher: &mut Publisher,
) {
    let writer = Writer {
        client: client.clone(),
        controller: settings.controller_name.as_arc().clone(),
        features: SUPPORTED_FEATURES,
        stored,
        stats: stats.clone(),
        events: channels.events.clone(),
    };
    let mut leadership = channels.leadership.subscribe();
    loop {
        tokio::select! {
            // The senders outlive this function, so that an error is impossible.
            _ = leadership.wait_for(Leadership::may_act) => {}
            // Discards changes, since a new leader compares every object.
            () = writer::discard(changes) => {}
        }
        stats.leading.store(true, Relaxed);
        let inputs = provision::Inputs {
            desired: channels.desired.subscribe(),
            serving: channels.serving.subscribe(),
        };
        let tasks = async {
            tokio::select! {
                () = writer.run(channels.statuses.subscribe(), changes) => {}
                () = provision::reconcile(client, inputs, &channels.failures, settings.rollouts, &channels.events) => {}
                () = publisher.run(client) => {}
                () = provision::watch_nodes(client, channels.wants_nodes.subscribe(), &channels.nodes) => {}
                () = provision::keep_finalizers(client, channels.class_usage.subscribe()) => {}
                () = stream::trust::maintain(client, &settings.namespace) => {}
            }
        };
        lease::lead(&mut leadership, tasks).await;
        stats.leading.store(false, Relaxed);
    }
}

/// Passes the stored statuses that the provider observes to the status writer.
struct StoredStatuses(Arc<Stored>);

impl Observer for StoredStatuses {
    fn served(&self, kind: &'static Kind, is_experimental: bool) {
        let experimental = kind.experimental.filter(|_| is_experimental);
        let name = experimental.map(|it| GroupVersionKind::gvk(it.group, it.version, it.kind));
        self.0.served(kind.kind, name);
    }

    fn observed(&self, object: &ObjectRef, observed: Observed) {
        let status = StoredStatus::new(&observed.resource_version, &observed.status())
            .with_owner(observed.is_status_ours);
        self.0.observed(object, status);
    }

    fn deleted(&self, object: &ObjectRef) {
        self.0.deleted(object);
    }
}
