//! What the steps of a migration share: the input, the settings, the report and the output.

use super::controller::Controller;
use super::hosts::{Host, Hosts};
use super::model::{Ingress, Source};
use super::output::Output;
use super::report::{Outcome, Report};
use super::settings::Settings;
use super::values::Values;

/// Name of the HTTP listener of the Gateway.
pub(super) const HTTP_LISTENER: &str = "http";
/// Name of the HTTPS listener of the Gateway for hosts without a certificate of their own.
pub(super) const HTTPS_LISTENER: &str = "https";

/// A migration in progress.
pub(super) struct Work<'a> {
    pub(super) source: &'a Source,
    pub(super) settings: &'a Settings,
    pub(super) controller: &'a Controller,
    pub(super) hosts: &'a Hosts,
    pub(super) report: Report,
    pub(super) output: Output,
}

impl Work<'_> {
    /// Reports a setting of an Ingress.
    pub(super) fn say(
        &mut self,
        ingress: &Ingress,
        setting: &str,
        outcome: Outcome,
        text: impl Into<String>,
    ) {
        self.report.ingress(&ingress.name, setting, outcome, text);
    }

    /// Reports whether an Ingress redirects a host to HTTPS, if that has a listener for it.
    pub(super) fn is_redirected(&self, ingress: &Ingress, host: &Host) -> bool {
        let values = Values(ingress);
        let of = |name: &str, default: bool| values.flag(name).unwrap_or(default);
        of("ssl-redirect", self.controller.ssl_redirect) && host.redirects()
            || of("force-ssl-redirect", self.controller.force_ssl_redirect)
    }
}
