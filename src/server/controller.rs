//! A running controller, wired together: one thread that watches the cluster and, while it leads, writes to it. Owns the
//! order of starting and leaving.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use anyhow::Context;
use arc_swap::ArcSwap;
use ipnet::IpNet;
use kube::Client;
use tokio::sync::{mpsc, watch};

use super::announce::Announced;
use super::stream::StreamThread;
use crate::admin::{self, AdminState};
use crate::controller::cluster::{self, Inputs, Outputs, PodSettings};
use crate::events::{self, Events, Publisher};
use crate::ir::ObjectRef;
use crate::permissions::Permissions;
use crate::provider::{KubernetesProvider, Load, Observed, Observer};
use crate::provision::{self, ClassUsage, DesiredState, Failures, RolloutOptions};
use crate::settings::{ControllerUrl, Drain};
use crate::shutdown;
use crate::status::lease::{Candidate, Leadership};
use crate::status::stored::{Stored, StoredStatus};
use crate::status::writer::{Statuses, Writer};
use crate::status::{SUPPORTED_FEATURES, StatusReport};
use crate::stream;
use crate::stream::hub::Reports;
use crate::table::Table;
use crate::telemetry::metrics::ControllerStats;
use crate::telemetry::{AccessLog, ProcessStats};
use crate::translate::{Mode, Options};

/// Name of the Lease that controllers campaign for.
const LEASE: &str = "portcullis-controller";

/// Static configuration of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Where health, metrics and conditions are shown; `None` turns that off.
    pub admin: Option<SocketAddr>,
    /// Image of data planes whose parameters name none.
    pub image: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of this controller among those that campaign for the Lease.
    pub identity: String,
    /// Where pods get their configuration.
    pub stream: StreamSettings,
    /// Addresses beside public ones that names of XBackends may resolve to in pods.
    pub allowed_external_addresses: Vec<IpNet>,
    /// How changes of the controller itself reach Gateways.
    pub rollouts: RolloutOptions,
    /// What objects may do, here and in the pods of Gateways.
    pub permissions: Permissions,
}

impl ControllerSettings {
    /// What objects are translated with, here and in the pods of Gateways.
    pub(super) fn options(&self) -> Options {
        Options {
            mode: Mode::Dedicated,
            permissions: self.permissions.clone(),
            ..Options::default()
        }
    }
}

/// Static configuration of the stream to pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Where it is served.
    pub address: SocketAddr,
    /// What pods connect to; the host is the name in the serving certificate.
    pub url: ControllerUrl,
    /// Where pods reach this very replica, as `ADDRESS:PORT`; `None` when nobody knows.
    pub advertised: Option<String>,
}

/// Controls the Gateways of a cluster until the process is told to leave by a signal.
///
/// # Errors
/// When the cluster is not named, or the admin address or signals cannot be had.
pub fn run(settings: &ControllerSettings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(control(settings))
}

async fn control(settings: &ControllerSettings) -> anyhow::Result<()> {
    let (stored, mut changes) = Stored::new();
    let stored = Arc::new(stored);
    let client = KubernetesProvider::from_environment().await?.client();
    let stats = Arc::new(ControllerStats::default());
    let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
    let state = Arc::new(AdminState::new(
        table,
        ProcessStats {
            controller: Some(stats.clone()),
            ..ProcessStats::default()
        },
        AccessLog::disabled(),
    ));
    let (trigger, shutdown) = shutdown::new(Drain::default());
    let mut leaving = shutdown.clone();
    // There is no folder to read again.
    let (reload, _) = mpsc::channel(1);
    shutdown::on_signals(trigger, reload).context("signals cannot be watched")?;
    if let Some(address) = settings.admin {
        let listener = admin::bind(address).and_then(tokio::net::TcpListener::from_std);
        let listener =
            listener.with_context(|| format!("the admin address {address} cannot be bound"))?;
        tokio::spawn(admin::serve(listener, state.clone(), shutdown));
    }
    let mut candidate = Candidate::new(
        client.clone(),
        &settings.namespace,
        LEASE,
        &settings.identity,
        settings.stream.advertised.clone(),
    );
    let (events, mut publisher) = events::channel(&settings.identity);
    let channels = Channels::new(events);
    let mut stream = StreamThread::start(
        settings,
        Arc::new(Seen(stored.clone())),
        state.clone(),
        channels.leading.subscribe(),
        stats.stream.clone(),
        leaving.clone(),
    )?;
    let (outputs, reports) = (stream.outputs.clone(), stream.reports.clone());
    let mut has_failed = false;
    tokio::select! {
        // A process that has been suspended first learns that it is no longer the leader.
        biased;
        () = leaving.leaving() => {}
        () = candidate.campaign(&channels.leading) => {}
        // Polled before `lead`, so that a new leader knows the version that it writes.
        () = crate::provider::follow_bundle_version(&client, &channels.bundle_version) => {}
        () = follow(&outputs, reports, settings, &channels, &state) => {}
        () = lead(&client, settings, &channels, stored, &stats, &mut changes, &mut publisher) => {}
        () = stream.ended() => has_failed = !leaving.is_leaving(),
    }
    candidate.resign().await;
    anyhow::ensure!(!has_failed, "the configuration stream has ended");
    Ok(())
}

