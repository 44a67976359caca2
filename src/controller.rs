//! The loop: a snapshot is translated, built into a table, swapped in, bound and reported; then it waits for the next.
//! Owns the order of these steps and nothing else. What binds ports and what shows reports is given to it.

mod addresses;
pub mod cluster;
mod cluster_state;
mod confirmation;
mod expiry;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::dns::{Lookup, Names};
use crate::ir::BindReport;
use crate::provider::Load;
use crate::status::StatusReport;
use crate::table::Table;
use crate::translate::{Options, Translator};

/// How long a port that could not be bound is left alone before it is tried again.
const BIND_RETRY: Duration = Duration::from_secs(1);

/// How long a table that is no longer served is kept. A worker may still be looking into it, and whoever is the last to
/// let go of it frees what only it held: that must not be a worker amid a request.
const RETIREMENT: Duration = Duration::from_secs(1);

/// What a configuration came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was loaded, and what was wrong with it.
    pub load: Arc<Load>,
    /// Generation of the table that serves it.
    pub generation: u64,
    /// Conditions of its objects, after binding.
    pub report: Arc<StatusReport>,
    /// What became of its ports.
    pub binds: BindReport,
}

/// The loop's outputs.
pub struct Outputs<F, P> {
    /// What the data plane serves.
    pub table: Arc<ArcSwap<Table>>,
    /// Makes the open ports those of a table that is being served.
    pub follow: F,
    /// Takes note of an outcome that differs from the last.
    pub publish: P,
}

/// Runs until the provider is gone. `names` gives the addresses of backends at hostnames.
pub async fn run<L, F, P>(
    mut loads: watch::Receiver<Arc<Load>>,
    options: Options,
    mut names: Names<L>,
    mut outputs: Outputs<F, P>,
) where
    F: FnMut(&Table) -> BindReport,
    P: FnMut(Outcome),
    L: Lookup,
{
    let mut translator = Translator::new(options);
    let mut retired = None;
    loop {
        let load = loads.borrow_and_update().clone();
        let (unbound, replaced) = serve(&load, &mut translator, &mut names, &outputs.table);
        retired = replaced.or(retired);
        let mut report = Some(unbound);
        let table = outputs.table.load_full();
        let mut binds = (outputs.follow)(&table);
        while let Some(unbound) = report.take() {
            // Kept only while there is something to try again: a report is as large as the configuration.
            let incomplete = binds.values().any(Result::is_err);
            report = incomplete.then(|| unbound.clone());
            (outputs.publish)(Outcome {
                load: load.clone(),
                generation: table.generation,
                report: Arc::new(unbound.with_binds(&binds)),
                binds: binds.clone(),
            });
            tokio::select! {
                changed = loads.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                retried = retry(&binds, &table, &mut outputs.follow) => binds = retried,
                never = resolve(&mut names, &table) => match never {},
                never = release(&mut retired) => match never {},
            }
        }
    }
}

/// Translates a snapshot and puts it into service, unless what is served is the same already. Returns the table that was
/// replaced beside the report.
fn serve(
    load: &Load,
    translator: &mut Translator,
    names: &mut Names<impl Lookup>,
    current: &ArcSwap<Table>,
) -> (StatusReport, Option<Arc<Table>>) {
    let previous = current.load_full();
    let translation = translator.translate(&load.snapshot, Some(&previous.ir));
    // Equal parts are the same nodes, which are not looked into.
    if translation.ir == *previous.ir && previous.generation > 0 {
        return (translation.report, None);
    }
    let table = Table::build(Arc::new(translation.ir), Some(&previous));
    let backends = table.ir.backends.iter();
    names.follow(backends.filter_map(|backend| backend.endpoints.hostname()));
    table.set_addresses(|name| names.addresses(name));
    current.store(Arc::new(table));
    (translation.report, Some(previous))
}

/// Keeps the endpoints of backends at hostnames what their names resolve to. They sit in cells of the table's backends, so
/// that no other part of the table changes.
async fn resolve(names: &mut Names<impl Lookup>, table: &Table) -> Infallible {
    loop {
        names.changed().await;
        table.set_addresses(|name| names.addresses(name));
    }
}

/// Frees a retired table after a while.
async fn release(retired: &mut Option<Arc<Table>>) -> Infallible {
    if retired.is_some() {
        sleep(RETIREMENT).await;
        *retired = None;
    }
    std::future::pending().await
}

/// Tries ports that could not be bound again until something has changed; for ever if there are none.
async fn retry(
    binds: &BindReport,
    table: &Table,
    follow: &mut impl FnMut(&Table) -> BindReport,
) -> BindReport {
    if binds.values().all(Result::is_ok) {
        return std::future::pending().await;
    }
    loop {
        sleep(BIND_RETRY).await;
        let report = follow(table);
        if report != *binds {
            return report;
        }
    }
}
