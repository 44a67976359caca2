//! The policies on the routes of an Ingress.

use serde_json::{Map, Value, json};

use super::access;
use super::error_pages;
use super::hsts;
use super::model::Ingress;
use super::output::File;
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::values::{Values, cidrs, seconds, size};
use super::work::Work;

/// Maximum number of targets of a policy.
const MAX_TARGETS: usize = 16;
/// What becomes of statuses of `proxy-next-upstream`.
const STATUSES: &str = "statuses are not retried: RoutePolicy retry.codes would repeat POST, LOCK and PATCH too, which nginx does only with \
     `error timeout non_idempotent`. Where each request may be repeated, add retry.codes";
/// What a policy targets: a kind and a name.
pub(super) type Target = (&'static str, String);

/// Writes the policies of an Ingress on its routes.
pub(super) fn write(work: &mut Work<'_>, ingress: &Ingress, targets: &[Target], closed: bool) {
    let access = access::sections(work, ingress, closed);
    policy(work, ingress, targets, "AccessPolicy", &access);
    let route = route_sections(work, ingress);
    policy(work, ingress, targets, "RoutePolicy", &route);
    let limits = limit_sections(work, ingress);
    policy(work, ingress, targets, "RateLimitPolicy", &limits);
}

fn policy(
    work: &mut Work<'_>,
    ingress: &Ingress,
    targets: &[Target],
    kind: &str,
    sections: &Map<String, Value>,
) {
    if sections.is_empty() {
        return;
    }
    for (index, chunk) in targets.chunks(MAX_TARGETS).enumerate() {
        let refs: Vec<Value> = chunk
            .iter()
            .map(|(kind, name)| json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name}))
            .collect();
        let mut spec = sections.clone();
        spec.insert("targetRefs".to_owned(), refs.into());
        let mut name = ingress.name.clone();
        if index > 0 {
            name.name = format!("{}-{}", name.name, index + 1);
        }
        let file = File::Ingress(ingress.name.clone());
        work.output.policy(&file, kind, &name, spec.into());
    }
}

fn route_sections(work: &mut Work<'_>, ingress: &Ingress) -> Map<String, Value> {
    let mut sections = Map::new();
    let values = Values(ingress);
    let is_own_gateway = work.settings.gateway_class.is_some();
    let mut max = (!is_own_gateway).then(|| work.controller.body_size.clone());
    if let Some(text) = values.text("proxy-body-size") {
        match size(text) {
            Some(found) => {
                let text = match found == super::values::UNLIMITED {
                    true => "RoutePolicy requestBody.maxSize, more than any body has",
                    false => "RoutePolicy requestBody.maxSize",
                };
                work.say(ingress, "proxy-body-size", Converted, text);
                max = Some(found);
            }
            None => {
                let message = format!("`{text}` is no size: the default of the Gateway applies");
                work.say(ingress, "proxy-body-size", DefaultAlready, message);
            }
        }
    }
    if let Some(max) = max {
        sections.insert("requestBody".to_owned(), json!({"maxSize": max}));
    }
    timeouts(work, ingress, &mut sections);
    retries(work, ingress, &mut sections);
    error_pages::add(work, ingress, &mut sections);
    hsts::add(work, ingress, &mut sections);
    report_buffers(work, ingress);
    sections
}

fn timeouts(work: &mut Work<'_>, ingress: &Ingress, sections: &mut Map<String, Value>) {
    let values = Values(ingress);
    let names = ["proxy-read-timeout", "proxy-send-timeout"];
    let found = names.map(|name| values.number(name, &mut work.report));
    let longest = found.into_iter().flatten().max();
    let Some(longest) = longest else {
        return;
    };
    for (name, value) in names.into_iter().zip(found) {
        let Some(value) = value else { continue };
        match value == longest {
            true => work.say(ingress, name, Converted, "RoutePolicy timeouts.streamIdle"),
            false => {
                let text = "RoutePolicy timeouts.streamIdle is the longer one of proxy-read-timeout and proxy-send-timeout";
                work.say(ingress, name, ChangedMeaning, text);
            }
        }
    }
    let timeouts = json!({"streamIdle": seconds(longest)});
    sections.insert("timeouts".to_owned(), timeouts);
}

fn retries(work: &mut Work<'_>, ingress: &Ingress, sections: &mut Map<String, Value>) {
    let values = Values(ingress);
    let tries = values.number("proxy-next-upstream-tries", &mut work.report);
    let conditions = values.text("proxy-next-upstream");
    let conditions = conditions.unwrap_or("error timeout");
    let words: Vec<&str> = conditions.split_whitespace().collect();
    let code = |word: &&str| word.strip_prefix("http_")?.parse::<u16>().ok();
    let codes: Vec<u16> = words
        .iter()
        .filter_map(code)
        .filter(|it| *it >= 400)
        .collect();
    if values.has("proxy-next-upstream-timeout") {
        let text = "RoutePolicy timeouts.request may cover all attempts";
        work.say(ingress, "proxy-next-upstream-timeout", ChangedMeaning, text);
    }
    let is_off = words.contains(&"off") || tries == Some(1);
    // RoutePolicies retry a status for every method, and then failed connections too.
    let of_all = ["error", "timeout", "non_idempotent"];
    let are_of_all = of_all.iter().all(|word| words.contains(word));
    let retry = if is_off {
        Some(json!({"attempts": 0}))
    } else if codes.is_empty() || !are_of_all {
        None
    } else {
        let attempts = tries.filter(|it| *it > 1).unwrap_or(3) - 1;
        Some(json!({"codes": codes, "attempts": attempts.min(10)}))
    };
    if retry.is_none() && !codes.is_empty() {
        work.say(ingress, "proxy-next-upstream", ChangedMeaning, STATUSES);
    } else if retry.is_none() && words.contains(&"non_idempotent") {
        let text =
            "a request that a backend may have got is sent again only if its method is idempotent";
        work.say(ingress, "proxy-next-upstream", ChangedMeaning, text);
    }
    let has_section = retry.is_some();
    if let Some(retry) = retry {
        sections.insert("retry".to_owned(), retry);
    }
    for name in ["proxy-next-upstream", "proxy-next-upstream-tries"] {
        if !values.has(name) || work.report.has(&ingress.name, name) {
            continue;
        }
        match has_section {
            true => work.say(ingress, name, Converted, "RoutePolicy retry"),
            false => {
                let text = "requests are tried at up to 3 endpoints if a connection fails";
                work.say(ingress, name, DefaultAlready, text);
            }
        }
    }
}

