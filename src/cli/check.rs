//! `portcullis check`: loads and translates a folder or a cluster without serving it, and prints problems and conditions.

mod controller_flags;
mod ingresses;
mod key_sets;
mod names;
mod warnings;

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use jiff::Timestamp;
use serde::Serialize;

use self::controller_flags::ControllerFlags;
use super::flags::PermissionFlags;
use super::objects::{CONFIG_DIR, ClusterFlags, ObjectSource};
use super::output::{self, FailOn, OutputFlag, OutputFormat};
use crate::explain::advice;
use crate::finding::{Finding, Severity, order};
use crate::ir::ObjectRef;
use crate::provider::file::Locations;
use crate::provider::{Load, Problem};
use crate::settings::permissions::Permissions;
use crate::snapshot::Snapshot;
use crate::status::{self, Condition, ConditionType, PlacedConditions, StatusPart, StatusReport};
use crate::translate::{Mode, Options, Translation, shadowed, translate};

/// Maximum number of problems with advice on names, which takes a look at all names.
const MAX_ADVISED: usize = 100;

/// Check Gateway API objects of a folder or a cluster and print every problem and condition.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis check config/quickstart
  portcullis check --quiet /etc/portcullis && portcullis run --config-dir /etc/portcullis
  portcullis check -o json config/quickstart
  portcullis check --fail-on warning config/quickstart
  kustomize build overlays/production | portcullis check -
  portcullis check --kubernetes
  portcullis check --kubernetes --context staging --namespaces infra,apps
  portcullis check --kubernetes --controller-namespace portcullis-system --allow-host-network unprivileged-ports
  portcullis check --controller-namespace portcullis-system manifests

Valid configuration that fails requests is a problem, as for `portcullis status`: backends and authorization servers without
endpoints or weight, paths of sign-ins that no rule matches, and certificates that are expired, not yet valid, or not for the
hostname of their listener. Certificates that are valid for at most 7 more days are warnings, and so are backends without an
EndpointSlice or a Pod, since manifests for a cluster have none. For a folder, names file and line of each object, and warns also of
limits with scope Gateway: each process counts by itself there.
Names for each annotation of an Ingress of ingress-nginx what `portcullis migrate` makes of it.
With --kubernetes, reads the objects of a cluster once and writes nothing; a kind that is not served or that the user may not
read is named on standard error and treated as absent. So is each right that the user lacks and that the controller needs, such
as to watch a kind. Pass the same permissions as to `run` or the controller, and for
GatewayParameters also --controller-namespace: a folder is then judged as the controller judges a cluster with these objects,
so that it needs the GatewayClass.
Exit codes: 0 if there are no problems (warnings are printed, and fail with --fail-on warning), 1 if an object is not accepted
or has another problem, 2 for wrong usage, 3 if the folder, the file or the cluster cannot be read.")]
pub struct Args {
    /// Folder or file of Gateway API YAML, or `-` for standard input
    #[arg(value_name = "DIR|FILE|-", env = CONFIG_DIR)]
    config_dir: Option<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    cluster: ClusterFlags,
    /// What objects may do.
    #[command(flatten)]
    permissions: PermissionFlags,
    /// What the controller permits.
    #[command(flatten)]
    controller: ControllerFlags,
    /// Print problems only
    #[arg(long, short, env = "PORTCULLIS_CHECK_QUIET")]
    quiet: bool,
    /// What ends with exit code 1: errors, or warnings too
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t = FailOn::Error,
        env = "PORTCULLIS_CHECK_FAIL_ON"
    )]
    fail_on: FailOn,
    /// Format of the output.
    #[command(flatten)]
    format: OutputFlag,
}

