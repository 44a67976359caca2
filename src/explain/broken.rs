//! What stops every request of a rule that is like this one, every connection or every datagram: the first fault or response of a
//! filter, in the order of phases. Credentials, addresses and limits may refuse a request before.

use http::StatusCode;

use super::backends::is_available;
use super::configuration::{Configuration, ListenerOnPort};
use crate::ir::auth_call::{AuthCall, ExternalPolicy};
use crate::ir::authentication::{Authentication, Require};
use crate::ir::client::ClientPolicies;
use crate::ir::cookie_scope::CookieScope;
use crate::ir::grpc::is_grpc;
use crate::ir::oidc::Oidc;
use crate::ir::policy::{Enforced, Policies};
use crate::ir::route::{Action, BackendTarget, WeightedBackend};
use crate::ir::{BackendId, Filter, ObjectRef};
use crate::proxy::preview::{Fault, FilterResponse, Preview};
use crate::status::warnings::without_weight;
use crate::table::Rule;

/// Why a policy refuses all connections and datagrams.
const NEEDS_REQUESTS: &str = "a policy asks for credentials or decides by requests, which connections and datagrams do not have";

/// Why a request is refused by its `Content-Length`.
const TOO_LARGE: &str = "the request body is larger than the route permits";

/// Why no request of a rule is forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// What the proxy responds.
    pub(super) fault: Fault,
    /// The object or the field, and what is wrong with it.
    pub(super) why: String,
}

/// What follows a rule, or a part of it, that is not broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// The next part, or a backend.
    On,
    /// A response that is configured.
    Response(FilterResponse),
}

/// Looks for a fault in what the requests or connections of a rule need.
struct Search<'a> {
    configuration: Configuration<'a>,
    place: ListenerOnPort<'a>,
}

/// Returns what follows for every request like this one that the rule gets, or what stops it.
pub(super) fn first(
    configuration: Configuration<'_>,
    place: ListenerOnPort<'_>,
    (rule, preview): (&Rule, &Preview),
) -> Result<Passage, Broken> {
    let search = Search {
        configuration,
        place,
    };
    search.rule(rule, preview)
}

/// Returns why no request of the rule reaches a backend or gets a response of a filter, whatever the request is.
pub(super) fn of_all(
    configuration: Configuration<'_>,
    place: ListenerOnPort<'_>,
    rule: &Rule,
) -> Option<String> {
    let policies = place_policies(place, rule);
    let fault = policies.and_then(|it| it.faults().next());
    let search = Search {
        configuration,
        place,
    };
    let broken = || search.without_policies(rule).err().map(|it| it.why);
    fault.map(str::to_owned).or_else(broken)
}

/// Returns why no connection or datagram that the rule gets is forwarded, if none is.
pub(super) fn of_connections(
    configuration: Configuration<'_>,
    place: ListenerOnPort<'_>,
    rule: &Rule,
) -> Option<String> {
    let search = Search {
        configuration,
        place,
    };
    let broken = search.connection(rule).err();
    broken.map(|broken| broken.why)
}

