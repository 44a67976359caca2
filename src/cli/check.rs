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
use self::warnings::Warning;
use super::flags::PermissionFlags;
use super::objects::{CONFIG_DIR, ClusterFlags, ObjectSource};
use super::output::{self, FailOn, OutputFlag, OutputFormat};
use crate::api::Severity;
use crate::explain::advised;
use crate::ir::ObjectRef;
use crate::provider::file::{FoundObjects, Located, Locations};
use crate::provider::{Load, Problem};
use crate::settings::permissions::Permissions;
use crate::status::{
    self, Condition, ConditionStatus, ConditionType, PlacedConditions, StatusPart, StatusReport,
};
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

Warns of valid configuration that fails requests: backends and authorization servers without endpoints or weight, paths of
sign-ins that no rule matches, and certificates that are expired, not yet valid, valid for at most 7 more days, or not for
the hostname of their listener. For a folder, names file and line of each object, and warns also of limits with scope Gateway: each process counts by itself there.
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
    let now = (options.mode, Timestamp::now());
    let mut result = CheckResult::new(&load, &locations, &translation, now);
    let allowed = args.controller.key_addresses();
    result
        .warnings
        .extend(key_sets::of(&load.snapshot, &options, &allowed));
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Text => result.print(args.quiet, &mut out)?,
        OutputFormat::Json => output::json(&result.document(args.quiet), &mut out)?,
    }
    let is_well = match args.fail_on {
        FailOn::Error => result.is_accepted(),
        FailOn::Warning => result.is_accepted() && result.summary().warnings == 0,
    };
    Ok(ExitCode::from(u8::from(!is_well)))
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

/// What a check finds.
struct CheckResult<'a> {
    problems: &'a [Problem],
    locations: &'a Locations,
    report: &'a StatusReport,
    /// Objects that are not accepted, and why.
    refused: Vec<(ObjectRef, String)>,
    /// Other problems of objects, such as references that are not resolved.
    unmet: Vec<(ObjectRef, String)>,
    warnings: BTreeSet<Warning>,
}

impl<'a> CheckResult<'a> {
    fn new(
        load: &'a Load,
        locations: &'a Locations,
        translation: &'a Translation,
        (mode, now): (Mode, Timestamp),
    ) -> Self {
        let Translation { ir, report, .. } = translation;
        let mut warnings = warnings::of(&load.snapshot, ir, now);
        warnings.extend(warnings::of_policy_servers(&load.snapshot, ir));
        let mut of_process = status::warnings::of_ports(&ir.ports);
        of_process.extend(status::warnings::of_policies(&report.policies));
        if mode == Mode::Standalone {
            of_process.extend(status::warnings::of_shared_limits(&ir.ports));
        }
        warnings.extend(of_process.into_iter().map(|it| (it.object, it.message)));
        let shadowed = shadowed(ir);
        let shadowed = shadowed.iter();
        warnings.extend(shadowed.map(|it| (it.rule.route.clone(), it.to_string())));
        let accepted = accepted(report);
        let is_refused = |(object, problem): &(ObjectRef, String)| {
            is_refusal(problem) || !accepted.contains(object)
        };
        let problems = report.problems().enumerate();
        let problems = problems.map(|(at, (object, problem))| match at < MAX_ADVISED {
            true => (object, advised(&*load.snapshot, problem)),
            false => (object, problem),
        });
        let (refused, unmet) = problems.partition(is_refused);
        Self {
            problems: &load.problems,
            locations,
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

    fn is_accepted(&self) -> bool {
        self.count(Severity::Error) + self.refused.len() + self.unmet.len() == 0
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

    /// Finds all objects that something is wrong with.
    fn found(&self) -> FoundObjects {
        let problems = self.refused.iter().chain(&self.unmet);
        let all = problems.chain(&self.warnings);
        self.locations.find(all.map(|(object, _)| object))
    }

    fn print(&self, quiet: bool, out: &mut impl Write) -> io::Result<()> {
        for problem in self.problems {
            writeln!(out, "{problem}")?;
        }
        let found = self.found();
        for refusal in located(&found, &self.refused) {
            writeln!(out, "not accepted: {refusal}")?;
        }
        for problem in located(&found, &self.unmet) {
            writeln!(out, "problem: {problem}")?;
        }
        for warning in located(&found, &self.warnings) {
            writeln!(out, "warning: {warning}")?;
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
        let found = self.found();
        Document {
            problems: self.problems,
            not_accepted: located(&found, &self.refused).collect(),
            other_problems: located(&found, &self.unmet).collect(),
            warnings: located(&found, &self.warnings).collect(),
            conditions,
            summary: self.summary(),
        }
    }
}

/// Returns problems, each with the location of its object.
fn located<'a>(
    found: &FoundObjects,
    problems: impl IntoIterator<Item = &'a (ObjectRef, String)>,
) -> impl Iterator<Item = Located<'a>> {
    let problems = problems.into_iter();
    problems.map(|(object, message)| found.locate(object, message))
}

/// The output as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    problems: &'a [Problem],
    not_accepted: Vec<Located<'a>>,
    other_problems: Vec<Located<'a>>,
    warnings: Vec<Located<'a>>,
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
    let holds =
        |it: &Condition| it.kind == ConditionType::Accepted && it.status == ConditionStatus::True;
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
