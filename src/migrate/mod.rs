//! Migration from ingress-nginx: Ingresses become Gateway API objects and policies of Portcullis, with a report of each
//! annotation. What restricts access and cannot be converted closes its routes.

mod access;
pub mod annotations;
mod auth_server;
mod backends;
mod canary;
mod controller;
mod cors;
mod directives;
mod error_pages;
mod features;
mod firewall;
mod grants;
mod grpc;
mod harmless;
mod header_changes;
mod hosts;
mod hsts;
mod listeners;
mod model;
mod order;
pub mod output;
mod owned;
mod paths;
mod policies;
mod read;
pub mod report;
mod routes;
mod rules;
mod sessions;
mod settings;
mod snippets;
mod spellings;
mod unread;
mod values;
mod verify;
mod work;

use std::collections::BTreeMap;

pub use model::Name;
pub use output::Output;
pub use report::{Outcome, Report};
pub use settings::Settings;

use self::canary::Canaries;
use self::controller::Controller;
use self::features::Features;
use self::hosts::{Certificate, Hosts, entry, main_ingresses, own_hosts};
use self::listeners::Listeners;
use self::model::{Ingress, PREFIX, Source};
use self::report::Outcome::{ChangedMeaning, DefaultAlready, Left, NotPossible};
use self::routes::{Routes, www};
use self::values::Values;
use self::work::Work;
use crate::provider::Problem;
use crate::provider::file::written::Written;

/// The result of a migration.
#[derive(Debug)]
pub struct Migration {
    /// The objects.
    pub output: Output,
    /// What becomes of each setting.
    pub report: Report,
}

/// Migrates the Ingresses among these objects.
///
/// # Errors
/// When a part of an object has the wrong type.
pub fn migrate(objects: &[Written], settings: &Settings) -> Result<Migration, Vec<Problem>> {
    let mut migration = unchecked(objects, settings)?;
    verify::check(&migration.output, settings, &mut migration.report);
    Ok(migration)
}

/// Migrates without a check of the output: the report has no faults. The output alone decides which it would have.
///
/// # Errors
/// When a part of an object has the wrong type.
pub fn unchecked(objects: &[Written], settings: &Settings) -> Result<Migration, Vec<Problem>> {
    let source = read::source(objects, settings)?;
    let mut report = Report::default();
    let controller = Controller::new(&source, settings, &mut report);
    let hosts = Hosts::new(&source, settings, &controller);
    let mut work = Work {
        source: &source,
        settings,
        controller: &controller,
        hosts: &hosts,
        report,
        output: Output::default(),
    };
    if source.ingresses.is_empty() {
        let text = format!("no Ingress has the class {}", settings.ingress_class);
        work.report.add("input".to_owned(), "", NotPossible, text);
    } else {
        convert(&mut work);
    }
    report_left(&source, settings, &mut work.report);
    let Work { output, report, .. } = work;
    Ok(Migration { output, report })
}

fn convert(work: &mut Work<'_>) {
    let source = work.source;
    let listeners = Listeners::write(work, &www_certificates(source, work.hosts));
    let canaries = Canaries::new(source);
    let mut routes = Routes::new(canaries, listeners, &source.ingresses);
    let mut backends = backends::ServicePolicies::default();
    for ingress in main_ingresses(source) {
        let features = Features::new(work, ingress);
        let targets = routes.write(work, ingress, &features);
        report_tls(work, ingress);
        backends.add(work, ingress, &routes.canaries);
        policies::write(work, ingress, &targets, features.closed);
        report_rest(work, ingress);
    }
    routes.canaries.finish(source, &mut work.report);
    backends.write(work);
    if work.settings.gateway_class.is_none() {
        let Name { namespace, name } = &work.settings.gateway;
        work.report.notice(&format!("Gateway {namespace}/{name} is not written: it needs a listener `http` on port 80 for routes of all namespaces, allowedListeners of all namespaces, and a ClientPolicy with path {{dotSegments: Normalize}} and headers {{underscores: Drop, requestID: Trust}} for what ingress-nginx does."));
    }
}

/// Returns the certificates of hosts that exist only to be redirected to the same with or without `www.`.
fn www_certificates(source: &Source, hosts: &Hosts) -> BTreeMap<String, Certificate> {
    let mut found = BTreeMap::new();
    for ingress in main_ingresses(source) {
        if Values(ingress).flag("from-to-www-redirect") != Some(true) {
            continue;
        }
        for host in own_hosts(ingress) {
            let Some(other) = www(&host).filter(|other| hosts.get(other).is_none()) else {
                continue;
            };
            // Only a certificate that the Ingress names for the other host is certainly for it.
            let mut entries = ingress.tls.iter();
            let named = entries.find(|tls| tls.hosts.contains(&other));
            let own = hosts.get(&host).and_then(|host| host.certificate.as_ref());
            match named.and_then(|tls| tls.secret.as_ref()) {
                Some(secret) => {
                    let secret = Name::new(&ingress.name.namespace, secret);
                    found.insert(other, Certificate::Secret(secret));
                }
                None if own == Some(&Certificate::Default) => {
                    found.insert(other, Certificate::Default);
                }
                None => {}
            }
        }
    }
    found
}

