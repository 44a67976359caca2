//! Outside crates, and parts of the standard library, that kinds of modules must not name.

/// Nothing that waits, and no socket, file, clock or cluster.
pub(crate) const PURE: &[&str] = &[
    "tokio",
    "hyper",
    "tokio_rustls",
    "h2",
    "kube",
    "socket2",
    "mimalloc",
    "clap",
    "anyhow",
    "notify",
    "std::net::Tcp",
    "std::net::Udp",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
];

/// What the request path must not know.
pub(crate) const NO_CLUSTER: &[&str] = &[
    "kube",
    "k8s_openapi",
    "serde_saphyr",
    "clap",
    "anyhow",
    "notify",
];

/// What those who talk to the API server must not know.
pub(crate) const NO_TRAFFIC: &[&str] = &["hyper", "tokio_rustls", "h2", "socket2", "clap"];
