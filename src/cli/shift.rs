//! `portcullis shift`: changes the weights of the releases of a ReleaseBackend, with a separate field manager for each
//! release, and shows requests and errors of the releases.

mod args;
mod change;
mod cluster;
mod metrics;
mod object_name;
mod report;
mod scrape;
mod steps;
mod watch;
mod weights;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::error::ErrorKind;

use self::cluster::{Cluster, Mode, Observed};
use self::report::ShiftReport;
use self::steps::{apply_steps, command};
use self::watch::{Abort, WatchSettings};
use self::weights::{Plan, Step};
use super::output::{self, OutputFormat};

pub use self::args::Args;

/// Changes weights, and watches the releases if requested. `command` is the definition of the command line.
pub fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    if let Some(wrong) = args.wrong_usage() {
        command.error(ErrorKind::ValueValidation, wrong).exit();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(shift(args))
}

async fn shift(args: &Args) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.name).await?;
    let observed = cluster.read().await?;
    let plan = Plan::new(&observed.spec.releases, &args.changes, args.add)
        .map_err(|error| anyhow!("{}: {error}", args.name))?;
    let steps = plan.steps();
    let (uid, mode) = (&observed.uid, args.mode());
    apply_steps(
        &cluster,
        uid,
        &steps,
        Mode {
            dry_run: true,
            ..mode
        },
    )
    .await?;
    let changed = match args.dry_run {
        true => observed,
        false => write(args, &cluster, observed, &plan).await?,
    };
    let report = ShiftReport::new(args, &plan, &changed);
    match args.format.output {
        OutputFormat::Text => output::text(&report, &mut io::stdout())?,
        OutputFormat::Json => output::json(&report, &mut io::stdout())?,
    }
    if !args.watch {
        return Ok(ExitCode::SUCCESS);
    }
    if args.format.output == OutputFormat::Text {
        writeln!(io::stdout())?;
    }
    let rollback = plan.rollback();
    let above = args.abort_above.filter(|_| !rollback.is_empty());
    let abort = above.map(|above| Abort {
        above,
        releases: plan.shifted(),
        rollback,
        mode,
    });
    let settings = WatchSettings {
        name: &args.name,
        gateways: &args.gateway,
        admin: &args.admin,
        length: args.length.map(|length| length.0),
        window: args.window.0,
        format: args.format.output,
        abort,
    };
    watch::watch(&cluster, changed, &settings).await
}

/// Applies a plan after its dry run. If a weight is refused after others were applied, rolls those back.
async fn write(
    args: &Args,
    cluster: &Cluster,
    observed: Observed,
    plan: &Plan,
) -> anyhow::Result<Observed> {
    let (steps, uid) = (plan.steps(), observed.uid.clone());
    let mut latest = observed;
    for (at, step) in steps.iter().enumerate() {
        match apply_steps(cluster, &uid, std::slice::from_ref(step), args.mode()).await {
            Ok(applied) => latest = applied.unwrap_or(latest),
            Err(error) if at == 0 => return Err(error),
            Err(error) => {
                let is_written = |(name, _): &&Step| steps[..at].iter().any(|(it, _)| it == name);
                let rollback: Vec<Step> =
                    plan.rollback().iter().filter(is_written).cloned().collect();
                let undone = apply_steps(cluster, &uid, &rollback, args.mode()).await;
                let back = command(&args.name, &rollback);
                let state = match undone {
                    Ok(_) => "The weights that were changed before are rolled back".to_owned(),
                    Err(undo) => format!(
                        "The weights that were changed before cannot be rolled back ({undo:#}): run {back}"
                    ),
                };
                bail!("{error:#}. {state}");
            }
        }
    }
    Ok(latest)
}
