//! The control loop: translates a snapshot, builds and swaps the table, binds ports, reports, and
//! waits for the next snapshot. Owns only the order of these steps. The caller supplies the code
//! that binds ports and publishes reports.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::dns::{Lookup, Names};
use crate::ir::{BindReport, Pattern};
use crate::provider::Load;
use crate::status::{BoundReport, StatusReport};
use crate::table::Table;
use crate::translate::{Options, Translator};

/// Delay before a failed bind is retried.
const BIND_RETRY: Duration = Duration::from_secs(1);

/// Time for which a replaced table is kept. A worker may still use the table, and its last owner
/// frees the parts that only it holds. A worker must not do that in the middle of a request.
const RETIRE_DELAY: Duration = Duration::from_secs(1);

/// Interval at which the memory of keys of limits that are no longer in use returns.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// A configuration in service: what was loaded, and the result of binding its ports.
#[derive(Clone, Debug)]
pub struct ServedConfiguration {
    /// The loaded objects and the problems found while loading.
    pub load: Arc<Load>,
    /// Generation of the table that serves this configuration.
    pub generation: u64,
    /// Conditions of all objects, after binding.
    pub report: Arc<StatusReport>,
    /// Result of binding each port.
    pub binds: BindReport,
}

/// Outputs of the loop.
pub struct Outputs<F, P> {
    /// The table in service.
    pub table: Arc<ArcSwap<Table>>,
    /// Opens the ports of a table, closes all others, and returns the result of each bind.
    pub bind: F,
    /// Called with each new configuration.
    pub publish: P,
}

/// Runs until the provider drops its sender. `names` resolves the hostnames of backends.
pub async fn run<L, F, P>(
    mut loads: watch::Receiver<Arc<Load>>,
    options: Options,
    mut names: Names<L>,
    mut outputs: Outputs<F, P>,
) where
    F: FnMut(&Table) -> BindReport,
    P: FnMut(ServedConfiguration),
    L: Lookup,
{
    let mut translator = Translator::new(options);
    let (mut retired, mut report) = (None, BoundReport::default());
    // Goes on when configurations change more often.
    let mut sweeps = interval(SWEEP_INTERVAL);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let load = loads.borrow_and_update().clone();
        let (unbound, replaced) = serve(&load, &mut translator, &mut names, &outputs.table);
        retired = replaced.or(retired);
        let table = outputs.table.load_full();
        let mut binds = (outputs.bind)(&table);
        loop {
            (outputs.publish)(ServedConfiguration {
                load: load.clone(),
                generation: table.generation,
                report: Arc::new(report.follow(unbound.clone(), &binds)),
                binds: binds.clone(),
            });
            tokio::select! {
                changed = loads.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                retried = retry(&binds, &table, &mut outputs.bind) => binds = retried,
                never = resolve(&mut names, &table) => match never {},
                never = release(&mut retired) => match never {},
                never = sweep(&mut sweeps, &table) => match never {},
            }
        }
    }
}

/// Translates a snapshot and swaps in its table, unless the IR is unchanged. Returns the report and
/// the replaced table.
fn serve(
    load: &Load,
    translator: &mut Translator,
    names: &mut Names<impl Lookup>,
    current: &ArcSwap<Table>,
) -> (StatusReport, Option<Arc<Table>>) {
    let previous = current.load_full();
    let translation = translator.translate(&load.snapshot, Some(&previous.ir));
    // Equal subtrees are shared, so this comparison is cheap.
    if translation.ir == *previous.ir && previous.generation > 0 {
        return (translation.report, None);
    }
    let mut table = Table::build(Arc::new(translation.ir), Some(&previous));
    let patterns = table.take_new_patterns();
    let backends = table.ir.backends.iter();
    // Before the swap, so that the first request finds the addresses that are already resolved.
    names.set(backends.filter_map(|backend| {
        let hostname = backend.endpoints.hostname()?;
        Some((&backend.id.object.namespace, hostname))
    }));
    table.set_addresses(|name| names.addresses(name));
    current.store(Arc::new(table));
    if !patterns.is_empty() {
        // Not here, where the changes of all wait for each other; a request that comes first compiles what it needs.
        tokio::task::spawn_blocking(move || patterns.iter().for_each(Pattern::compile));
    }
    (translation.report, Some(previous))
}

/// Updates the endpoints of backends with a hostname when its addresses change. Endpoints are cells
/// in the table's backends, and no other part of the table changes.
async fn resolve(names: &mut Names<impl Lookup>, table: &Table) -> Infallible {
    loop {
        names.changed().await;
        table.set_addresses(|name| names.addresses(name));
    }
}

/// Frees the replaced table after [`RETIRE_DELAY`].
async fn release(retired: &mut Option<Arc<Table>>) -> Infallible {
    if retired.is_some() {
        sleep(RETIRE_DELAY).await;
        *retired = None;
    }
    std::future::pending().await
}

/// Gives back the memory of keys of limits that are no longer in use, or beyond shares that others lack.
async fn sweep(times: &mut Interval, table: &Table) -> Infallible {
    loop {
        times.tick().await;
        table.sweep_limits();
    }
}

/// Retries failed binds until a result changes. Never returns if no bind has failed.
async fn retry(
    binds: &BindReport,
    table: &Table,
    bind: &mut impl FnMut(&Table) -> BindReport,
) -> BindReport {
    if binds.values().all(Result::is_ok) {
        return std::future::pending().await;
    }
    loop {
        sleep(BIND_RETRY).await;
        let report = bind(table);
        if report != *binds {
            return report;
        }
    }
}
