//! The answer to a preflight request that has passed without credentials. No backend, mirror or authorization server gets it.

use super::answer::Answer;
use super::exchange::Exchange;
use super::filters;
use super::policy_refusal::PolicyRefusal;
use crate::filter::{Level, LocalResponse, Verdict};
use crate::proxy::error::Error;

/// Answers the request by the CORS filter of its rule, or refuses it if that does not answer it.
pub(super) fn answer(
    (mut exchange, refusal): (Box<Exchange>, Box<PolicyRefusal>),
) -> (Box<Exchange>, Answer) {
    let answer = match of_filter(&mut exchange) {
        Ok(Some(response)) => Answer::Local(response),
        Ok(None) => {
            exchange.record.note_if(|| refusal.event());
            Answer::Refusal(*refusal)
        }
        Err(error) => Answer::Refusal(error.into()),
    };
    (exchange, answer)
}

/// Returns the response of a filter, if one responds before the request would be sent anywhere.
fn of_filter(exchange: &mut Exchange) -> Result<Option<LocalResponse>, Error> {
    filters::change_request(exchange)?;
    exchange.added.insert_into(&mut exchange.parts.headers);
    let rule = exchange.rule.clone();
    for filter in rule.filters().all {
        if filter.target().is_some() {
            break;
        }
        if let Verdict::Respond(response) = filters::apply(filter, Level::Rule, exchange)? {
            return Ok(Some(response));
        }
    }
    Ok(None)
}
