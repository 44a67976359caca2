//! Runs the filters of a rule or backendRef in list order, up to the first that responds. Filters
//! that need only the head are functions of [`crate::filter`]; a filter that awaits a backend, a
//! body or time has a module of its own here.

use super::error::Error;
use super::request::Exchange;
use crate::filter::{self, Level, LocalResponse, RequestFacts, Verdict};
use crate::ir::Filter;

/// Applies `filters` to the request of `exchange`. Returns the response of a filter, if any.
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
