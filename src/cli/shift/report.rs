//! What a change of weights results in, as text or as JSON.

use std::fmt;

use serde::Serialize;

use super::args::Args;
use super::cluster::Observed;
use super::steps::command;
use super::weights::Plan;
use crate::api::release_backend::{BelowMinReady, Unlisted};
use crate::cli::table::{Table, header, percent, transition};

/// The releases before and after a change, with notes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShiftReport {
    releases: Vec<ChangedRelease>,
    notes: Vec<String>,
    dry_run: bool,
    /// The command line that restores the weights; `None` if nothing was changed.
    rollback: Option<String>,
}

/// A release before and after a change.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChangedRelease {
    name: String,
    /// Number of ready endpoints, if known.
    ready: Option<u32>,
    /// `None` if the release was not listed.
    weight_before: Option<u32>,
    weight: u32,
    /// In percent.
    share_before: String,
    share: String,
}

impl ShiftReport {
    pub(super) fn new(args: &Args, plan: &Plan, changed: &Observed) -> Self {
        let release = |release: &super::weights::PlannedRelease| {
            let (share_before, share) = plan.shares(release);
            ChangedRelease {
                name: release.name.clone(),
                ready: changed.release(&release.name).map(|it| it.ready),
                weight_before: release.before,
                weight: release.after,
                share_before,
                share,
            }
        };
        let steps = plan.rollback();
        let is_changed = !args.dry_run && !steps.is_empty();
        let mut notes = plan.notes.clone();
        notes.extend(warnings(plan, changed));
        if !args.dry_run {
            notes.extend(others_changed(plan, changed));
        }
        if args.dry_run {
            notes.push(
                "Dry run: the API server accepts the change; nothing was changed.".to_owned(),
            );
        } else if !is_changed && !args.changes.is_empty() {
            notes.push("Nothing to change.".to_owned());
            if args.abort_above.is_some() {
                notes.push("--abort-above has nothing to roll back.".to_owned());
            }
        }
        Self {
            releases: plan.releases.iter().map(release).collect(),
            notes,
            dry_run: args.dry_run,
            rollback: is_changed.then(|| command(&args.name, &steps)),
        }
    }
}

impl fmt::Display for ShiftReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |it| it.to_string());
        let rows = self.releases.iter().map(|release| {
            vec![
                release.name.clone(),
                number(release.ready),
                transition(&number(release.weight_before), &release.weight.to_string()),
                transition(&release.share_before, &release.share),
            ]
        });
        let names = header(&["RELEASE", "READY", "WEIGHT", "SHARE"]);
        write!(f, "{}", Table(std::iter::once(names).chain(rows).collect()))?;
        let rollback = self.rollback.as_ref();
        let rollback = rollback.map(|command| format!("To roll back: {command}"));
        let notes: Vec<_> = self
            .notes
            .iter()
            .chain(&rollback)
            .map(String::as_str)
            .collect();
        if notes.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{}", notes.join("\n"))
    }
}

/// Returns warnings about effects that the weights do not show: too few ready endpoints, and releases that are not
/// listed.
fn warnings(plan: &Plan, changed: &Observed) -> Vec<String> {
    let spec = &changed.spec;
    let min_ready = spec.min_ready.unwrap_or(1);
    let mut warnings = Vec::new();
    for release in plan.releases.iter().filter(|release| release.after > 0) {
        let Some(status) = changed.release(&release.name) else {
            continue;
        };
        if status.ready < min_ready {
            let effect = match spec.below_min_ready {
                BelowMinReady::Shift => "its share goes to the others",
                BelowMinReady::Unavailable => "its requests get status 503",
            };
            let (name, ready) = (&release.name, status.ready);
            warnings.push(format!(
                "Release {name} has {ready} ready endpoints, fewer than minReady {min_ready}: until it has enough, {effect}."
            ));
        }
    }
    let is_listed = |name: &str| plan.releases.iter().any(|it| it.name == name);
    let others = changed
        .status
        .releases
        .iter()
        .filter(|it| !is_listed(&it.value));
    if spec.unlisted == Unlisted::Equal && others.count() > 0 {
        warnings.push(
            "Releases that are not listed get a share too (unlisted: Equal); SHARE ignores them."
                .to_owned(),
        );
    }
    warnings
}

/// Returns notes about weights that another client changed between read and apply.
fn others_changed(plan: &Plan, changed: &Observed) -> Vec<String> {
    let releases = &changed.spec.releases;
    let all = || releases.iter().map(|release| release.weight);
    let differs = plan.releases.iter().filter_map(|planned| {
        let now = releases
            .iter()
            .find(|release| release.value == planned.name)?;
        (now.weight != planned.after).then_some(now)
    });
    differs
        .map(|now| {
            format!(
                "Release {} was changed by another client: it has weight {}, a share of {}.",
                now.value,
                now.weight,
                percent(now.weight, all())
            )
        })
        .collect()
}
