//! `/api/v1/tap`: requests while they happen, one line of JSON each.

use std::time::Duration;

use http::StatusCode;

use super::response::{Reply, lines, text};
use super::state::AdminState;
use super::stream::TapBody;
use crate::telemetry::tap::{MAX_RATE, MAX_TAPS, StatusFilter, TapFilter};

/// Requests per second that a tap shows by default.
const RATE: u32 = 10;

/// Opens a tap.
pub(super) fn open(query: Option<&str>, state: &AdminState) -> Reply {
    let (filter, rate) = match parse(query.unwrap_or_default()) {
        Ok(parsed) => parsed,
        Err(wrong) => return text(StatusCode::BAD_REQUEST, &format!("{wrong}\n")),
    };
    match state.stats.taps.open(filter, rate) {
        Some(reader) => lines(TapBody::new(reader)),
        None => text(
            StatusCode::TOO_MANY_REQUESTS,
            &format!("{MAX_TAPS} taps are open, which is the maximum\n"),
        ),
    }
}

fn parse(query: &str) -> Result<(TapFilter, u32), String> {
    let (mut filter, mut rate) = (TapFilter::default(), RATE);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = || format!("`{value}` is not a value of the parameter `{name}`");
        match &*name {
            "route" => filter.route = Some(value.into_owned()),
            "host" => filter.host = Some(value.to_ascii_lowercase()),
            "method" => filter.method = Some(value.to_ascii_uppercase()),
            "path" => filter.path = Some(value.into_owned()),
            "status" => filter.status = Some(StatusFilter::parse(&value).ok_or_else(wrong)?),
            "minDurationMs" => {
                let millis = value.parse().map_err(|_| wrong())?;
                filter.min_duration = Some(Duration::from_millis(millis));
            }
            "maxRps" => {
                rate = value.parse().map_err(|_| wrong())?;
                if !(1..=MAX_RATE).contains(&rate) {
                    return Err(wrong());
                }
            }
            _ => return Err(format!("there is no parameter `{name}`")),
        }
    }
    Ok((filter, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_queries() {
        let query = "route=shop%2Fweb&host=A.com&method=get&path=%2Fcart&status=5xx&minDurationMs=20&maxRps=7";
        let filter = TapFilter {
            route: Some("shop/web".to_owned()),
            host: Some("a.com".to_owned()),
            method: Some("GET".to_owned()),
            path: Some("/cart".to_owned()),
            status: Some(StatusFilter::Class(5)),
            min_duration: Some(Duration::from_millis(20)),
        };
        assert_eq!(parse(query), Ok((filter, 7)));
        assert_eq!(parse(""), Ok((TapFilter::default(), RATE)));
        for query in ["status=9xx", "minDurationMs=-1", "maxRps=0", "maxRps=1001"] {
            assert!(
                parse(query).unwrap_err().contains("is not a value"),
                "{query}"
            );
        }
        assert!(parse("body=true").unwrap_err().contains("no parameter"));
    }
}
