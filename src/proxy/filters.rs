//! Runs the filters of a rule or of a backendRef in the order of their list, up to the first that responds. Filters that
//! need nothing but the head are functions of [`crate::filter`]; one that waits for a backend, a body or time stands
//! beside this file and is awaited here.

use super::error::Error;
use super::request::Exchange;
use crate::filter::{self, Level, LocalResponse, RequestFacts, Verdict};
use crate::ir::Filter;

/// Applies `filters` to the request of `exchange`. Returns the response of a filter that responds itself.
pub(super) async fn run(
    filters: &[Filter],
    level: Level,
    exchange: &mut Exchange,
) -> Result<Option<LocalResponse>, Error> {
    if !filters.is_empty() {
        exchange.added.insert_into(&mut exchange.parts.headers);
    }
    for filter in filters {
        let facts = RequestFacts {
            scheme: exchange.client.scheme(),
            host: exchange.host.as_str(),
            listener_port: exchange.client.port.number(),
        };
        let (parts, phase) = (&mut exchange.parts, &mut exchange.response_phase);
        let verdict = filter::request(filter, level, parts, &facts, phase);
        if let Verdict::Respond(response) = verdict.map_err(|_| Error::Filter)? {
            return Ok(Some(response));
        }
    }
    Ok(None)
}
