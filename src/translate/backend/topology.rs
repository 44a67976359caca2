//! Topology hints: selects the endpoints whose hints name the location of the data plane. Follows the rules of
//! kube-proxy, which reads only hints and not the zones or nodes of endpoints. Policies of backends prefer zones.

use std::net::SocketAddr;

use crate::api::core::{EndpointHints, Hint, SliceEndpoint};
use crate::settings::location::Location;

/// Returns the hints of an endpoint for one scope.
type HintsOf = fn(&EndpointHints) -> &[Hint];

/// Keeps the ready endpoints of a port that are hinted for a location. Hints for nodes take precedence over hints for
/// zones. A scope counts only if all endpoints have hints for it and one of them names the location; otherwise all
/// endpoints stay.
pub(super) fn narrow(ready: &mut Vec<(&SliceEndpoint, SocketAddr)>, location: &Location) {
    let scopes: [(_, HintsOf); 2] = [
        (&location.node, |hints| &hints.for_nodes),
        (&location.zone, |hints| &hints.for_zones),
    ];
    for (own, hints_of) in scopes {
        let Some(own) = own else {
            continue;
        };
        let has_hints = |endpoint: &SliceEndpoint| !hints(endpoint, hints_of).is_empty();
        let is_near = |endpoint: &SliceEndpoint| {
            let mut hints = hints(endpoint, hints_of).iter();
            hints.any(|hint| hint.name == *own)
        };
        if ready.iter().all(|(endpoint, _)| has_hints(endpoint))
            && ready.iter().any(|(endpoint, _)| is_near(endpoint))
        {
            ready.retain(|(endpoint, _)| is_near(endpoint));
            return;
        }
    }
}

/// Returns the endpoints in the zone of a location.
pub(super) fn near<'a>(
    endpoints: &[(&'a SliceEndpoint, SocketAddr)],
    location: &Location,
) -> Vec<(&'a SliceEndpoint, SocketAddr)> {
    let Some(zone) = &location.zone else {
        return Vec::new();
    };
    let is_near = |endpoint: &SliceEndpoint| endpoint.zone.as_deref() == Some(zone);
    let near = endpoints.iter().filter(|(endpoint, _)| is_near(endpoint));
    near.copied().collect()
}

fn hints(endpoint: &SliceEndpoint, of: HintsOf) -> &[Hint] {
    endpoint.hints.as_deref().map_or(&[], of)
}
