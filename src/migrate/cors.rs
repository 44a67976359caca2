//! CORS annotations, with the defaults of ingress-nginx.

use serde_json::{Value, json};

use super::model::Ingress;
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::values::Values;
use super::work::Work;

const METHODS: &str = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
const HEADERS: &str = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
/// Maximum number of items of a list of the filter.
const MAX_ITEMS: usize = 64;
const SETTINGS: [&str; 6] = [
    "cors-allow-credentials",
    "cors-allow-headers",
    "cors-allow-methods",
    "cors-allow-origin",
    "cors-expose-headers",
    "cors-max-age",
];

/// Returns the settings of a CORS filter.
pub(super) fn filter(work: &mut Work<'_>, ingress: &Ingress) -> Option<Value> {
    let values = Values(ingress);
    if !values.flag_or("enable-cors", false, &mut work.report) {
        for name in SETTINGS.into_iter().chain(["enable-cors"]) {
            if values.has(name) {
                work.say(ingress, name, DefaultAlready, "CORS is not enabled");
            }
        }
        return None;
    }
    let list = |name: &str, default: &str| -> Vec<String> {
        let text = values.text(name).unwrap_or(default);
        let items = super::values::elements(text).into_iter();
        items.map(str::to_owned).collect()
    };
    let mut checked = |name: &str, default: &str, fits: fn(&str) -> bool| {
        let (mut valid, mut others): (Vec<String>, _) =
            list(name, default).into_iter().partition(|it| fits(it));
        valid.sort();
        valid.dedup();
        if valid.iter().any(|it| it == "*") {
            valid = vec!["*".to_owned()];
        }
        others.extend(valid.split_off(valid.len().min(MAX_ITEMS)));
        if !others.is_empty() {
            let message = format!("left out: {}", others.join(", "));
            work.say(ingress, name, NotPossible, message);
        }
        valid
    };
    let valid = checked("cors-allow-origin", "*", is_origin);
    let methods = checked("cors-allow-methods", METHODS, is_method);
    let headers = checked("cors-allow-headers", HEADERS, is_name);
    let exposed = checked("cors-expose-headers", "", is_name);
    let is_any = valid.iter().any(|it| it == "*");
    let credentials = values.flag_or("cors-allow-credentials", true, &mut work.report);
    // Browsers refuse credentials with `*`, and a CORS filter would name each origin instead.
    if credentials && is_any {
        let message = "any origin is allowed, and browsers send such responses no credentials: the filter allows none";
        work.say(ingress, "enable-cors", ChangedMeaning, message);
    }
    let age = values.number("cors-max-age", &mut work.report);
    let mut filter = json!({
        "allowOrigins": valid,
        "allowCredentials": credentials && !is_any,
        "allowMethods": methods,
        "allowHeaders": headers,
        "maxAge": age.unwrap_or(1_728_000).clamp(1, 2_147_483_647),
    });
    if !exposed.is_empty() {
        filter["exposeHeaders"] = json!(exposed);
    }
    for name in SETTINGS.into_iter().chain(["enable-cors"]) {
        if values.has(name) && !work.report.has(&ingress.name, name) {
            work.say(ingress, name, Converted, "CORS filter of the HTTPRoute");
        }
    }
    Some(filter)
}

fn is_method(text: &str) -> bool {
    let known = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*",
    ];
    known.contains(&text)
}

fn is_name(text: &str) -> bool {
    text.len() <= 256 && http::HeaderName::from_bytes(text.as_bytes()).is_ok()
}

/// Reports whether a text is an origin that a CORS filter may have.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return text == "*";
    };
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => host,
    };
    ["http", "https"].contains(&scheme)
        && (host == "*" || super::read::is_hostname(&host.to_ascii_lowercase()))
}
