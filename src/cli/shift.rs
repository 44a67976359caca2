//! `portcullis shift`: changes the weights of the releases of a ReleaseBackend, with a separate field manager for each
//! release, and shows requests and errors of the releases.

mod change;
mod cluster;
mod metrics;
mod outcome;
mod scrape;
mod table;
mod watch;
mod weights;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::error::ErrorKind;

use self::change::{Change, Percent, Target};
use self::cluster::{ApplyError, Cluster, Mode, Observed};
use self::outcome::Outcome;
use self::scrape::AdminUrl;
use self::watch::{Abort, WatchSettings};
use self::weights::{Plan, Step};
use super::output::{self, OutputFlag, OutputFormat};
use super::value::Span;
use crate::settings::NamespacedName;

/// Shift requests between the releases of a ReleaseBackend.
///
/// Changes weights in spec.releases with server-side apply, with a separate field manager for each release
/// (portcullis-shift-RELEASE). Prints the weights before and after, and the command to roll back. Without a change it
/// prints the weights.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis shift shop/shop
  portcullis shift shop/shop v2=10%
  portcullis shift shop/shop v1=90 v2=10 --dry-run
  portcullis shift shop/shop v2=50% --watch --for 5m --abort-above 5%

A percentage is exact: the other listed releases keep their proportions, and weights are scaled if necessary.
Connects to the cluster of the kubeconfig, or else of the pod's service account.
With -o json, --watch prints a line for each second, after the line about the change.
Exit codes: 0 on success, 1 if the weights cannot be changed or rolled back, 2 for wrong usage, 3 after a rollback.")]
pub struct Args {
    /// The ReleaseBackend
    #[arg(value_name = "NAMESPACE/NAME")]
    name: ObjectName,
    /// Weights from 0 to 1000000, such as v2=10; or the share of one release, such as v2=10%
    #[arg(value_name = "RELEASE=WEIGHT|PERCENT%")]
    changes: Vec<Change>,
    /// Add releases that spec.releases does not list
    #[arg(long, requires = "changes")]
    add: bool,
    /// Take over weights from other field managers
    #[arg(long, requires = "changes")]
    force: bool,
    /// Send every change as a dry run, and change nothing
    #[arg(long, requires = "changes", conflicts_with = "watch")]
    dry_run: bool,
    /// Print requests and errors of each release every second, until a signal
    #[arg(long)]
    watch: bool,
    /// End --watch after this time
    #[arg(long = "for", value_name = "DURATION", requires = "watch")]
    length: Option<Span>,
    /// Time over which --watch computes rates
    #[arg(long, value_name = "DURATION", requires = "watch", default_value_t = Span(Duration::from_secs(30)))]
    window: Span,
    /// Roll back if more than this share of the requests to a shifted release has a status of 5xx, with at least 100
    /// requests in the window
    #[arg(long, value_name = "PERCENT%", requires_all = ["watch", "changes"])]
    abort_above: Option<Percent>,
    /// Read metrics from the pods of this Gateway only; may be repeated [default: pods of all Gateways]
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "watch")]
    gateway: Vec<NamespacedName>,
    /// Read metrics from this admin address, such as http://127.0.0.1:19000, instead of pods; may be repeated
    #[arg(
        long,
        value_name = "URL",
        requires = "watch",
        conflicts_with = "gateway"
    )]
    admin: Vec<AdminUrl>,
    /// Format of the output.
    #[command(flatten)]
    format: OutputFlag,
}

/// Namespace and name of a ReleaseBackend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectName {
    namespace: String,
    name: String,
}

impl FromStr for ObjectName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let NamespacedName { namespace, name } = text.parse()?;
        Ok(Self { namespace, name })
    }
}

impl ObjectName {
    fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseBackend {}", self.path())
    }
}

/// Changes weights, and watches the releases if requested.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(wrong) = args.wrong_usage() {
        super::command()
            .error(ErrorKind::ValueValidation, wrong)
            .exit();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(shift(args))
}

