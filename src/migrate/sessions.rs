//! Session cookies, which keep the requests of a client at one endpoint.

use serde_json::{Value, json};

use super::model::Ingress;
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready};
use super::values::{Values, seconds};
use super::work::Work;

const SETTINGS: [&str; 10] = [
    "affinity-canary-behavior",
    "affinity-mode",
    "session-cookie-change-on-failure",
    "session-cookie-domain",
    "session-cookie-expires",
    "session-cookie-max-age",
    "session-cookie-name",
    "session-cookie-path",
    "session-cookie-samesite",
    "session-cookie-secure",
];

/// Returns the section `sessionPersistence` of a BackendPolicy.
pub(super) fn persistence(work: &mut Work<'_>, ingress: &Ingress) -> Option<Value> {
    let values = Values(ingress);
    if values.text("affinity") != Some("cookie") {
        for name in SETTINGS.into_iter().chain(["affinity"]) {
            if values.has(name) {
                work.say(
                    ingress,
                    name,
                    DefaultAlready,
                    "affinity is not `cookie`, so that ingress-nginx has no sessions",
                );
            }
        }
        return None;
    }
    work.say(
        ingress,
        "affinity",
        Converted,
        "BackendPolicy sessionPersistence",
    );
    let mut is_token = |name: &&str| {
        let is_one = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
        if !is_one {
            let text = format!("a cookie cannot have the name `{name}`: it is INGRESSCOOKIE");
            work.say(ingress, "session-cookie-name", ChangedMeaning, text);
        }
        is_one
    };
    let name = values.text("session-cookie-name").filter(&mut is_token);
    let name = name.unwrap_or("INGRESSCOOKIE");
    let mut session =
        json!({"type": "Cookie", "sessionName": name.chars().take(128).collect::<String>()});
    let age = values.number("session-cookie-max-age", &mut work.report);
    let age = age.or_else(|| values.number("session-cookie-expires", &mut work.report));
    if let Some(age) = age.filter(|age| *age > 0) {
        session["absoluteTimeout"] = json!(seconds(age));
        session["cookieConfig"] = json!({"lifetimeType": "Permanent"});
    }
    report_settings(work, ingress);
    Some(session)
}

/// Reports the settings of sessions that have no line yet.
fn report_settings(work: &mut Work<'_>, ingress: &Ingress) {
    let values = Values(ingress);
    let mode = values.text("affinity-mode");
    if mode.is_some_and(|mode| mode != "persistent") {
        work.say(
            ingress,
            "affinity-mode",
            ChangedMeaning,
            "sessions stay at their endpoints when there are more, as with `persistent`",
        );
    }
    if values.text("affinity-canary-behavior") == Some("legacy") {
        work.say(
            ingress,
            "affinity-canary-behavior",
            ChangedMeaning,
            "sessions stay at a canary, as with `sticky`",
        );
    }
    if values
        .text("session-cookie-samesite")
        .is_some_and(|text| text != "Lax")
    {
        work.say(
            ingress,
            "session-cookie-samesite",
            ChangedMeaning,
            "the cookie has SameSite=Lax",
        );
    }
    for name in SETTINGS {
        if !values.has(name) || work.report.has(&ingress.name, name) {
            continue;
        }
        if let Some(row) = super::annotations::find(name) {
            let outcome = match name {
                "session-cookie-samesite" => DefaultAlready,
                _ => row.outcome,
            };
            work.say(ingress, name, outcome, row.text);
        }
    }
}