/// Reports certificates that are not used.
fn report_tls(work: &mut Work<'_>, ingress: &Ingress) {
    let hosts = own_hosts(ingress);
    report_hosts_without_entry(work, ingress, &hosts);
    for (index, tls) in ingress.tls.iter().enumerate() {
        let place = format!("tls[{index}]");
        let is_default = tls.secret.is_none() && work.settings.default_certificate.is_none();
        if is_default && Values(ingress).flag("ssl-passthrough") != Some(true) {
            let text = "it has no secretName, so that ingress-nginx uses its default certificate: pass --default-certificate NAMESPACE/NAME. The hosts are served without TLS until then";
            work.say(ingress, &place, NotPossible, text);
        }
        for host in &tls.hosts {
            let used = work
                .hosts
                .get(host)
                .and_then(|host| host.certificate.as_ref());
            if let (Some(Certificate::Secret(used)), Some(own)) = (used, &tls.secret)
                && (used.name != *own || used.namespace != ingress.name.namespace)
                && hosts.contains(host)
            {
                let text = format!(
                    "{host} has the certificate of Secret {used}, which an earlier Ingress names, as in ingress-nginx"
                );
                work.say(ingress, &place, DefaultAlready, text);
            }
        }
    }
}

/// Reports hosts that no entry of `tls` names. ingress-nginx has a certificate for them anyway.
fn report_hosts_without_entry(work: &mut Work<'_>, ingress: &Ingress, hosts: &[String]) {
    let known = work.hosts;
    let has_secret = |name: &String| {
        let host = known.get(name);
        let certificate = host.and_then(|host| host.certificate.as_ref());
        matches!(certificate, Some(Certificate::Secret(_)))
    };
    if ingress.tls.is_empty() || Values(ingress).flag("ssl-passthrough") == Some(true) {
        return;
    }
    for host in hosts.iter().filter(|host| !host.is_empty()) {
        if entry(ingress, host).is_some() || has_secret(host) {
            continue;
        }
        let text = format!(
            "{host} is in no entry, so that ingress-nginx redirects it to HTTPS, and uses a certificate of the entries that is valid for it, or else its default one: name the host in an entry"
        );
        match work.settings.default_certificate {
            Some(_) => {
                let text = format!("{text}. It has the default certificate until then");
                work.say(ingress, "tls", ChangedMeaning, text);
            }
            None => {
                let text = format!("{text}. It is served without TLS until then");
                work.say(ingress, "tls", NotPossible, text);
            }
        }
    }
}

/// Reports the annotations that no step has reported.
fn report_rest(work: &mut Work<'_>, ingress: &Ingress) {
    for (name, value) in &ingress.annotations {
        if work.report.has(&ingress.name, name) {
            continue;
        }
        match annotations::find(name) {
            None => {
                let text = format!(
                    "{PREFIX}{name} is no annotation of ingress-nginx that this program knows: look at what it does"
                );
                work.say(ingress, name, NotPossible, text);
            }
            Some(_) if value.trim().is_empty() => {
                work.say(ingress, name, DefaultAlready, "it is empty");
            }
            Some(row) if row.depends => {
                let text = "it has no effect with the other annotations of the Ingress";
                work.say(ingress, name, DefaultAlready, text);
            }
            Some(row) if value.trim() == default_value(name) && row.outcome != DefaultAlready => {
                let text = "it is the default of ingress-nginx";
                work.say(ingress, name, DefaultAlready, text);
            }
            Some(row) => work.say(ingress, name, row.outcome, row.text),
        }
    }
}

/// Returns the default of an annotation that enables something.
fn default_value(name: &str) -> &'static str {
    match name {
        "enable-access-log" => "true",
        _ => "false",
    }
}

fn report_left(source: &Source, settings: &Settings, report: &mut Report) {
    for (name, class) in &source.left {
        let text = match class {
            Some(class) => format!("its class is {class}, not {}", settings.ingress_class),
            None => format!(
                "it has no class: set ingressClassName to {} if ingress-nginx serves it, and migrate again",
                settings.ingress_class
            ),
        };
        report.ingress(name, "", Left, text);
    }
    if source.others > 0 {
        let text = format!("{} objects of other kinds stay as they are", source.others);
        report.add("input".to_owned(), "", Left, text);
    }
}
