//! Rules at run time: state that survives configuration changes, and the weighted selection of a backend.

use std::net::SocketAddr;
use std::sync::Arc;

use rand::RngExt;
use thin_vec::ThinVec;

use super::backend::Backend;
use super::backends::Backends;
use super::filter::{Filters, Targets};
use super::forward_stats::ForwardStats;
use super::matcher::{RequestView, may_differ};
use super::policies::{Policies, PolicyStates};
use super::protected;
use super::request_stats::RuleStats;
use super::target::BackendTarget;
use crate::ir;
use crate::ir::Time;
use crate::ir::cors::is_preflight;
use crate::ir::protected_headers::ProtectedHeaders;
use crate::ir::route::Action;
use crate::ir::sharing::Text;
use crate::ir::{Precedence, RouteKind};

/// A rule of a route, shared by all listeners that the route is attached to.
#[derive(Debug)]
pub struct Rule {
    /// Its configuration.
    pub ir: Arc<ir::Rule>,
    /// State that survives changes of the rule.
    pub state: Arc<RuleState>,
    backends: WeightedBackends,
    filter_targets: Targets,
    /// What policies require of its requests, if they target its route.
    policies: Option<Arc<Policies>>,
    /// The headers that its filters decide about, and those that select it among rules with policies.
    protected: Option<Arc<ProtectedHeaders>>,
    /// The query parameters that select among the rules of its route, if these are protected in different ways.
    parameters: ThinVec<Text>,
    /// Kind and creation time of its route, which are part of the precedence.
    kind: RouteKind,
    created: Option<Time>,
    priority: i16,
}

/// State of a rule that survives table swaps while a rule of this name exists, such as counters.
#[derive(Debug, Default)]
pub struct RuleState {
    /// Its counters.
    pub stats: RuleStats,
    /// Counters of what it forwards as it is.
    pub forwarded: ForwardStats,
}

/// The backends, those of weight 0 included. Most rules have one, which is selected without a draw.
#[derive(Debug)]
enum WeightedBackends {
    One(WeightedBackend),
    Other(Box<Shares>),
}

/// Any number of backends.
#[derive(Debug)]
struct Shares {
    all: Box<[WeightedBackend]>,
    /// Sums of the weights up to and including each backend.
    sums: Box<[u64]>,
}

/// A backendRef of a rule.
#[derive(Debug)]
pub struct WeightedBackend {
    /// Its backend.
    pub target: BackendTarget,
    /// Its filters, which few have.
    filters: Option<Box<OwnFilters>>,
    /// Whether it can be selected. With weight 0, only requests of its sessions reach it (GEP-1619, "Traffic Splitting").
    pub has_weight: bool,
}

/// Filters of a backendRef, which run after those of the rule.
#[derive(Debug)]
struct OwnFilters {
    all: ThinVec<ir::Filter>,
    targets: Targets,
}

impl WeightedBackend {
    fn new(ir: &ir::route::WeightedBackend, backends: &Backends) -> Self {
        let filters = || OwnFilters {
            all: ir.filters.clone(),
            targets: Targets::new(&ir.filters, backends),
        };
        Self {
            target: BackendTarget::new(&ir.target, backends),
            filters: (!ir.filters.is_empty()).then(|| Box::new(filters())),
            has_weight: ir.weight > 0,
        }
    }

    /// Its filters, which run after those of the rule, with the backends that they refer to; `None` if it has none.
    #[inline]
    pub fn filters(&self) -> Option<Filters<'_>> {
        let own = self.filters.as_deref()?;
        Some(Filters::new(&own.all, &own.targets))
    }

    /// Reports whether a node from `ir` would get the same backends in the new table.
    fn is_current(&self, ir: &ir::route::WeightedBackend, backends: &Backends) -> bool {
        let mut filters = self.filters.iter();
        self.target.is_current(&ir.target, backends)
            && filters.all(|own| own.targets.are_current(&own.all, backends))
    }

    /// Reports whether it refers to a backend that its table does not have.
    fn lacks_backends(&self, ir: &ir::route::WeightedBackend) -> bool {
        let mut filters = self.filters.iter();
        self.target.is_missing(&ir.target) || filters.any(|own| own.targets.lack_backends(&own.all))
    }
}

