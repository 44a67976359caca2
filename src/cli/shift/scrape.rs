//! Reads the counts of releases from the pods of Gateways, or from admin addresses.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::{StreamExt, stream};

use crate::cli::admin_client::{self, AdminUrl};
use crate::cli::pods::{CONCURRENT_PAGES, GatewayPod, within_time};
use crate::settings::NamespacedName;

use super::cluster::Cluster;
use super::metrics::{Counts, parse};
use super::object_name::ObjectName;

/// Time between lists of pods. After a list all pods are read, and otherwise only those of Gateways that use the
/// backend.
const LIST_PERIOD: Duration = Duration::from_secs(10);

/// Reads the counts of all sources.
pub(super) struct Scraper<'a> {
    cluster: &'a Cluster,
    backend: &'a ObjectName,
    gateways: &'a [NamespacedName],
    admin: &'a [AdminUrl],
    pods: Vec<GatewayPod>,
    /// Namespace and label value of the Gateways whose pods have counts of the backend.
    users: BTreeSet<(String, String)>,
    listed: Option<Instant>,
}

/// The result of reading all sources.
#[derive(Default)]
pub(super) struct Scrape {
    /// By source.
    pub(super) counts: Vec<(String, Counts)>,
    /// Number of sources that were read.
    pub(super) read: usize,
    /// Errors of the other sources.
    pub(super) failures: Vec<String>,
}

impl<'a> Scraper<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        backend: &'a ObjectName,
        gateways: &'a [NamespacedName],
        admin: &'a [AdminUrl],
    ) -> Self {
        Self {
            cluster,
            backend,
            gateways,
            admin,
            pods: Vec::new(),
            users: BTreeSet::new(),
            listed: None,
        }
    }

    /// Reads all sources.
    pub(super) async fn scrape(&mut self) -> Scrape {
        if self.admin.is_empty() {
            return self.scrape_pods().await;
        }
        let pages = stream::iter(self.admin).map(|url| async move {
            let page = within_time(metrics(url)).await;
            let page = page.and_then(|page| page.map_err(|error| format!("{error:#}")));
            (url.to_string(), page)
        });
        let pages: Vec<_> = pages.buffer_unordered(CONCURRENT_PAGES).collect().await;
        let mut scrape = Scrape::default();
        for (source, page) in pages {
            match page {
                Ok(page) => {
                    scrape.read += 1;
                    scrape
                        .counts
                        .extend(self.parse(&page).map(|counts| (source, counts)));
                }
                Err(error) => scrape.failures.push(format!("{source}: {error}")),
            }
        }
        scrape
    }

    async fn scrape_pods(&mut self) -> Scrape {
        let mut scrape = Scrape::default();
        let is_listing = self.listed.is_none_or(|at| at.elapsed() >= LIST_PERIOD);
        if is_listing {
            match self.cluster.pods(self.gateways).await {
                Ok(pods) => {
                    self.pods = pods;
                    self.listed = Some(Instant::now());
                }
                Err(error) => scrape.failures.push(format!("{error:#}")),
            }
        }
        let wanted = self
            .pods
            .iter()
            .filter(|pod| is_listing || self.is_relevant(pod));
        let cluster = self.cluster;
        let pages =
            stream::iter(wanted).map(|pod| async move { (pod, cluster.metrics(pod).await) });
        let pages: Vec<_> = pages.buffer_unordered(CONCURRENT_PAGES).collect().await;
        let mut users = BTreeSet::new();
        let mut failed = Vec::new();
        for (pod, page) in pages {
            match page.map(|page| self.parse(&page)) {
                Ok(Some(counts)) => {
                    users.insert(gateway(pod));
                    scrape.read += 1;
                    scrape.counts.push((pod.uid.clone(), counts));
                }
                Ok(None) => {}
                Err(error) => failed.push((pod, error)),
            }
        }
        failed.sort();
        // Failures of pods whose Gateway does not use the backend are not reported.
        let is_unknown = users.is_empty() && self.users.is_empty();
        let is_loss =
            |pod: &GatewayPod| is_unknown || self.is_relevant(pod) || users.contains(&gateway(pod));
        let lost = failed.iter().filter(|(pod, _)| is_loss(pod));
        let lost = lost.map(|(pod, error)| format!("{}/{}: {error}", pod.namespace, pod.name));
        scrape.failures.extend(lost);
        self.users.extend(users);
        scrape
    }

    /// Whether a pod may have counts of the backend.
    fn is_relevant(&self, pod: &GatewayPod) -> bool {
        !self.gateways.is_empty() || self.users.contains(&gateway(pod))
    }

    fn parse(&self, page: &str) -> Option<Counts> {
        parse(page, self.backend)
    }
}

fn gateway(pod: &GatewayPod) -> (String, String) {
    (pod.namespace.clone(), pod.gateway.clone())
}

/// Reads the metrics of an admin address.
async fn metrics(url: &AdminUrl) -> anyhow::Result<String> {
    let page = admin_client::get(url, "/metrics", None).await?;
    if !page.status.is_success() {
        bail!("status {}", page.status.as_u16());
    }
    Ok(page.body)
}