/// Prints problems and conditions. Ends with exit code 1 if an object is not accepted, or if there is a warning that is to fail.
/// `command` is the definition of the command line.
pub fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let source = ObjectSource::new(args.config_dir.as_deref(), &args.cluster);
    let source = source.unwrap_or_else(|wrong| {
        let error = command.error(ErrorKind::ValueValidation, wrong);
        error.exit()
    });
    let infrastructure = args.controller.infrastructure();
    let infrastructure = infrastructure.unwrap_or_else(|wrong| {
        let error = command.error(ErrorKind::MissingRequiredArgument, wrong);
        error.exit()
    });
    let mode = match infrastructure {
        Some(_) => Mode::Dedicated,
        None => source.mode(),
    };
    let options = Options {
        controller_name: args.cluster.controller_name.as_arc().clone(),
        infrastructure,
        is_judged_alone: matches!(source, ObjectSource::Folder(_)),
        ..options(&args.permissions, mode)
    };
    let (mut load, locations, translation) = translate_objects(source, &options)?;
    ingresses::explain(&mut load.problems);
    let allowed = args.controller.key_addresses();
    let mut found = key_sets::of(&load.snapshot, &options, &allowed);
    let now = (options.mode, Timestamp::now());
    found.extend(of_valid(&load.snapshot, &translation, now));
    let result = CheckResult::new(&load, &locations, &translation, found);
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Text => {
            let mut text = Vec::new();
            result.print(args.quiet, &mut text)?;
            output::text(&String::from_utf8_lossy(&text), &mut out)?;
        }
        OutputFormat::Json => output::json(&result.document(args.quiet), &mut out)?,
    }
    Ok(ExitCode::from(u8::from(!result.is_well(args.fail_on))))
}

/// Reads and translates the objects of a source. Returns also where they are in files.
pub(super) fn translate_objects(
    source: ObjectSource<'_>,
    options: &Options,
) -> anyhow::Result<(Load, Arc<Locations>, Translation)> {
    let (load, locations) = source.load(options, true)?;
    let translation = translate(&load.snapshot, None, options);
    Ok((load, locations, translation))
}

/// The options of the translation for these flags.
pub(super) fn options(permissions: &PermissionFlags, mode: Mode) -> Options {
    Options {
        mode,
        permissions: Permissions::from(permissions),
        ..Options::default()
    }
}

/// Returns the findings about valid configuration in this mode and at this time.
fn of_valid(
    snapshot: &Snapshot,
    translation: &Translation,
    (mode, now): (Mode, Timestamp),
) -> BTreeSet<Finding> {
    let Translation { ir, report, .. } = translation;
    let mut found = warnings::of(snapshot, ir, now);
    found.extend(warnings::of_policy_servers(snapshot, ir));
    found.extend(warnings::of_pickers(snapshot, ir));
    found.extend(status::warnings::of_ports(&ir.ports));
    found.extend(status::warnings::of_policies(&report.policies));
    if mode == Mode::Standalone {
        found.extend(status::warnings::of_shared_limits(&ir.ports));
    }
    let shadowed = shadowed(ir).into_iter();
    found.extend(shadowed.map(|it| status::warnings::shadowed(&it.rule.route, it.to_string())));
    found
}

/// What a check finds. Each list is in the order of severity and effect.
struct CheckResult<'a> {
    problems: &'a [Problem],
    report: &'a StatusReport,
    /// Why objects are not accepted.
    refused: Vec<Finding>,
    /// Other errors, such as references that are not resolved, and valid configuration that fails requests.
    unmet: Vec<Finding>,
    warnings: Vec<Finding>,
}

impl<'a> CheckResult<'a> {
    fn new(
        load: &'a Load,
        locations: &Locations,
        translation: &'a Translation,
        found: BTreeSet<Finding>,
    ) -> Self {
        let report = &translation.report;
        let reported = report.findings().into_iter().enumerate();
        let reported = reported.map(|(index, it)| match index < MAX_ADVISED {
            true => {
                let advice = advice(&*load.snapshot, &it.cause);
                it.with_advice(advice)
            }
            false => it,
        });
        let mut all: Vec<_> = reported.chain(found).collect();
        order(&mut all);
        locations.locate(&mut all);
        let accepted = accepted(report);
        let is_refused = |it: &Finding| {
            let subject = it.subject.as_ref();
            is_refusal(&it.cause) || subject.is_none_or(|object| !accepted.contains(object))
        };
        let is_error = |it: &Finding| it.severity == Severity::Error;
        let (errors, warnings): (Vec<_>, Vec<_>) = all.into_iter().partition(is_error);
        let (refused, unmet) = errors.into_iter().partition(is_refused);
        Self {
            problems: &load.problems,
            report,
            refused,
            unmet,
            warnings,
        }
    }

