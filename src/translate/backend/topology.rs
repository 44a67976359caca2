//! Topology hints: selects the endpoints whose hints name the location of the data plane. Follows the rules of
//! kube-proxy, which reads only hints and not the zones or nodes of endpoints.

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

fn hints(endpoint: &SliceEndpoint, of: HintsOf) -> &[Hint] {
    endpoint.hints.as_deref().map_or(&[], of)
}