/// A position in the sum of a rule's weights. The same draw selects the same backend for every attempt.
#[derive(Clone, Copy, Debug)]
pub struct Draw(u64);

impl Rule {
    pub(super) fn new(
        ir: Arc<ir::Rule>,
        (route, index): (&ir::Route, usize),
        state: Arc<RuleState>,
        (backends, states): (&Backends, &PolicyStates),
    ) -> Self {
        let (mut all, mut sums, mut sum) = (Vec::new(), Vec::new(), 0);
        for reference in references(&ir) {
            sum += u64::from(reference.weight);
            sums.push(sum);
            all.push(WeightedBackend::new(reference, backends));
        }
        let filter_targets = Targets::new(&ir.filters, backends);
        let protected = protected_headers(route, &ir);
        let backends = match all.pop() {
            Some(only) if all.is_empty() && only.has_weight => WeightedBackends::One(only),
            last => WeightedBackends::Other(Box::new(Shares {
                all: all.into_iter().chain(last).collect(),
                sums: sums.into(),
            })),
        };
        Self {
            ir,
            state,
            backends,
            filter_targets,
            policies: policies(route, index).map(|ir| Policies::new(ir, states)),
            protected,
            parameters: parameters(route),
            kind: route.kind,
            created: route.created,
            priority: route.priority,
        }
    }

    /// Reports whether a request asks to send requests of another origin that the rule does not permit. Only GRPCRoutes
    /// decide about that: HTTPRoutes forward preflight requests.
    pub(super) fn refuses_preflight(&self, request: &RequestView<'_>) -> bool {
        let permits = |filter: &ir::Filter| matches!(filter, ir::Filter::Preflight(_));
        self.kind == RouteKind::Grpc
            && is_preflight(request.method, request.headers)
            && !self.ir.filters.iter().any(permits)
    }

    /// Reports whether this node equals one that would be built from `ir`, the rule of `route` at `index`.
    pub(super) fn is_current(
        &self,
        ir: &Arc<ir::Rule>,
        (route, index): (&ir::Route, usize),
        backends: &Backends,
    ) -> bool {
        (self.kind, self.created, self.priority) == (route.kind, route.created, route.priority)
            && self.ir == *ir
            && self.policies.as_ref().map(|it| &it.ir) == policies(route, index)
            && self.has_same_protection(route, ir)
            && self.has_same_targets(backends)
    }

    /// Reports whether the other rules of the route, as far as they have a part in it, would give this node the same protection.
    fn has_same_protection(&self, route: &ir::Route, ir: &ir::Rule) -> bool {
        let has_part = route.protects_by_rule() || protected::depends_on_methods(route);
        let is_none = !has_part && self.protected.is_none() && self.parameters.is_empty();
        is_none
            || self.protected == protected_headers(route, ir)
                && self.parameters == parameters(route)
    }

    /// Reports whether a backend may read another value of a query parameter than the one that has selected the rule, so that it
    /// would be one that other policies are for.
    pub fn has_doubtful_query(&self, request: &RequestView<'_>) -> bool {
        let mut parameters = self.parameters.iter();
        parameters.any(|name| may_differ(name, request))
    }

    /// Reports whether this node would get the same backends in the new table.
    pub(super) fn has_same_targets(&self, backends: &Backends) -> bool {
        let mut all = self.backends().iter().zip(references(&self.ir));
        all.all(|(node, ir)| node.is_current(ir, backends))
            && self.filter_targets.are_current(&self.ir.filters, backends)
    }

    /// Reports whether it refers to a backend that its table does not have.
    pub(super) fn lacks_backends(&self) -> bool {
        let mut all = self.backends().iter().zip(references(&self.ir));
        all.any(|(node, ir)| node.lacks_backends(ir))
            || self.filter_targets.lack_backends(&self.ir.filters)
    }

    /// The kind of its route.
    #[inline]
    pub fn kind(&self) -> RouteKind {
        self.kind
    }

    /// Reports whether it forwards connections or datagrams as they are, instead of requests.
    pub fn forwards_bytes(&self) -> bool {
        match self.kind {
            RouteKind::Http | RouteKind::Grpc => false,
            RouteKind::Tls | RouteKind::Tcp | RouteKind::Udp => true,
        }
    }

    /// Priority of its route.
    pub(super) fn priority(&self) -> i16 {
        self.priority
    }

