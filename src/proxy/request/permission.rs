//! Credentials that take time to verify: a password, then a session of an OpenID provider, then the permission of an
//! authorization server, then what follows from them. Few requests have these. Rules and limits see the request as the client has
//! sent it, like those of requests whose credentials take no time, and with what an authorization server has said.

use http::{HeaderMap, HeaderName};

use super::authentication::Unverified;
use super::exchange::Exchange;
use super::identity::Identity;
use super::policy_refusal::PolicyRefusal;
use super::sign_in::Session;
use super::view::view;
use super::{external_auth, policies, sign_in};
use crate::filter::{Level, LocalResponse};
use crate::proxy::error::Error;
use crate::table::{LimitedRequest, Remaining, RequestView, TakenTokens};

/// Verifies the credentials of a request. Returns the response to the client if there is one before that of a
/// backend: of the authorization server, or for a sign-in.
pub(super) async fn verify(
    exchange: &mut Exchange,
    unverified: Box<Unverified>,
) -> Result<Option<LocalResponse>, Box<PolicyRefusal>> {
    let (in_force, remaining) = (unverified.identity.policies.clone(), unverified.remaining);
    let verified = permit(exchange, unverified).await;
    verified.map_err(|refusal| policies::announce(refusal, &in_force, remaining))
}

async fn permit(
    exchange: &mut Exchange,
    mut unverified: Box<Unverified>,
) -> Result<Option<LocalResponse>, Box<PolicyRefusal>> {
    let client = exchange.record.client().ip();
    let worker = exchange.client.worker.clone();
    unverified
        .verify_password(&worker.passwords, client)
        .await?;
    let Unverified {
        mut identity,
        remaining,
        taken,
        server,
        place,
        lacking,
        ..
    } = *unverified;
    if let Some(oidc) = identity.oidc().cloned() {
        let place = place.ok_or(Error::BrokenPolicy)?;
        let session = sign_in::check(exchange, (&oidc, place), &identity, lacking).await?;
        match session {
            Session::Valid(session) => identity.session = Some(session),
            Session::Needless => {}
            Session::Respond(response) => return Ok(Some(response)),
        }
    }
    let external = identity.external();
    let mut seen = None;
    if let Some(external) = external {
        exchange.added.insert_into(&mut exchange.parts.headers);
        let sent = identity.decides().then(|| exchange.parts.headers.clone());
        // Before the call: the server sees what backends get, and nothing of its response is removed.
        identity.apply(&mut exchange.parts)?;
        exchange.translate_head();
        let asked = sent.map(|sent| (sent, exchange.parts.headers.clone()));
        if identity.needs_permission() {
            let server = server.ok_or(Error::BrokenPolicy)?;
            if let Some(refused) = external_auth::ask(exchange, external, &server).await? {
                return Ok(Some(refused));
            }
        } else {
            external_auth::remove_forged(external, &mut exchange.parts.headers)?;
        }
        if let Some((sent, asked)) = asked {
            seen = Some(with_changes(sent, &asked, &exchange.parts.headers)?);
        }
    }
    let view = exchange.view();
    let view = RequestView {
        headers: seen.as_ref().unwrap_or(view.headers),
        ..view
    };
    identity.authorize(client, &view)?;
    if !identity.is_unknown() {
        exchange.record.note(|| identity.event());
    }
    count(exchange, (&identity, seen.as_ref()), (remaining, taken))?;
    if external.is_none() {
        identity.apply(&mut exchange.parts)?;
        exchange.translate_head();
    }
    Ok(None)
}

/// Returns the head that a client has sent, with what an authorization server has changed in the one that it was `asked` about.
fn with_changes(
    mut sent: HeaderMap,
    asked: &HeaderMap,
    answered: &HeaderMap,
) -> Result<HeaderMap, Error> {
    let is_changed = |name: &&HeaderName| {
        !asked
            .get_all(*name)
            .iter()
            .eq(answered.get_all(*name).iter())
    };
    for name in asked.keys().chain(answered.keys()).filter(is_changed) {
        sent.remove(name);
        for value in answered.get_all(name) {
            let appended = sent.try_append(name, value.clone());
            appended.map_err(|_| Error::Filter)?;
        }
    }
    Ok(sent)
}

/// Counts a request by the identity of its client. `seen` is the head that limits see, if it is not that of the exchange.
fn count(
    exchange: &mut Exchange,
    (identity, seen): (&Identity, Option<&HeaderMap>),
    before: (Option<Remaining>, TakenTokens),
) -> Result<(), Box<PolicyRefusal>> {
    let head = (&exchange.parts, &exchange.path);
    let target = (&exchange.host, exchange.upgrade.as_ref());
    let view = view(head, target, &exchange.added);
    let request = LimitedRequest {
        client: exchange.record.client().ip(),
        view: RequestView {
            headers: seen.unwrap_or(view.headers),
            ..view
        },
    };
    let span = exchange.record.span.as_deref_mut();
    let (counted, headers) = policies::identified(identity, &request, before, span)?;
    if let Some(counted) = counted {
        exchange.record.counts_as(counted);
    }
    if let Some(headers) = headers {
        let phase = &mut exchange.response_phase;
        phase.change_headers(Level::Rule, *headers);
    }
    Ok(())
}
