//! The features of the Gateway API that Portcullis supports: exactly those whose conformance tests pass. Knows nothing
//! of how they are served.

/// Names of supported features, in order (GatewayClass `status.supportedFeatures`).
pub const SUPPORTED_FEATURES: &[&str] = &[
    "Gateway",
    "HTTPRoute",
    "ReferenceGrant",
];
