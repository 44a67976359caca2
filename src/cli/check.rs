//! `portcullis check`: loads and translates a folder without serving it, and prints problems and conditions.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::flags::PermissionFlags;
use crate::api::Severity;
use crate::permissions::Permissions;
use crate::provider::{FileProvider, Load};
use crate::status::{Condition, ListenerStatus, StatusReport};
use crate::translate::{Options, Translation, shadowed, translate};

/// Check a folder of Gateway API YAML and print every problem and condition.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis check config/quickstart
  portcullis check --quiet /etc/portcullis && portcullis run --config-dir /etc/portcullis

Exit codes: 0 if every object is accepted (warnings are printed), 1 if an object is not accepted or the folder cannot
be read, 2 for wrong usage.")]
pub struct Args {
    /// Folder of Gateway API YAML
    #[arg(value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: PathBuf,
    /// What objects may do.
    #[command(flatten)]
    permissions: PermissionFlags,
    /// Print problems only
    #[arg(long, short, env = "PORTCULLIS_CHECK_QUIET")]
    quiet: bool,
}

/// Prints problems and conditions. Fails with exit code 1 if an object is not accepted.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (load, translation) = translate_folder(&args.config_dir, &options(&args.permissions))?;
    let mut out = io::stdout().lock();
    let accepted = print(&load, &translation, args.quiet, &mut out)?;
    Ok(if accepted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads and translates a folder.
pub(super) fn translate_folder(
    folder: &Path,
    options: &Options,
) -> anyhow::Result<(Load, Translation)> {
    let load = FileProvider::new(folder.to_owned()).load()?;
    let translation = translate(&load.snapshot, None, options);
    Ok((load, translation))
}

/// The options of the translation for these flags.
pub(super) fn options(permissions: &PermissionFlags) -> Options {
    Options {
        permissions: Permissions::from(permissions),
        ..Options::default()
    }
}

fn print(
    load: &Load,
    translation: &Translation,
    quiet: bool,
    out: &mut impl Write,
) -> io::Result<bool> {
    let report = &translation.report;
    for problem in &load.problems {
        writeln!(out, "{problem}")?;
    }
    let unmet: Vec<_> = report.problems().collect();
    for (object, problem) in &unmet {
        writeln!(out, "not accepted: {object}: {problem}")?;
    }
    let shadowed = shadowed(&translation.ir);
    for shadowed in &shadowed {
        writeln!(out, "warning: {shadowed}")?;
    }
    let errors = load
        .problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .count();
    let warnings = load.problems.len() - errors + shadowed.len();
    if !quiet {
        print_conditions(report, out)?;
        writeln!(
            out,
            "Gateways: {}, routes: {}, errors: {errors}, not accepted: {}, warnings: {warnings}",
            report.gateways.len(),
            report.routes.len(),
            unmet.len(),
        )?;
    }
    Ok(errors + unmet.len() == 0)
}

fn print_conditions(report: &StatusReport, out: &mut impl Write) -> io::Result<()> {
    for (object, conditions) in &report.gateway_classes {
        object_conditions(object, conditions, out)?;
    }
    for (object, gateway) in &report.gateways {
        object_conditions(object, &gateway.conditions, out)?;
        listener_conditions(&gateway.listeners, out)?;
    }
    for (object, set) in &report.listener_sets {
        object_conditions(object, &set.conditions, out)?;
        listener_conditions(&set.listeners, out)?;
    }
    for (object, parents) in report.routes.iter() {
        writeln!(out, "{object}")?;
        for parent in parents.iter() {
            let to = &parent.parent_ref;
            let section = to.section_name.as_deref().unwrap_or("all listeners");
            writeln!(out, "  on {} {} ({section})", to.kind, to.name)?;
            conditions_below("    ", &parent.conditions, out)?;
        }
    }
    Ok(())
}

fn object_conditions(
    object: &impl Display,
    conditions: &[Condition],
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "{object}")?;
    conditions_below("  ", conditions, out)
}

fn listener_conditions(listeners: &[ListenerStatus], out: &mut impl Write) -> io::Result<()> {
    for listener in listeners {
        let routes = listener.attached_routes;
        writeln!(out, "  listener {} ({routes} routes)", listener.name)?;
        conditions_below("    ", &listener.conditions, out)?;
    }
    Ok(())
}

fn conditions_below(
    indent: &str,
    conditions: &[Condition],
    out: &mut impl Write,
) -> io::Result<()> {
    conditions
        .iter()
        .try_for_each(|condition| writeln!(out, "{indent}{condition}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: narrow}
spec:
  parentRefs: [{name: web}]
  rules: [{matches: [{path: {type: Exact, value: /login}}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: wide, annotations: {portcullis.dev/priority: "10"}}
spec: {parentRefs: [{name: web}], rules: [{}]}
"#;

    #[test]
    fn warns_of_shadowed_match() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("routes.yaml"), ROUTES).unwrap();
        let (load, translation) = translate_folder(folder.path(), &Options::default()).unwrap();
        let mut out = Vec::new();
        let is_accepted = print(&load, &translation, false, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(is_accepted, "{text}");
        let warning = "warning: HTTPRoute default/narrow: spec.rules[0].matches[0] gets no request for host * of \
                       Gateway default/web listener http: spec.rules[0] of HTTPRoute default/wide has the same match or \
                       a wider one, and comes first\n";
        assert!(text.contains(warning), "{text}");
        assert!(text.contains("not accepted: 0, warnings: 1"), "{text}");
    }
}
