//! Who may import whom, and which outside crates a module must not name.

/// A module, what it may import of ours, and the outside crates that it must not name.
pub(crate) struct Layer {
    /// Path below `src` without `.rs`; the longest one that fits a file counts.
    pub(crate) module: &'static str,
    pub(crate) imports: &'static [&'static str],
    pub(crate) never: &'static [&'static str],
}

const fn layer(
    module: &'static str,
    imports: &'static [&'static str],
    never: &'static [&'static str],
) -> Layer {
    Layer {
        module,
        imports,
        never,
    }
}

/// Any module of ours.
const ANY: &[&str] = &[""];

/// Nothing that waits, and no socket, file, clock or cluster.
const PURE: &[&str] = &[
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
const NO_CLUSTER: &[&str] = &[
    "kube",
    "k8s_openapi",
    "serde_yaml",
    "clap",
    "anyhow",
    "notify",
];

/// What those who talk to the API server must not know.
const NO_TRAFFIC: &[&str] = &["hyper", "tokio_rustls", "h2", "socket2", "clap"];

const PROVISION_IO: &[&str] = &["provision", "ir", "api_server", "backoff", "events"];

pub(crate) const LAYERS: &[Layer] = &[
    layer("ir", &["ir", "per_worker"], PURE),
    layer("api", &["api", "ir::object_ref", "ir::ObjectRef"], PURE),
    layer(
        "snapshot",
        &["api", "ir::object_ref", "ir::ObjectRef"],
        PURE,
    ),
    layer("status", &["status", "ir"], PURE),
    layer("status/lease", &["status", "ir", "api_server"], NO_TRAFFIC),
    layer("status/queue", &["status", "ir", "backoff"], NO_TRAFFIC),
    layer("status/stored", &["status", "ir"], NO_TRAFFIC),
    layer(
        "status/writer",
        &["status", "ir", "telemetry", "api_server"],
        NO_TRAFFIC,
    ),
    layer("data_plane", &["api"], PURE),
    layer(
        "translate",
        &[
            "translate",
            "api",
            "snapshot",
            "ir",
            "status",
            "data_plane",
            "location",
            "permissions",
        ],
        PURE,
    ),
    layer(
        "provision",
        &[
            "provision",
            "api",
            "data_plane",
            "ir",
            "permissions",
            "settings",
            "status",
            "stream::message",
        ],
        PURE,
    ),
    layer("provision/apply", PROVISION_IO, NO_TRAFFIC),
    layer("provision/managed_fields", PROVISION_IO, NO_TRAFFIC),
    layer("provision/response", PROVISION_IO, NO_TRAFFIC),
    layer("provision/legacy_rbac", PROVISION_IO, NO_TRAFFIC),
    layer("provision/inventory", PROVISION_IO, NO_TRAFFIC),
    layer("provision/reconcile", PROVISION_IO, NO_TRAFFIC),
    layer(
        "provision/failure_reporter",
        &["events", "ir", "provision"],
        NO_TRAFFIC,
    ),
    layer("provision/queue", &["backoff", "ir"], NO_TRAFFIC),
    layer("provision/ownership", &["api_server", "ir"], PURE),
    layer(
        "provision/desired",
        &["provision", "ir"],
        &["hyper", "kube"],
    ),
    layer("events", &["ir", "api_server"], NO_TRAFFIC),
    layer("tls", &["tls", "ir"], PURE),
    layer(
        "table",
        &["table", "ir", "per_worker", "tls", "uptime"],
        PURE,
    ),
    layer("filter", &["filter", "ir", "table"], PURE),
    layer("location", &[], PURE),
    layer("permissions", &[], PURE),
    layer(
        "settings",
        &["location", "permissions"],
        &["tokio", "hyper", "kube", "rustls"],
    ),
    layer("dns", &["dns", "backoff", "telemetry"], NO_CLUSTER),
    layer("dns/guard", &[], PURE),
    layer("clock", &[], NO_CLUSTER),
    layer("uptime", &[], PURE),
    layer("per_worker", &[], PURE),
    layer("session_key", &[], PURE),
    layer("api_server", &[], NO_TRAFFIC),
    layer("backoff", &[], PURE),
    layer("provision/class", PROVISION_IO, NO_TRAFFIC),
    layer("provision/nodes", PROVISION_IO, NO_TRAFFIC),
    layer(
        "shutdown",
        &["settings"],
        &["hyper", "kube", "rustls", "clap", "anyhow"],
    ),
    layer(
        "telemetry",
        &["telemetry", "ir", "per_worker", "table", "settings"],
        &["tokio", "hyper", "kube", "clap", "anyhow"],
    ),
    layer(
        "provider",
        &[
            "provider",
            "api",
            "snapshot",
            "api_server",
            "backoff",
            "stream::message",
        ],
        &["hyper", "rustls", "clap"],
    ),
    layer(
        "provider/stream",
        &["provider", "api", "snapshot", "backoff", "stream::message"],
        &["clap", "kube"],
    ),
    layer(
        "stream",
        &[
            "stream",
            "api",
            "api_server",
            "backoff",
            "ir",
            "provider",
            "provision",
            "session_key",
            "snapshot",
            "status::lease",
            "telemetry",
            "translate",
        ],
        &["clap"],
    ),
    layer("stream/message", &[], PURE),
    layer(
        "upstream",
        &[
            "upstream",
            "ir",
            "table",
            "tls",
            "telemetry",
            "settings",
            "clock",
            "uptime",
        ],
        NO_CLUSTER,
    ),
    layer(
        "proxy",
        &[
            "proxy",
            "ir",
            "table",
            "filter",
            "upstream",
            "per_worker",
            "telemetry",
            "session_key",
            "shutdown",
            "settings",
            "clock",
        ],
        NO_CLUSTER,
    ),
    layer(
        "admin",
        &["admin", "table", "telemetry", "shutdown", "status"],
        NO_CLUSTER,
    ),
    layer(
        "controller",
        &[
            "controller",
            "api",
            "dns",
            "events",
            "permissions",
            "provider",
            "provision",
            "snapshot",
            "translate",
            "ir",
            "table",
            "status",
            "stream",
        ],
        &[
            "hyper",
            "kube",
            "rustls",
            "clap",
            "socket2",
            "std::net::Tcp",
        ],
    ),
    layer(
        "server",
        &[
            "admin",
            "api",
            "controller",
            "dns",
            "ir",
            "provider",
            "provision",
            "proxy",
            "session_key",
            "settings",
            "shutdown",
            "status",
            "stream",
            "table",
            "telemetry",
            "translate",
            "upstream",
            "clock",
        ],
        &["clap", "kube"],
    ),
    layer("server/controller", ANY, NO_TRAFFIC),
    layer("cli", ANY, &["kube"]),
    layer("cli/shift/change", &[], PURE),
    layer("cli/shift/cluster", ANY, NO_TRAFFIC),
    layer("cli/shift/metrics", &[], PURE),
    layer("cli/shift/table", &[], PURE),
    layer("cli/shift/weights", &["api", "cli"], PURE),
    layer("lib", &[], &["tokio", "hyper"]),
    layer("memory", &[], &["tokio", "hyper"]),
    layer("main", &["memory"], &["tokio", "hyper"]),
];