    /// The place of its `index`-th match among all matches.
    pub(super) fn precedence(&self, index: usize) -> Precedence {
        Precedence::new(self.kind, self.priority, self.created, &self.ir, index)
    }

    /// Draws for a request. With `key`, such as a hash of a header, the draw depends on nothing else; without, on chance.
    #[inline]
    pub fn draw(&self, key: Option<u64>) -> Draw {
        let WeightedBackends::Other(shares) = &self.backends else {
            return Draw(0);
        };
        Draw(match (shares.sums.last(), key) {
            (None | Some(0), _) => 0,
            (Some(total), Some(key)) => ((u128::from(key) * u128::from(*total)) >> 64) as u64,
            (Some(total), None) => rand::rng().random_range(0..*total),
        })
    }

    /// The backend that a draw falls on; `None` when the rule has no backends, or none with a weight.
    #[inline]
    pub fn select(&self, draw: Draw) -> Option<&WeightedBackend> {
        match &self.backends {
            WeightedBackends::One(only) => Some(only),
            WeightedBackends::Other(shares) => {
                let at = shares.sums.partition_point(|sum| *sum <= draw.0);
                shares.all.get(at)
            }
        }
    }

    /// Draws the backend of a connection or session that keeps it; `None` if its share cannot be served.
    pub fn draw_backend(&self) -> Option<&Arc<Backend>> {
        match &self.select(self.draw(None))?.target {
            BackendTarget::Backend(backend) => Some(backend),
            BackendTarget::Invalid(_) => None,
        }
    }

    /// What policies require of its requests on every listener, if they target its route.
    pub(super) fn policies(&self) -> Option<&Arc<Policies>> {
        self.policies.as_ref()
    }

    /// The headers that its filters decide about, and those that select it among rules with policies.
    pub(super) fn protected(&self) -> Option<&Arc<ProtectedHeaders>> {
        self.protected.as_ref()
    }

    /// Its filters, with the backends that they refer to.
    #[inline]
    pub fn filters(&self) -> Filters<'_> {
        Filters::new(&self.ir.filters, &self.filter_targets)
    }

    /// Returns the backend of its backendRefs that has an endpoint, or its only backend; `None` if that is not certain.
    pub fn backend_of(&self, endpoint: Option<SocketAddr>) -> Option<&Backend> {
        let backends = self.backends().iter().map(|it| match &it.target {
            BackendTarget::Backend(backend) => Some(&**backend),
            BackendTarget::Invalid(_) => None,
        });
        let has = |backend: &Backend| {
            let endpoints = backend.endpoints();
            endpoints.iter().any(|it| Some(it.address) == endpoint)
        };
        let mut candidates = match self.backends() {
            [_] => return backends.flatten().next(),
            _ => backends.flatten().filter(|it| has(it)),
        };
        candidates.next().filter(|_| candidates.next().is_none())
    }

    /// Returns every target that its requests may need: those of its backendRefs and of all filters.
    pub fn targets(&self) -> impl Iterator<Item = &BackendTarget> {
        let backends = self.backends().iter();
        let of_backends = backends.flat_map(|it| {
            let filters = it.filters().into_iter();
            [&it.target]
                .into_iter()
                .chain(filters.flat_map(|it| it.targets()))
        });
        of_backends.chain(self.filters().targets())
    }

    /// Returns why its requests are refused: it is invalid, or its targets or policies are.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        let own = match &self.ir.action {
            Action::Invalid(why) => Some(&**why),
            Action::Forward(_) => None,
        };
        let targets = self.targets().filter_map(|target| match target {
            BackendTarget::Backend(_) => None,
            BackendTarget::Invalid(why) => Some(&**why),
        });
        let policies = self.policies.iter().flat_map(|it| it.ir.faults());
        own.into_iter().chain(targets).chain(policies)
    }

    /// Returns the statuses that its filters and those of its backendRefs respond with, as configured.
    pub fn responds_with(&self) -> Vec<u16> {
        let shares = match &self.ir.action {
            Action::Forward(shares) => &shares[..],
            Action::Invalid(_) => &[],
        };
        let of_backends = shares.iter().flat_map(|share| &share.filters);
        let filters = self.ir.filters.iter().chain(of_backends);
        let statuses = filters.filter_map(|filter| match filter {
            ir::Filter::Respond(response) => Some(response.status.as_u16()),
            _ => None,
        });
        statuses.collect()
    }

    /// The backends of its backendRefs, in order.
    pub fn backends(&self) -> &[WeightedBackend] {
        match &self.backends {
            WeightedBackends::One(only) => std::slice::from_ref(only),
            WeightedBackends::Other(shares) => &shares.all,
        }
    }
}

