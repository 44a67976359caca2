//! `/api/v1/log-level`: the level of the log, read and set for a limited time.

use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::sleep_until;

use super::response::{Reply, respond, text};
use super::state::AdminState;
use crate::runtime::optional::or_pending;
use crate::telemetry::log::{self, Level, LevelError};

const USAGE: &str = "write /api/v1/log-level?level=debug&seconds=600";

/// Responds with the level.
pub(super) fn get() -> Reply {
    match log::level() {
        Some(level) => document(&level),
        None => refused(&LevelError::NotStarted),
    }
}

/// Sets the level that a query names.
pub(super) fn put(query: Option<&str>, state: &AdminState) -> Reply {
    let (directives, time) = match parse(query.unwrap_or_default()) {
        Ok(parsed) => parsed,
        Err(wrong) => return text(StatusCode::BAD_REQUEST, &format!("{wrong}; {USAGE}\n")),
    };
    match log::set_level(&directives, time) {
        Ok(level) => {
            let seconds = time.as_secs();
            log::write_line(&format!(
                "portcullis: the log level is {directives} for {seconds} s"
            ));
            state.level_set.notify_one();
            document(&level)
        }
        Err(error) => refused(&error),
    }
}

/// Returns to the configured level when the time of another one is over.
pub(super) async fn expire(state: &AdminState) {
    loop {
        let until = log::level().and_then(|level| level.until);
        let over = until.map(|until| sleep_until(until.into()));
        tokio::select! {
            () = or_pending(over) => if log::expire_level() {
                log::write_line("portcullis: the log level is the configured one again");
            },
            () = state.level_set.notified() => {}
        }
    }
}

fn parse(query: &str) -> Result<(String, Duration), String> {
    let (mut level, mut seconds) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "level" => level = Some(value.into_owned()),
            "seconds" => seconds = Some(value.parse().map_err(|_| "`seconds` is not a number")?),
            _ => return Err(format!("there is no parameter `{name}`")),
        }
    }
    let level = level.ok_or("the parameter `level` is missing")?;
    let seconds = seconds.ok_or("the parameter `seconds` is missing")?;
    Ok((level, Duration::from_secs(seconds)))
}

fn document(level: &Level) -> Reply {
    let body = to_json(level, Instant::now()).to_string();
    respond(StatusCode::OK, "application/json", body)
}

fn to_json(level: &Level, now: Instant) -> Value {
    let left = level
        .until
        .map(|until| until.saturating_duration_since(now));
    json!({
        "level": level.current,
        "configured": level.configured,
        "expiresInSeconds": left.map(|left| left.as_secs_f64().ceil() as u64),
    })
}

fn refused(error: &LevelError) -> Reply {
    let status = match error {
        LevelError::Invalid(_) | LevelError::Time => StatusCode::BAD_REQUEST,
        LevelError::NotStarted => StatusCode::SERVICE_UNAVAILABLE,
    };
    text(status, &format!("{error}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_queries() {
        let parsed = parse("level=info%2Cportcullis%3A%3Aproxy%3Ddebug&seconds=600");
        let directives = "info,portcullis::proxy=debug".to_owned();
        assert_eq!(parsed, Ok((directives, Duration::from_secs(600))));
        for (query, part) in [
            ("", "`level` is missing"),
            ("level=debug", "`seconds` is missing"),
            ("level=debug&seconds=-1", "not a number"),
            ("level=debug&seconds=1&x=1", "no parameter `x`"),
        ] {
            let wrong = parse(query).unwrap_err();
            assert!(wrong.contains(part), "{query}: {wrong}");
        }
    }

    #[test]
    fn document_has_the_time_left() {
        let now = Instant::now();
        let level = Level {
            current: "debug".to_owned(),
            configured: "info".to_owned(),
            until: Some(now + Duration::from_millis(59_500)),
        };
        let expected = json!({"level": "debug", "configured": "info", "expiresInSeconds": 60});
        assert_eq!(to_json(&level, now), expected);
    }
}
