//! The status page as plain HTML: what is wrong first, then listeners and conditions. Escapes all text from objects.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use jiff::Timestamp;

use super::state::AdminState;
use super::troubles::{self, Trouble};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem .2rem 0;vertical-align:top;\
    border-bottom:1px solid #ddd}.bad{color:#b00020}code{font-size:.95em}";

/// The whole page.
pub(super) fn html(state: &AdminState) -> String {
    let table = state.table.load();
    let waiting = state.waiting.load();
    let ready = match &*waiting {
        _ if state.ready.load(Ordering::Acquire) => "ready",
        Some(reason) => reason.as_str(),
        None => "not configured yet",
    };
    let ready = escape(ready);
    let troubles = troubles::of(&table, Timestamp::now());
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Portcullis</title><style>{STYLE}</style>\
         <h1>Portcullis {version}</h1><p>{ready}; generation {generation}; {problems} problems of the configuration, {wrong} in service; {open} client connections</p>\
         <p><a href=\"/config\">configuration</a> · <a href=\"/metrics\">metrics</a> · \
         <a href=\"/readyz\">readiness</a> · <a href=\"/healthz\">health</a></p>",
        version = env!("CARGO_PKG_VERSION"),
        generation = table.generation,
        problems = state.stats.config.problems(),
        wrong = troubles.len(),
        open = state.stats.connections.open(),
    );
    problems(&mut page, state, &troubles);
    ports(&mut page, state);
    conditions(&mut page, state);
    page.push_str("</html>\n");
    page
}

fn problems(page: &mut String, state: &AdminState, troubles: &[Trouble]) {
    let rows: Vec<_> = state.report.load().problems().collect();
    page.push_str("<h2>Problems</h2>");
    if rows.is_empty() && troubles.is_empty() {
        page.push_str("<p>None.</p>");
        return;
    }
    page.push_str("<table><tr><th>Object<th>Problem");
    for trouble in troubles {
        page.push_str("<tr class=\"bad\">");
        cells(page, &[&trouble.object, &trouble.message]);
    }
    for (object, message) in &rows {
        page.push_str("<tr class=\"bad\">");
        cells(page, &[object, message]);
    }
    page.push_str("</table>");
}

fn ports(page: &mut String, state: &AdminState) {
    page.push_str("<h2>Ports</h2><table><tr><th>Port<th>Gateway<th>Listener<th>Hostname<th>Routes");
    for port in &state.table.load().ir.ports {
        for listener in &port.listeners {
            row(
                page,
                &[
                    &port.bind,
                    &port.gateway,
                    &listener.key.name,
                    &listener.hostname,
                    &listener.routes.len(),
                ],
            );
        }
    }
    page.push_str("</table>");
}

fn conditions(page: &mut String, state: &AdminState) {
    let report = state.report.load();
    if !report.notes.is_empty() {
        page.push_str("<h2>Notes</h2><table><tr><th>Object<th>Note");
        for note in report.notes.iter() {
            row(page, &[&note.object, &note.message]);
        }
        page.push_str("</table>");
    }
    page.push_str(
        "<details><summary>All conditions</summary><table><tr><th>Object<th>Part<th>Condition",
    );
    for placed in report.conditions() {
        for condition in placed.conditions {
            page.push_str(match placed.is_problem(condition) {
                true => "<tr class=\"bad\">",
                false => "<tr>",
            });
            cells(page, &[placed.object, &placed.place, condition]);
        }
    }
    page.push_str("</table></details>");
}

fn row(page: &mut String, values: &[&dyn Display]) {
    page.push_str("<tr>");
    cells(page, values);
}

fn cells(page: &mut String, values: &[&dyn Display]) {
    for value in values {
        // Writing to a String cannot fail.
        let _ = write!(page, "<td>{}", escape(&value.to_string()));
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arc_swap::ArcSwap;

    use super::*;
    use crate::ir::ObjectRef;
    use crate::status::{Condition, ConditionType, Reason, StatusMap, StatusReport};
    use crate::table::Table;
    use crate::telemetry::{AccessLog, ProcessStats};

    #[test]
    fn shows_conditions_of_kinds_other_than_gateways_and_routes() {
        let state = AdminState::new(
            Arc::new(ArcSwap::from_pointee(Table::empty())),
            ProcessStats::default(),
            AccessLog::disabled(),
        );
        let class = ObjectRef::gateway_api("GatewayClass", "", "edge");
        let failed = Condition::fails(ConditionType::Accepted, Reason::Unsupported, "why", 1);
        state.report.store(Arc::new(StatusReport {
            gateway_classes: StatusMap::unit(class, [failed].into()),
            ..StatusReport::default()
        }));
        let page = html(&state);
        let row =
            "<tr class=\"bad\"><td>GatewayClass edge<td><td>Accepted is False (Unsupported): why";
        assert!(page.contains(row), "{page}");
    }

    #[test]
    fn escapes_markup_from_objects() {
        assert_eq!(
            escape("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
    }
}