impl Search<'_> {
    fn rule(&self, rule: &Rule, preview: &Preview) -> Result<Passage, Broken> {
        if let Some(policies) = place_policies(self.place, rule) {
            self.policies(policies, (rule, preview))?;
        }
        let passage = self.filters(&rule.ir.filters, Some(preview))?;
        if passage != Passage::On {
            return Ok(passage);
        }
        self.buffer(rule, preview)?;
        self.action(rule, Some(preview))
    }

    fn without_policies(&self, rule: &Rule) -> Result<(), Broken> {
        if self.filters(&rule.ir.filters, None)? == Passage::On {
            self.action(rule, None)?;
        }
        Ok(())
    }

    /// Asks whether the body may be read as a whole before a backend is asked. Those of gRPC are not.
    fn buffer(&self, rule: &Rule, preview: &Preview) -> Result<(), Broken> {
        let is_stream = rule.ir.is_of_grpc() || is_grpc(preview.view().headers);
        let defaults = place_policies(self.place, rule).and_then(|it| it.route.as_ref());
        let limit = defaults.and_then(|it| it.buffered_body);
        let limit = limit.filter(|_| !is_stream).map(|limit| limit as u64);
        match preview.declares_more_than(limit) {
            true => Err(broken(Fault::Body, TOO_LARGE)),
            false => Ok(()),
        }
    }

    /// Connections have neither credentials nor filters, and limits of requests do not concern them.
    fn connection(&self, rule: &Rule) -> Result<(), Broken> {
        if let Some(policies) = place_policies(self.place, rule) {
            usable(self.place.listener.unknown_peers(policies))?;
            if policies.authentication.is_some() || policies.authorization.is_some() {
                return Err(broken(Fault::Policy, NEEDS_REQUESTS));
            }
            usable(policies.ip_rules.as_ref().and_then(Enforced::fault))?;
        }
        self.action(rule, None)?;
        Ok(())
    }

    fn action(&self, rule: &Rule, preview: Option<&Preview>) -> Result<Passage, Broken> {
        match &rule.ir.action {
            Action::Invalid(reason) => Err(broken(Fault::Rule, reason)),
            Action::Forward(shares) => match without_weight(&rule.ir) {
                Some(why) => Err(broken(Fault::NoBackend, &why)),
                None => self.shares(shares, preview),
            },
        }
    }

    fn policies(
        &self,
        policies: &Policies,
        (rule, preview): (&Rule, &Preview),
    ) -> Result<(), Broken> {
        self.addresses(policies)?;
        let max_body = policies.route.as_ref().and_then(|it| it.max_body);
        if preview.declares_more_than(max_body) {
            return Err(broken(Fault::Body, TOO_LARGE));
        }
        usable(policies.authentication.as_ref().and_then(Enforced::fault))?;
        if let Some(Enforced::Valid(authentication)) = &policies.authentication {
            if preview.is_answered_by(rule) {
                return Ok(());
            }
            if let Some(oidc) = &authentication.oidc {
                self.sign_in(oidc, preview)?;
            }
            self.permission(authentication, preview)?;
        }
        usable(policies.authorization.as_ref().and_then(Enforced::fault))
    }

    /// Asks whether addresses are known where they decide, and whether what decides by them can be used.
    fn addresses(&self, policies: &Policies) -> Result<(), Broken> {
        let clients = self.place.listener.ir.clients.as_deref();
        let unknown = clients
            .and_then(unknown_address)
            .filter(|_| policies.need_addresses());
        let before = unknown.or(policies.ip_rules.as_ref().and_then(Enforced::fault));
        usable(before.or(policies.limits.as_ref().and_then(Enforced::fault)))
    }

    /// Asks whether browsers send the cookies of a sign-in to the host. The provider asks without cookies.
    fn sign_in(&self, oidc: &Oidc, preview: &Preview) -> Result<(), Broken> {
        let view = preview.view();
        let scope = CookieScope {
            gateway: &self.place.port.ir.gateway,
            listener: &self.place.listener.ir.key,
            host: view.host,
            key: Default::default(),
        };
        let is_of_provider = oidc.back_channel_logout_path.as_deref() == Some(view.path.as_str());
        match is_of_provider || scope.is_within(&oidc.cookie) {
            true => Ok(()),
            false => {
                let (policy, host) = (&oidc.policy, view.host);
                let why = format!("the cookie domain of {policy} is not one of {host}");
                Err(broken(Fault::CookieDomain, &why))
            }
        }
    }

    /// Asks whether the authorization server of a policy can be asked, unless other credentials are enough.
    fn permission(&self, authentication: &Authentication, preview: &Preview) -> Result<(), Broken> {
        let Authentication {
            basic,
            api_key,
            tokens,
            oidc,
            external,
            require,
        } = authentication;
        let is_only = basic.is_none() && api_key.is_none() && tokens.is_none() && oidc.is_none();
        match external {
            Some(external) if is_only || *require == Require::All => self.server(external, preview),
            Some(_) | None => Ok(()),
        }
    }

    fn server(&self, external: &ExternalPolicy, preview: &Preview) -> Result<(), Broken> {
        let ExternalPolicy { policy, call, .. } = external;
        let table = self.configuration.table;
        let servers = table.ir.policy_servers.get(policy);
        let servers = servers.and_then(|it| it.0.get(&self.place.port.ir.gateway));
        match servers.and_then(|it| it.first()) {
            Some(target) => self.asked(target, Fault::Policy, (call, Some(preview))),
            None => Err(unknown_server(policy)),
        }
    }

    /// Asks whether an authorization server can be asked, which may get the body of the request first.
    fn asked(
        &self,
        target: &BackendTarget,
        invalid: Fault,
        (call, preview): (&AuthCall, Option<&Preview>),
    ) -> Result<(), Broken> {
        let max_body = Some(u64::from(call.max_body)).filter(|max| *max > 0);
        let is_too_large = preview.is_some_and(|it| it.declares_more_than(max_body));
        match target {
            BackendTarget::Backend(_) if is_too_large => Err(broken(Fault::Body, TOO_LARGE)),
            _ => self.target(target, (invalid, Fault::AuthorizationServer)),
        }
    }

    /// Passes the filters of a rule or of a backendRef.
    fn filters(&self, filters: &[Filter], preview: Option<&Preview>) -> Result<Passage, Broken> {
        for filter in filters {
            match filter {
                Filter::ExternalAuth(auth) => {
                    self.asked(&auth.target, Fault::Rule, (&auth.call, preview))?;
                }
                other => {
                    if let Some(response) = response(other, preview) {
                        return Ok(Passage::Response(response));
                    }
                }
            }
        }
        Ok(Passage::On)
    }

    /// Fails if all backendRefs with a weight fail with the same response, which connections have not. Returns the response that
    /// the filters of all of them give.
    fn shares(
        &self,
        shares: &[WeightedBackend],
        preview: Option<&Preview>,
    ) -> Result<Passage, Broken> {
        let (mut passages, mut faults) = (Vec::new(), Vec::new());
        for share in shares.iter().filter(|share| share.weight > 0) {
            match self.share(share, preview) {
                Ok(passage) => passages.push(passage),
                Err(fault) => faults.push(fault),
            }
        }
        if let Some(&first) = passages.first() {
            let is_same = faults.is_empty() && passages.iter().all(|other| *other == first);
            return Ok(if is_same { first } else { Passage::On });
        }
        faults.dedup();
        let Some(&Broken { fault, .. }) = faults.first() else {
            return Ok(Passage::On);
        };
        let response = |fault: Fault| {
            let refusal = preview?.refusal(fault);
            Some((refusal.status, refusal.grpc_status))
        };
        if faults
            .iter()
            .any(|other| response(other.fault) != response(fault))
        {
            return Ok(Passage::On);
        }
        let why: Vec<_> = faults.into_iter().map(|it| it.why).collect();
        Err(broken(fault, &why.join("; ")))
    }

    fn share(&self, share: &WeightedBackend, preview: Option<&Preview>) -> Result<Passage, Broken> {
        let passage = self.filters(&share.filters, preview)?;
        if passage == Passage::On {
            self.backend(share)?;
        }
        Ok(passage)
    }

    /// The picker of a backend is asked before an endpoint is selected, and may choose one that is not ready.
    fn backend(&self, share: &WeightedBackend) -> Result<(), Broken> {
        let backend = share.target.backend();
        let backend = backend.and_then(|id| self.configuration.table.ir.backend(id));
        let picker = backend.and_then(|it| Some((it, it.choice.picker()?)));
        let Some((backend, picker)) = picker else {
            return self.target(&share.target, (Fault::Rule, Fault::NoEndpoint));
        };
        match self.unreachable_picker(&backend.id, &picker.server) {
            Some(why) if picker.is_needed() => Err(broken(Fault::Picker, &why)),
            None if !backend.endpoints.unready().is_empty() => Ok(()),
            _ => self.target(&share.target, (Fault::Rule, Fault::NoEndpoint)),
        }
    }

    /// Returns why the picker of a backend cannot be asked, if it cannot.
    fn unreachable_picker(&self, id: &BackendId, server: &BackendTarget) -> Option<String> {
        match server {
            BackendTarget::Invalid(why) => Some(format!("{id}: {why}")),
            BackendTarget::Backend(server) if is_available(server, self.configuration) => None,
            BackendTarget::Backend(server) => Some(format!(
                "{server}, the endpoint picker of {id}, has no ready endpoint"
            )),
        }
    }

    fn target(
        &self,
        target: &BackendTarget,
        (invalid, unavailable): (Fault, Fault),
    ) -> Result<(), Broken> {
        match target {
            BackendTarget::Invalid(reason) => Err(broken(invalid, reason)),
            BackendTarget::Backend(id) if is_available(id, self.configuration) => Ok(()),
            BackendTarget::Backend(id) => {
                Err(broken(unavailable, &format!("{id} has no ready endpoint")))
            }
        }
    }
}