    fn count(&self, severity: Severity) -> usize {
        let of = |problem: &&Problem| problem.severity == severity;
        self.problems.iter().filter(of).count()
    }

    fn is_well(&self, fail_on: FailOn) -> bool {
        let problems = self.problems.iter().filter(|it| it.is_fault());
        let problems = problems.map(|it| it.severity);
        let findings = self.refused.iter().chain(&self.unmet).chain(&self.warnings);
        let mut all = problems.chain(findings.map(|it| it.severity));
        !all.any(|severity| fail_on.includes(Some(severity.name())))
    }

    fn summary(&self) -> Summary {
        Summary {
            gateways: self.report.gateways.len(),
            routes: self.report.routes.len(),
            errors: self.count(Severity::Error),
            not_accepted: self.refused.len(),
            other_problems: self.unmet.len(),
            warnings: self.count(Severity::Warning) + self.warnings.len(),
        }
    }

    fn print(&self, quiet: bool, out: &mut impl Write) -> io::Result<()> {
        for problem in self.problems {
            writeln!(out, "{problem}")?;
        }
        let lists = [
            ("not accepted", &self.refused),
            ("problem", &self.unmet),
            ("warning", &self.warnings),
        ];
        for (title, findings) in lists {
            for finding in findings {
                writeln!(out, "{title}: {finding}")?;
            }
        }
        if quiet {
            return Ok(());
        }
        let mut last = None;
        for placed in self.report.conditions() {
            print_conditions(&placed, last, out)?;
            last = Some(placed.object);
        }
        let Summary {
            gateways,
            routes,
            errors,
            not_accepted,
            other_problems,
            warnings,
        } = self.summary();
        writeln!(
            out,
            "Gateways: {gateways}, routes: {routes}, errors: {errors}, not accepted: {not_accepted}, \
             other problems: {other_problems}, warnings: {warnings}"
        )
    }

    fn document(&self, quiet: bool) -> Document<'_> {
        let conditions = match quiet {
            true => Vec::new(),
            false => self.report.conditions(),
        };
        Document {
            problems: self.problems,
            not_accepted: &self.refused,
            other_problems: &self.unmet,
            warnings: &self.warnings,
            conditions,
            summary: self.summary(),
        }
    }
}

/// The output as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    problems: &'a [Problem],
    not_accepted: &'a [Finding],
    other_problems: &'a [Finding],
    warnings: &'a [Finding],
    conditions: Vec<PlacedConditions<'a>>,
    summary: Summary,
}

/// Numbers of objects and problems.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    gateways: usize,
    routes: usize,
    errors: usize,
    not_accepted: usize,
    other_problems: usize,
    warnings: usize,
}

/// Returns the objects that are accepted as a whole or by a parent.
fn accepted(report: &StatusReport) -> HashSet<ObjectRef> {
    let holds = |it: &Condition| it.is_true(ConditionType::Accepted);
    let placed = report.conditions().into_iter();
    let accepted = placed.filter(|placed| placed.conditions.iter().any(holds));
    accepted.map(|placed| placed.object.clone()).collect()
}

/// Reports whether a problem is a condition `Accepted` that is False, of an object or a part of it.
fn is_refusal(problem: &str) -> bool {
    let refused = format!("{} is False ", ConditionType::Accepted);
    problem.starts_with(&refused) || problem.contains(&format!(": {refused}"))
}

/// Prints conditions below their object, which is printed unless it was `last`.
fn print_conditions(
    placed: &PlacedConditions<'_>,
    last: Option<&ObjectRef>,
    out: &mut impl Write,
) -> io::Result<()> {
    let PlacedConditions {
        object,
        place,
        conditions,
    } = placed;
    if last != Some(*object) {
        writeln!(out, "{object}")?;
    }
    let mut indent = "  ";
    if *place != StatusPart::Object {
        write!(out, "  {place}")?;
        if let StatusPart::Listener(listener) = place {
            write!(out, " ({} routes)", listener.attached_routes)?;
        }
        writeln!(out)?;
        indent = "    ";
    }
    conditions
        .iter()
        .try_for_each(|condition| writeln!(out, "{indent}{condition}"))
}

#[cfg(test)]
mod tests;
