//! `portcullis migrate`: converts Ingresses of ingress-nginx to Gateway API objects and policies, with a report.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::objects::{STANDARD_INPUT, is_pipe, pipe_text, standard_input};
use super::output::UNREACHABLE;
use super::visible;
use crate::migrate::{Migration, Name, Settings, migrate};
use crate::provider::Problem;
use crate::provider::file::written::{self, WrittenObjects};
use crate::settings::NamespacedName;
use crate::telemetry::log;

/// Convert Ingresses of ingress-nginx to Gateway API objects and policies, with a report of every annotation.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis migrate ingresses.yaml > gateway-api.yaml
  kubectl get ingress,service,configmap -A -o yaml | portcullis migrate - --output migrated --report report.md
  portcullis migrate --parent infra/web --controller-config ingress-nginx/ingress-nginx-controller cluster.yaml

Reads Ingresses, and for them Services (names of ports), ConfigMaps (the controller's, custom-headers) and Secrets
(hashes of passwords). Writes a Gateway with an HTTP listener, a ListenerSet for each namespace with certificates, routes
and policies; the report is on standard error. What restricts access and cannot be converted refuses requests.
Exit codes: 0 if nothing is left to do by hand, 1 if something is or the output cannot be written, 2 for wrong
usage, 3 if the input or one of its objects cannot be read: nothing is written then.")]
pub struct Args {
    /// Folder or file of YAML, or `-` for standard input
    #[arg(value_name = "DIR|FILE|-")]
    input: PathBuf,
    /// Class of the Ingresses
    #[arg(long, value_name = "NAME", default_value = "nginx")]
    ingress_class: String,
    /// The Gateway that is written
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = "portcullis/ingress"
    )]
    gateway: NamespacedName,
    /// Class of the Gateway
    #[arg(long, value_name = "NAME", default_value = "portcullis")]
    gateway_class: String,
    /// A Gateway that exists, with a listener `http`; none is written
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with_all = ["gateway", "gateway_class"])]
    parent: Option<NamespacedName>,
    /// ConfigMap of the controller, in the input
    #[arg(long, value_name = "NAMESPACE/NAME")]
    controller_config: Option<NamespacedName>,
    /// Secret with the certificate of hosts without secretName: --default-ssl-certificate of ingress-nginx
    #[arg(long, value_name = "NAMESPACE/NAME")]
    default_certificate: Option<NamespacedName>,
    /// Folder for the output: NAMESPACE/ingress-NAME.yaml of each Ingress, NAMESPACE/shared.yaml and gateway.yaml [default:
    /// standard output]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    /// File for the report: Markdown if its name ends with .md [default: standard error]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Migrates, and writes objects and report.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (objects, mut problems) = match read(&args.input) {
        Ok(found) => found,
        Err(error) => {
            say(&format!("portcullis: {error:#}"));
            return Ok(ExitCode::from(UNREACHABLE));
        }
    };
    // Notes are about files that are no input, such as a README.
    let migration = match problems.iter().any(Problem::is_fault) {
        true => Err(Vec::new()),
        false => migrate(&objects, &settings(args)),
    };
    let migration = match migration {
        Ok(migration) => {
            for note in &problems {
                say(&note.to_string());
            }
            migration
        }
        Err(found) => {
            problems.extend(found);
            for problem in problems {
                say(&problem.to_string());
            }
            return Ok(ExitCode::from(UNREACHABLE));
        }
    };
    write(args, &migration)?;
    Ok(match migration.report.needs_hand() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Writes lines on standard error, where a terminal may obey what Ingresses contain.
fn say(text: &str) {
    log::write_line(&visible::lines(text));
}

fn settings(args: &Args) -> Settings {
    let name = |name: &NamespacedName| Name {
        namespace: name.namespace.clone(),
        name: name.name.clone(),
    };
    Settings {
        ingress_class: args.ingress_class.clone(),
        gateway: name(args.parent.as_ref().unwrap_or(&args.gateway)),
        gateway_class: args.parent.is_none().then(|| args.gateway_class.clone()),
        controller_config: args.controller_config.as_ref().map(name),
        default_certificate: args.default_certificate.as_ref().map(name),
    }
}

fn read(input: &Path) -> anyhow::Result<WrittenObjects> {
    match input {
        _ if input == Path::new(STANDARD_INPUT) => written::of_text(input, &standard_input()?),
        _ if is_pipe(input) => written::of_text(input, &pipe_text(input)?),
        _ => written::read(input),
    }
}

fn write(args: &Args, migration: &Migration) -> anyhow::Result<()> {
    let files = migration.output.files().map_err(anyhow::Error::msg)?;
    match &args.output {
        None => {
            let mut out = io::stdout().lock();
            for (_, text) in files {
                out.write_all(text.as_bytes())?;
            }
        }
        Some(folder) => {
            for (file, text) in files {
                let path = folder.join(file.path());
                let failed = || format!("{} cannot be written", path.display());
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).with_context(failed)?;
                }
                fs::write(&path, text).with_context(failed)?;
            }
        }
    }
    let report = &migration.report;
    match &args.report {
        None => say(report.text().trim_end()),
        Some(path) => {
            let is_page = path.extension().is_some_and(|it| it == "md");
            let text = if is_page {
                report.markdown()
            } else {
                report.text()
            };
            let failed = || format!("{} cannot be written", path.display());
            fs::write(path, text).with_context(failed)?;
        }
    }
    Ok(())
}
