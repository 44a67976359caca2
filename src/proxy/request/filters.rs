//! Runs the filters of a rule or backendRef in list order, up to the first that responds. Filters
//! that need only the head are functions of [`crate::filter`]. A filter that awaits a backend, a
//! body or a timer has its own module here.

use super::exchange::Exchange;
use super::{external_auth, mirror};
use crate::filter::{self, FilterError, Level, LocalResponse, RequestFacts, Verdict};
use crate::ir::Filter;
use crate::proxy::error::Error;
use crate::table::{BackendTarget, Filters};

/// Applies the header changes of policies to the request of `exchange`.
#[cold]
pub(super) fn change_request(exchange: &mut Exchange) -> Result<(), Error> {
    let Exchange {
        defaults,
        added,
        parts,
        ..
    } = exchange;
    let defaults = defaults.as_deref();
    let Some(changes) = defaults.and_then(|it| it.request_headers.as_ref()) else {
        return Ok(());
    };
    added.insert_into(&mut parts.headers);
    filter::change_request(changes, &mut parts.headers).map_err(|_| Error::Filter)
}

/// Applies a filter that needs only the head of the request of `exchange`.
#[inline]
pub(super) fn apply(
    filter: &Filter,
    level: Level,
    exchange: &mut Exchange,
) -> Result<Verdict, Error> {
    let facts = RequestFacts {
        scheme: exchange.client.scheme(),
        host: exchange.host.as_str(),
        listener_port: exchange.client.port.number(),
        is_preflight: exchange.is_preflight,
    };
    let head = (&mut exchange.parts, &mut exchange.path);
    let phase = &mut exchange.response_phase;
    filter::request(filter, level, head, &facts, phase).map_err(error)
}

/// Applies `filters` to the request of `exchange`. Returns the response of a filter, if any. Without filters, a call has
/// no effect and its future costs more than to look.
pub(in crate::proxy) async fn run(
    filters: Filters<'_>,
    level: Level,
    exchange: &mut Exchange,
) -> Result<Option<LocalResponse>, Error> {
    exchange.added.insert_into(&mut exchange.parts.headers);
    let mut targets = filters.targets();
    for filter in filters.all {
        if let Filter::Mirror(mirror) = filter {
            let target = targets.next();
            // A retried request was mirrored by its first attempt.
            if !exchange.is_mirrored {
                mirror::start(exchange, mirror, target);
            }
            continue;
        }
        if let Filter::ExternalAuth(auth) = filter {
            let Some(BackendTarget::Backend(server)) = targets.next() else {
                return Err(Error::InvalidRule);
            };
            // Boxed, since few requests need this future but every request would reserve memory for
            // it.
            let asked = Box::pin(external_auth::authorize(
                exchange, &auth.call, server, level,
            ));
            let answer = asked.await?;
            exchange.record.attempts.have_waited();
            if let Some(response) = answer {
                return Ok(Some(response));
            }
            continue;
        }
        if let Verdict::Respond(response) = apply(filter, level, exchange)? {
            return Ok(Some(response));
        }
    }
    exchange.is_mirrored = level == Level::Backend;
    Ok(None)
}

fn error(error: FilterError) -> Error {
    match error {
        FilterError::RefusedPath(why) => Error::BadRequest(why),
        FilterError::NoHost => Error::BadRequest("no Host, which the redirect keeps"),
        FilterError::Host
        | FilterError::Path
        | FilterError::Location
        | FilterError::TooManyHeaders => Error::Filter,
    }
}