/// Returns the response of a filter to a request, if it has one.
fn response(filter: &Filter, preview: Option<&Preview>) -> Option<FilterResponse> {
    let is_preflight = || preview.is_some_and(Preview::is_preflight);
    let (status, has_body) = match filter {
        Filter::Redirect(redirect) => (redirect.status, false),
        Filter::Respond(response) => (response.status, !response.body.is_empty()),
        other if other.answers_preflight() && is_preflight() => (StatusCode::NO_CONTENT, false),
        _ => return None,
    };
    Some(FilterResponse { status, has_body })
}

fn place_policies<'a>(place: ListenerOnPort<'a>, rule: &'a Rule) -> Option<&'a Policies> {
    let policies = place.listener.policies(rule)?;
    Some(&*policies.ir)
}

/// Returns why it is unknown where the addresses of clients come from, if it is.
fn unknown_address(clients: &ClientPolicies) -> Option<&str> {
    let fault = clients.address.as_ref().and_then(Enforced::fault);
    fault.or(clients.unknown_protocol.as_deref())
}

fn usable(fault: Option<&str>) -> Result<(), Broken> {
    match fault {
        Some(why) => Err(broken(Fault::Policy, why)),
        None => Ok(()),
    }
}

fn unknown_server(policy: &ObjectRef) -> Broken {
    let why = format!("the authorization server of {policy} is unknown");
    broken(Fault::Policy, &why)
}

fn broken(fault: Fault, why: &str) -> Broken {
    Broken {
        fault,
        why: why.to_owned(),
    }
}