/// The channels between the parts of a controller.
struct Channels {
    leading: watch::Sender<Leadership>,
    needs: watch::Sender<Option<Arc<DesiredState>>>,
    failures: watch::Sender<Failures>,
    wants_nodes: watch::Sender<bool>,
    nodes: watch::Sender<BTreeSet<IpAddr>>,
    statuses: watch::Sender<Option<Statuses>>,
    uses: watch::Sender<ClassUsage>,
    bundle_version: watch::Sender<Option<String>>,
    serving: watch::Sender<BTreeSet<ObjectRef>>,
    events: Events,
}

impl Channels {
    fn new(events: Events) -> Self {
        Self {
            events,
            leading: watch::Sender::default(),
            needs: watch::Sender::default(),
            failures: watch::Sender::default(),
            wants_nodes: watch::Sender::default(),
            nodes: watch::Sender::default(),
            statuses: watch::Sender::default(),
            uses: watch::Sender::default(),
            bundle_version: watch::Sender::default(),
            serving: watch::Sender::default(),
        }
    }
}

/// Runs the loop, from the first whole snapshot on.
async fn follow(
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
        trusted: stream.trust.bundle.subscribe(),
        leading: channels.leading.subscribe(),
        bundle_version: channels.bundle_version.subscribe(),
    };
    let outputs = Outputs {
        needs: channels.needs.clone(),
        wants_nodes: channels.wants_nodes.clone(),
        statuses: channels.statuses.clone(),
        serving: channels.serving.clone(),
        events: channels.events.clone(),
        uses: channels.uses.clone(),
        publish: |load: &Arc<Load>, report: Option<&Arc<StatusReport>>| {
            let report = report.cloned().unwrap_or_default();
            announced.announce(load, &report);
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

/// The settings of the controller that are those of all pods of Gateways.
fn pod_arguments(settings: &ControllerSettings) -> Vec<String> {
    let allowed = settings.allowed_external_addresses.iter();
    let allowed: Vec<_> = allowed.map(ToString::to_string).collect();
    let mut arguments = settings.permissions.flags();
    if !allowed.is_empty() {
        arguments.push(format!("--allow-external-address={}", allowed.join(",")));
    }
    arguments
}

/// Does what only the leader does, whenever this is the leader.
async fn lead(
    client: &Client,
    settings: &ControllerSettings,
    channels: &Channels,
    stored: Arc<Stored>,
    stats: &Arc<ControllerStats>,
    changes: &mut mpsc::UnboundedReceiver<ObjectRef>,
    publisher: &mut Publisher,
) {
    let options = Options::default();
    let writer = Writer {
        client: client.clone(),
        controller: options.controller_name,
        features: SUPPORTED_FEATURES,
        stored,
        stats: stats.clone(),
    };
    let mut leading = channels.leading.subscribe();
    loop {
        tokio::select! {
            // The senders live as long as this.
            _ = leading.wait_for(|known| known.is_leader) => {}
            // What changes until then is looked at anew by then.
            () = async { while changes.recv().await.is_some() {} } => {}
        }
        stats.leading.store(true, Relaxed);
        let inputs = provision::Inputs {
            desired: channels.needs.subscribe(),
            serving: channels.serving.subscribe(),
        };
        tokio::select! {
            biased;
            _ = leading.wait_for(|known| !known.is_leader) => {}
            () = writer.run(channels.statuses.subscribe(), changes) => {}
            () = provision::reconcile(client, inputs, &channels.failures, settings.rollouts, &channels.events) => {}
            () = publisher.run(client) => {}
            () = provision::follow_nodes(client, channels.wants_nodes.subscribe(), &channels.nodes) => {}
            () = provision::keep_finalizers(client, channels.uses.subscribe()) => {}
            () = stream::trust::maintain(client, &settings.namespace) => {}
        }
        stats.leading.store(false, Relaxed);
    }
}

/// Hands the stored statuses that the provider sees to the status writer.
struct Seen(Arc<Stored>);

impl Observer for Seen {
    fn seen(&self, object: &ObjectRef, observed: Observed) {
        let status = StoredStatus::new(&observed.resource_version, &observed.status());
        self.0.seen(object, status);
    }

    fn gone(&self, object: &ObjectRef) {
        self.0.gone(object);
    }
}