/// Returns what policies require of the requests of a rule of a route that they target.
fn policies(route: &ir::Route, index: usize) -> Option<&Arc<ir::policy::Policies>> {
    route.policies.as_ref()?.get(index)
}

/// Returns the query parameters that select among the rules of a route, each once, if these may be protected in different ways.
fn parameters(route: &ir::Route) -> ThinVec<Text> {
    let mut names = ThinVec::new();
    if route.protects_by_rule() {
        let matches = route.rules.iter().flat_map(|rule| &rule.matches);
        let conditions = matches.flat_map(|condition| &condition.others.query);
        names.extend(conditions.map(|condition| condition.name.clone()));
        names.sort_unstable();
        names.dedup();
    }
    names
}

fn protected_headers(route: &ir::Route, ir: &ir::Rule) -> Option<Arc<ProtectedHeaders>> {
    let of_backends = references(ir).iter().flat_map(|it| &it.filters);
    protected::of_rule(route, ir, of_backends)
}

fn references(ir: &ir::Rule) -> &[ir::route::WeightedBackend] {
    match &ir.action {
        Action::Forward(backends) => backends,
        Action::Invalid(_) => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{ObjectRef, RuleId};

    fn rule(weights: &[u32]) -> Rule {
        let reference = |(index, weight): (usize, &u32)| ir::route::WeightedBackend {
            weight: *weight,
            target: ir::route::BackendTarget::Invalid(index.to_string().into()),
            filters: ThinVec::new(),
        };
        let ir = ir::Rule {
            id: RuleId {
                route: ObjectRef::gateway_api("HTTPRoute", "ns", "route"),
                index: 0,
                name: None,
            },
            matches: Box::default(),
            filters: ThinVec::new(),
            action: Action::Forward(weights.iter().enumerate().map(reference).collect()),
            options: None,
        };
        let route = ir::Route {
            kind: RouteKind::Http,
            object: ir.id.route.clone(),
            created: None,
            priority: 0,
            rules: Box::default(),
            policies: None,
        };
        Rule::new(
            Arc::new(ir),
            (&route, 0),
            Arc::default(),
            (&Backends::default(), &PolicyStates::default()),
        )
    }

    fn selected(rule: &Rule, key: Option<u64>) -> Option<usize> {
        match rule.select(rule.draw(key)) {
            Some(WeightedBackend {
                target: BackendTarget::Invalid(name),
                ..
            }) => Some(name.parse().unwrap()),
            _ => None,
        }
    }

    #[test]
    fn selects_nothing_without_weight() {
        assert_eq!(selected(&rule(&[]), None), None);
        assert_eq!(selected(&rule(&[0, 0]), None), None);
        assert_eq!(selected(&rule(&[0, 0]), Some(1)), None);
    }

    #[test]
    fn never_selects_backend_of_weight_zero() {
        let rule = rule(&[0, 1, 0]);
        assert!((0..100).all(|_| selected(&rule, None) == Some(1)));
    }

    #[test]
    fn selects_in_proportion_to_weight() {
        let rule = rule(&[1, 0, 3]);
        let mut counts = [0; 3];
        for _ in 0..20_000 {
            counts[selected(&rule, None).unwrap()] += 1;
        }
        assert_eq!(counts[1], 0);
        // Ten standard deviations of a binomial with n = 20,000 and p = 1/4.
        assert!((4_380..=5_620).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn selects_same_backend_for_same_key_in_proportion_to_weight() {
        let rule = rule(&[1, 3]);
        let keys = (0..4_000).map(|step| step * (u64::MAX / 4_000));
        let counts = keys.fold([0; 2], |mut counts, key| {
            let first = selected(&rule, Some(key)).unwrap();
            assert_eq!(selected(&rule, Some(key)), Some(first));
            counts[first] += 1;
            counts
        });
        assert!((999..=1_001).contains(&counts[0]), "{counts:?}");
    }
}
