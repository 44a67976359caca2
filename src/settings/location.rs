//! The zone and the node of a data plane. They come from flags only and stay the same while the process runs.

/// The location of a data plane. An unknown part has no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Value of the label `topology.kubernetes.io/zone` of its node.
    pub zone: Option<String>,
    /// Name of its node.
    pub node: Option<String>,
}

impl Location {
    /// Creates a location. An empty string means unknown.
    pub fn new(zone: &str, node: &str) -> Self {
        let known = |part: &str| (!part.is_empty()).then(|| part.to_owned());
        Self {
            zone: known(zone),
            node: known(node),
        }
    }
}