/// Reports how bodies are forwarded, where the value says whether that differs.
fn report_buffers(work: &mut Work<'_>, ingress: &Ingress) {
    let values = Values(ingress);
    if let Some(text) = values.text("proxy-request-buffering") {
        match text {
            "on" => {
                let text = "request bodies are sent on as they arrive: RoutePolicy requestBody.buffer reads those of up to 1Mi before";
                work.say(ingress, "proxy-request-buffering", ChangedMeaning, text);
            }
            _ => work.say(
                ingress,
                "proxy-request-buffering",
                DefaultAlready,
                "request bodies are sent on as they arrive",
            ),
        }
    }
    if values.text("proxy-buffering").is_some() {
        let text = "responses are sent on as they arrive, with bounded memory";
        work.say(ingress, "proxy-buffering", DefaultAlready, text);
    }
    if let Some(version) = values.text("proxy-http-version") {
        let outcome = if version == "1.1" {
            DefaultAlready
        } else {
            ChangedMeaning
        };
        work.say(
            ingress,
            "proxy-http-version",
            outcome,
            "requests are sent with HTTP/1.1",
        );
    }
    let nothing = ["off", "default", ""];
    for name in [
        "proxy-cookie-domain",
        "proxy-cookie-path",
        "proxy-redirect-from",
        "proxy-redirect-to",
    ] {
        let Some(text) = values.text(name) else {
            continue;
        };
        let row = super::annotations::find(name);
        match (nothing.contains(&text), row) {
            (false, Some(row)) => work.say(ingress, name, row.outcome, row.text),
            _ => work.say(
                ingress,
                name,
                DefaultAlready,
                "responses of backends stay as they are",
            ),
        }
    }
}

fn limit_sections(work: &mut Work<'_>, ingress: &Ingress) -> Map<String, Value> {
    let values = Values(ingress);
    let factor = values.number("limit-burst-multiplier", &mut work.report);
    let factor = factor.unwrap_or(5).max(1);
    let mut rules = Vec::new();
    for (name, per) in [("limit-rps", "Second"), ("limit-rpm", "Minute")] {
        let number = values.number(name, &mut work.report);
        let Some(number) = number.filter(|it| *it > 0) else {
            continue;
        };
        let requests = number.min(1_000_000);
        // nginx lets a request pass, and as many as its `burst` besides.
        let burst = requests.saturating_mul(factor).saturating_add(1);
        let burst = burst.min(1_000_000);
        let limit = json!({"requests": requests, "per": per, "burst": burst});
        rules.push(json!({"name": name, "key": [{"type": "ClientIP"}], "limit": limit}));
        work.say(
            ingress,
            name,
            Converted,
            "RateLimitPolicy rules[].limit, per replica as in ingress-nginx",
        );
    }
    let connections = values.number("limit-connections", &mut work.report);
    if let Some(number) = connections.filter(|it| *it > 0) {
        let concurrent = number.min(1_000_000);
        rules.push(json!({"name": "limit-connections", "key": [{"type": "ClientIP"}], "concurrent": concurrent}));
        let text = "RateLimitPolicy rules[].concurrent counts requests, of which an HTTP/2 connection may have many";
        work.say(ingress, "limit-connections", ChangedMeaning, text);
    }
    let exempt = exempt(work, ingress);
    let mut sections = Map::new();
    if rules.is_empty() {
        return sections;
    }
    if values.has("limit-burst-multiplier")
        && !work.report.has(&ingress.name, "limit-burst-multiplier")
    {
        work.say(
            ingress,
            "limit-burst-multiplier",
            Converted,
            "RateLimitPolicy rules[].limit.burst",
        );
    }
    if !exempt.is_empty() {
        for rule in &mut rules {
            rule["exempt"] = json!({"cidrs": exempt});
        }
    }
    sections.insert("rules".to_owned(), rules.into());
    let response = json!({"status": work.controller.limit_status});
    sections.insert("response".to_owned(), response);
    sections
}

/// Returns the addresses that limits are not for.
fn exempt(work: &mut Work<'_>, ingress: &Ingress) -> Vec<String> {
    let values = Values(ingress);
    let mut exempt = Vec::new();
    for name in ["limit-whitelist", "limit-allowlist"] {
        if !values.has(name) {
            continue;
        }
        if name == "limit-whitelist" && values.text("limit-allowlist").is_some() {
            let text = "limit-allowlist takes its place";
            work.say(ingress, name, DefaultAlready, text);
            continue;
        }
        match cidrs(&values.list(name)) {
            Ok(list) => {
                exempt.extend(list);
                work.say(
                    ingress,
                    name,
                    Converted,
                    "RateLimitPolicy rules[].exempt.cidrs",
                );
            }
            Err(wrong) => {
                let text = format!("`{wrong}` is no address: limits hold for all clients");
                work.say(ingress, name, NotPossible, text);
            }
        }
    }
    exempt
}
