//! The status page: listeners and conditions as plain HTML. Escapes all text from objects.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use super::AdminState;
use crate::status::{Condition, ListenerStatus};

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
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Portcullis</title><style>{STYLE}</style>\
         <h1>Portcullis {version}</h1><p>{ready}; generation {generation}; {problems} problems; {open} client connections</p>\
         <p><a href=\"/config\">configuration</a> · <a href=\"/metrics\">metrics</a> · \
         <a href=\"/readyz\">readiness</a> · <a href=\"/healthz\">health</a></p>",
        version = env!("CARGO_PKG_VERSION"),
        generation = table.generation,
        problems = state.stats.config.problems(),
        open = state.stats.connections.open(),
    );
    ports(&mut page, state);
    conditions(&mut page, state);
    page.push_str("</html>\n");
    page
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
    page.push_str("<h2>Conditions</h2><table><tr><th>Object<th>Part<th>Condition");
    for (object, status) in &report.gateways {
        rows(page, object, "", &status.conditions);
        listeners(page, object, &status.listeners);
    }
    for (object, status) in &report.listener_sets {
        rows(page, object, "", &status.conditions);
        listeners(page, object, &status.listeners);
    }
    for (object, parents) in report.routes.iter() {
        for parent in parents.iter() {
            let to = &parent.parent_ref;
            let place = format!("on {} {}", to.kind, to.name);
            rows(page, object, &place, &parent.conditions);
        }
    }
    page.push_str("</table>");
    if !report.notes.is_empty() {
        page.push_str("<h2>Notes</h2><table><tr><th>Object<th>Note");
        for note in &report.notes {
            row(page, &[&note.object, &note.message]);
        }
        page.push_str("</table>");
    }
}

fn listeners(page: &mut String, object: &impl Display, listeners: &[ListenerStatus]) {
    for listener in listeners {
        let place = format!("listener {}", listener.name);
        rows(page, object, &place, &listener.conditions);
    }
}

fn rows(page: &mut String, object: &impl Display, place: &str, conditions: &[Condition]) {
    for condition in conditions {
        let class = if condition.is_problem() {
            " class=\"bad\""
        } else {
            ""
        };
        page.push_str("<tr");
        page.push_str(class);
        page.push('>');
        cells(page, &[object, &place, condition]);
    }
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
    use super::*;

    #[test]
    fn escapes_markup_from_objects() {
        assert_eq!(
            escape("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
    }
}
