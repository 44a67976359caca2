//! Credentials that take time to verify: a password, then a session of an OpenID provider, then the permission of an
//! authorization server, then what follows from them. Few requests have these.

use super::authentication::Unverified;
use super::exchange::Exchange;
use super::identity::Identity;
use super::policy_refusal::PolicyRefusal;
use super::sign_in::Session;
use super::view::view;
use super::{external_auth, policies, sign_in};
use crate::filter::{Level, LocalResponse};
use crate::proxy::error::Error;
use crate::table::{LimitedRequest, Remaining, TakenTokens};

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
    if let Some(external) = external {
        // Before the call: the server sees what backends get, and nothing of its response is removed.
        identity.apply(&mut exchange.parts)?;
        if identity.needs_permission() {
            let server = server.ok_or(Error::BrokenPolicy)?;
            if let Some(refused) = external_auth::ask(exchange, external, &server).await? {
                return Ok(Some(refused));
            }
        } else {
            external_auth::remove_forged(external, &mut exchange.parts.headers)?;
        }
    }
    identity.authorize(client, &exchange.view())?;
    if !identity.is_unknown() {
        exchange.record.note(|| identity.event());
    }
    count(exchange, &identity, (remaining, taken))?;
    if external.is_none() {
        identity.apply(&mut exchange.parts)?;
    }
    Ok(None)
}

/// Counts a request by the identity of its client.
fn count(
    exchange: &mut Exchange,
    identity: &Identity,
    before: (Option<Remaining>, TakenTokens),
) -> Result<(), Box<PolicyRefusal>> {
    let head = (&exchange.parts, &exchange.path);
    let view = view(head, &exchange.host, &exchange.added);
    let request = LimitedRequest {
        client: exchange.record.client().ip(),
        view,
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
