//! The arguments of `portcullis shift`, and which combinations of them are wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use super::change::{Change, Percent, RequestedWeight};
use super::cluster::Mode;
use super::object_name::ObjectName;
use crate::cli::admin_client::AdminUrl;
use crate::cli::output::OutputFlag;
use crate::cli::value::Span;
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
    pub(super) name: ObjectName,
    /// Weights from 0 to 1000000, such as v2=10; or the share of one release, such as v2=10%
    #[arg(value_name = "RELEASE=WEIGHT|PERCENT%")]
    pub(super) changes: Vec<Change>,
    /// Add releases that spec.releases does not list
    #[arg(long, requires = "changes")]
    pub(super) add: bool,
    /// Take over weights from other field managers
    #[arg(long, requires = "changes")]
    pub(super) force: bool,
    /// Send every change as a dry run, and change nothing
    #[arg(long, requires = "changes", conflicts_with = "watch")]
    pub(super) dry_run: bool,
    /// Print requests and errors of each release every second, until a signal
    #[arg(long)]
    pub(super) watch: bool,
    /// End --watch after this time
    #[arg(long = "for", value_name = "DURATION", requires = "watch")]
    pub(super) length: Option<Span>,
    /// Time over which --watch computes rates
    #[arg(long, value_name = "DURATION", requires = "watch", default_value_t = Span(Duration::from_secs(30)))]
    pub(super) window: Span,
    /// Roll back if more than this share of the requests to a shifted release has a status of 5xx, with at least 100
    /// requests in the window
    #[arg(long, value_name = "PERCENT%", requires_all = ["watch", "changes"])]
    pub(super) abort_above: Option<Percent>,
    /// Read metrics from the pods of this Gateway only; may be repeated [default: pods of all Gateways]
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "watch")]
    pub(super) gateway: Vec<NamespacedName>,
    /// Read metrics from this admin address, such as http://127.0.0.1:19000, instead of pods; may be repeated
    #[arg(
        long,
        value_name = "URL",
        requires = "watch",
        conflicts_with = "gateway"
    )]
    pub(super) admin: Vec<AdminUrl>,
    /// Format of the output.
    #[command(flatten)]
    pub(super) format: OutputFlag,
}

impl Args {
    /// Returns an error in the combination of arguments, which parsing of single values does not detect.
    pub(super) fn wrong_usage(&self) -> Option<&'static str> {
        let shares = self
            .changes
            .iter()
            .filter(|it| matches!(it.target, RequestedWeight::Share(_)));
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

    pub(super) fn mode(&self) -> Mode {
        Mode {
            force: self.force,
            dry_run: self.dry_run,
        }
    }
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
