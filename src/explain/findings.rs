//! Text for what the conditions of objects say about a request: listeners on its port that are not served, and routes for
//! its host that are not attached; and the certificate that clients refuse. Judges nothing itself.

use jiff::Timestamp;

use super::explanation::nearest;
use super::names::{Names, advised};
use super::request::ExplainedRequest;
use crate::ir::{ObjectRef, PortProtocol};
use crate::status::certificates::refused;
use crate::status::{
    Condition, ConditionType, PlacedConditions, Reason, StatusPart, StatusReport, Unattached,
};
use crate::table::Port;

/// Conditions, notes and names of the objects, which the table lacks.
#[derive(Clone, Copy)]
pub struct Findings<'a> {
    /// The conditions and the notes.
    pub report: &'a StatusReport,
    /// The names that references may mean.
    pub names: &'a dyn Names,
    /// The time at which certificates have to be valid.
    pub now: Timestamp,
}

impl Findings<'_> {
    /// Returns text about the listeners for the host of a request that are not served, and why: those on a port, or on any.
    pub(super) fn unserved(&self, port: Option<u16>, request: &ExplainedRequest) -> Vec<String> {
        let conditions = self.report.conditions();
        let lines = conditions
            .iter()
            .filter_map(|placed| self.unserved_listener(placed, (port, &request.host)));
        lines.flatten().collect()
    }

    /// Returns text about the certificate on a port that clients refuse, if they do.
    pub(super) fn refused_certificate(
        &self,
        port: &Port,
        request: &ExplainedRequest,
    ) -> Vec<String> {
        let host = request
            .sni()
            .filter(|_| port.protocol() == PortProtocol::Tls);
        let listener = host.and_then(|host| port.listener_for_sni(Some(host)));
        let tls = listener.and_then(|listener| listener.ir.tls());
        let lines = host.zip(tls).into_iter();
        let lines = lines.flat_map(|(host, tls)| refused(tls, host, self.now));
        lines.collect()
    }

    /// Returns text about the routes for the host of a request that are not attached to a parent, and why.
    pub(super) fn unattached(&self, request: &ExplainedRequest) -> Vec<String> {
        let routes = self.report.unattached.iter();
        let for_host = routes.filter(|(_, unattached)| {
            let mut hostnames = unattached.hostnames.iter();
            request.may_be_for(unattached.kind) && hostnames.any(|it| it.contains(&request.host))
        });
        let lines = for_host.filter_map(|(route, unattached)| {
            let why = self.why_unattached(route, unattached);
            let host = &request.host;
            let line = || {
                format!(
                    "{route} is for {host}, but is not attached: {}",
                    why.join("; ")
                )
            };
            (!why.is_empty()).then(line)
        });
        nearest(lines.collect(), |_| 0, Clone::clone, "routes")
    }

    fn why_unattached(&self, route: &ObjectRef, unattached: &Unattached) -> Vec<String> {
        let statuses = self.report.routes.get(route);
        let statuses = statuses.map_or(&[][..], |statuses| statuses);
        let refused = unattached
            .parents
            .iter()
            .filter_map(|place| statuses.get(*place));
        let conditions = refused.flat_map(|status| {
            let conditions = status.conditions.iter();
            let accepted = conditions.filter(|it| it.kind == ConditionType::Accepted);
            accepted.map(move |it| format!("for {}: {it}", status.parent_ref))
        });
        let is_attached = unattached.parents.len() < statuses.len();
        let notes = self.report.notes.iter();
        let notes = notes.filter(|note| note.object == *route && !is_attached);
        let all = conditions.chain(notes.map(|note| note.message.clone()));
        all.map(|why| advised(self.names, why)).collect()
    }

    fn unserved_listener(
        &self,
        placed: &PlacedConditions<'_>,
        (port, host): (Option<u16>, &str),
    ) -> Option<Vec<String>> {
        let StatusPart::Listener(listener) = placed.place else {
            return None;
        };
        let is_other = port.is_some_and(|port| listener.port != port);
        if is_other || !listener.hostname.contains(host) {
            return None;
        }
        let problems = placed.problems();
        let mut kinds = problems.iter().map(|it| it.kind);
        if !kinds.any(|kind| kind == ConditionType::Programmed) && !listener.binds.is_empty() {
            return None;
        }
        let (object, port, hostname) = (placed.object, listener.port, &listener.hostname);
        let why = advised(self.names, messages(&problems));
        let line = format!(
            "{} of {object}, port {port}, hostname {hostname}: {why}",
            placed.place
        );
        let mut reasons = problems.iter().map(|it| it.reason);
        let reason = reasons.find(|it| *it == Reason::InvalidCertificateRef);
        let remedy = reason.and_then(Reason::remedy).map(str::to_owned);
        Some([line].into_iter().chain(remedy).collect())
    }
}

/// Returns the text of conditions, without those whose message is part of another one.
fn messages(problems: &[&Condition]) -> String {
    let is_repeated = |condition: &Condition| {
        let mut others = problems
            .iter()
            .filter(|other| other.message.len() > condition.message.len());
        others.any(|other| other.message.contains(&condition.message))
    };
    let own = problems.iter().filter(|condition| !is_repeated(condition));
    let texts: Vec<_> = own.map(ToString::to_string).collect();
    texts.join("; ")
}