impl Args {
    /// Returns an error in the combination of arguments, which parsing of single values does not detect.
    fn wrong_usage(&self) -> Option<&'static str> {
        let shares = self
            .changes
            .iter()
            .filter(|it| matches!(it.target, Target::Share(_)));
        if shares.count() > 0 && self.changes.len() > 1 {
            return Some(
                "a percentage excludes other changes, because the other releases divide the rest by their weights; use \
                 weights to change several releases",
            );
        }
        let mut names = BTreeSet::new();
        if !self
            .changes
            .iter()
            .all(|change| names.insert(&change.release))
        {
            return Some("a release must not be named twice");
        }
        self.window
            .0
            .is_zero()
            .then_some("--window must be longer than 0s")
    }

    fn mode(&self) -> Mode {
        Mode {
            force: self.force,
            dry_run: self.dry_run,
        }
    }
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
    let outcome = Outcome::new(args, &plan, &changed);
    match args.format.output {
        OutputFormat::Text => print!("{outcome}"),
        OutputFormat::Json => output::json(&outcome, &mut io::stdout())?,
    }
    if !args.watch {
        return Ok(ExitCode::SUCCESS);
    }
    if args.format.output == OutputFormat::Text {
        println!();
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

/// Applies weights one after the other. Returns the object after the last apply.
async fn apply_steps(
    cluster: &Cluster,
    uid: &str,
    steps: &[Step],
    mode: Mode,
) -> anyhow::Result<Option<Observed>> {
    let mut latest = None;
    for (release, weight) in steps {
        let applied = cluster.apply(uid, release, *weight, mode).await;
        latest = Some(applied.map_err(|error| refused(release, &error))?);
    }
    Ok(latest)
}

fn refused(release: &str, error: &ApplyError) -> anyhow::Error {
    anyhow!("the weight of release {release} cannot be set: {error}")
}

/// Returns the command line that sets these weights.
fn command(name: &ObjectName, steps: &[Step]) -> String {
    let weights: Vec<_> = steps
        .iter()
        .map(|(release, weight)| format!("{release}={weight}"))
        .collect();
    format!("portcullis shift {} {}", name.path(), weights.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        let arguments = ["portcullis", "shift"].iter().chain(arguments);
        match <Cli as clap::Parser>::try_parse_from(arguments)?.command {
            Command::Shift(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parses_names_changes_and_flags() {
        let args = parse(&["shop/web", "v1=90", "v2=10", "--add", "--force"]).unwrap();
        assert_eq!(args.name.to_string(), "ReleaseBackend shop/web");
        assert_eq!(args.changes.len(), 2);
        assert!(args.add && args.force && !args.dry_run && !args.watch);
        assert_eq!(args.wrong_usage(), None);
        let watch = [
            "shop/web",
            "v2=10%",
            "--watch",
            "--for",
            "30s",
            "--abort-above",
            "5%",
        ];
        let args = parse(&watch).unwrap();
        assert_eq!(args.length, Some(Span(Duration::from_secs(30))));
        assert_eq!(args.abort_above, Some("5%".parse().unwrap()));
        assert_eq!(args.wrong_usage(), None);
        assert!(parse(&["shop/web", "--watch"]).is_ok());
    }

    #[test]
    fn rejects_conflicting_flags() {
        for arguments in [
            &["web"][..],
            &["Shop/web"],
            &["shop/web", "v2"],
            &["shop/web", "--add"],
            &["shop/web", "v2=1", "--for", "30s"],
            &["shop/web", "--watch", "--abort-above", "5%"],
            &["shop/web", "v2=1", "--watch", "--abort-above", "5"],
            &["shop/web", "v2=1", "--watch", "--dry-run"],
            &[
                "shop/web",
                "--watch",
                "--gateway",
                "a/b",
                "--admin",
                "http://c:1",
            ],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn rejects_contradicting_changes() {
        for (changes, part) in [
            (["v1=10%", "v2=10%"], "excludes other changes"),
            (["v1=10%", "v2=10"], "excludes other changes"),
            (["v1=10", "v1=20"], "twice"),
        ] {
            let args = parse(&["shop/web", changes[0], changes[1]]).unwrap();
            assert!(args.wrong_usage().unwrap().contains(part));
        }
        let args = parse(&["shop/web", "--watch", "--window", "0s"]).unwrap();
        assert!(args.wrong_usage().unwrap().contains("--window"));
    }
}
