//! What bounds each queue and map that others fill.

/// What says that it is bounded.
pub(super) enum Bound {
    /// The row of the page that begins like this.
    Row(&'static str),
    /// Why it needs none.
    Reason(&'static str),
}

use self::Bound::{Reason, Row};

/// This file.
pub(super) const FILE: &str = file!();

/// What the watches of an API server fill.
const DELETED: Bound = Row("policies that are deleted or lose targets");
const FETCHED: Bound = Row("Secrets and ConfigMaps to fetch");
const KINDS: Bound = Reason("kinds and watched namespaces, one each");
const OBJECTS: Bound = Row("objects, their conditions");
const WAITING: Bound = Row("objects that wait for what they refer to, or for policies");

/// What other parts fill.
const ENDED: Bound = Row("sessions and users that OpenID providers have ended");
const EVENTS: Bound = Row("Events that were written");
const LIMITS: Bound = Reason("limits of policies, one each");
const PICKER: Bound = Row("messages of an endpoint picker");
const POLICIES: Bound = Reason("policies, one each");
const PORTS: Bound = Reason("ports of Gateways");
const PUBLISHED: Bound = Row("changes for pods that are behind");
const RECENT: Bound = Row("requests, failures and load of rules");
const REVIEWED: Bound = Row("tokens that were reviewed");
const WRITES: Bound = Row("objects to write, and their back-off");

/// Fields and statics of these types, or structs around one, by file below `src`.
pub(super) const FIELDS: &[(&str, &str, Bound)] = &[
    (
        "admin/history.rs",
        "steps",
        Row("requests, failures, durations and connections"),
    ),
    ("admin/recent.rs", "backends", RECENT),
    ("admin/recent.rs", "endpoints", RECENT),
    ("admin/recent.rs", "limits", RECENT),
    ("admin/recent.rs", "rules", RECENT),
    ("admin/recent.rs", "tokens", RECENT),
    ("admin/responses.rs", "failed", RECENT),
    (
        "admin/since.rs",
        "Since",
        Reason("problems of the last look, one each"),
    ),
    ("admin/state.rs", "warnings", OBJECTS),
    ("cluster/events.rs", "names", EVENTS),
    ("cluster/events.rs", "objects", EVENTS),
    ("cluster/events.rs", "topics", EVENTS),
    ("cluster/events/queue.rs", "changes", Row("Events to write")),
    ("cluster/work_queue.rs", "backoffs", WRITES),
    ("cluster/work_queue.rs", "delayed", WRITES),
    ("cluster/work_queue.rs", "namespaces", WRITES),
    ("cluster/work_queue.rs", "running", WRITES),
    ("cluster/work_queue.rs", "turns", WRITES),
    ("cluster/work_queue.rs", "waiting", WRITES),
    ("dns/mod.rs", "names", Row("addresses of a name in DNS")),
    (
        "dns/mod.rs",
        "namespaces",
        Row("addresses of a name in DNS"),
    ),
    ("dns/mod.rs", "running", Row("look-ups of names in DNS")),
    (
        "http2/bodies.rs",
        "streams",
        Row("bodies and trailers of HTTP/2"),
    ),
    (
        "http2/header_blocks.rs",
        "Remembered",
        Row("state of HPACK"),
    ),
    (
        "http2/held.rs",
        "CONNECTIONS",
        Reason("one for each connection of HTTP/2, of clients and to backends"),
    ),
    ("http2/hpack.rs", "entries", Row("state of HPACK")),
    (
        "http2/unsent_heads.rs",
        "HEADS",
        Row("bodies and trailers of HTTP/2"),
    ),
    (
        "http2/waiting.rs",
        "parts",
        Row("bodies and trailers of HTTP/2"),
    ),
    (
        "key_sets/schedule.rs",
        "running",
        Row("key sets and discovery documents"),
    ),
    (
        "key_sets/schedule.rs",
        "sets",
        Row("key sets and discovery documents"),
    ),
    ("peers/server.rs", "tasks", Row("handshakes of other pods")),
    ("provider/kubernetes/deferrals.rs", "all", WAITING),
    ("provider/kubernetes/fetch.rs", "complete", FETCHED),
    ("provider/kubernetes/fetch.rs", "running", FETCHED),
    ("provider/kubernetes/fetch.rs", "waiting", FETCHED),
    ("provider/kubernetes/fetch.rs", "wanted", FETCHED),
    ("provider/kubernetes/moments.rs", "known", POLICIES),
    ("provider/kubernetes/moments.rs", "past", KINDS),
    ("provider/kubernetes/moments.rs", "refusals", KINDS),
    ("provider/kubernetes/moments.rs", "watches", KINDS),
    ("provider/kubernetes/once.rs", "not_served", KINDS),
    ("provider/kubernetes/once.rs", "served", KINDS),
    ("provider/kubernetes/pods.rs", "numbers", OBJECTS),
    ("provider/kubernetes/problems.rs", "Problems", OBJECTS),
    ("provider/kubernetes/referenced.rs", "children", OBJECTS),
    ("provider/kubernetes/referenced.rs", "named", FETCHED),
    (
        "provider/kubernetes/referenced.rs",
        "namespaces",
        Reason("namespaces that the operator names"),
    ),
    ("provider/kubernetes/referenced.rs", "versions", OBJECTS),
    ("provider/kubernetes/retained.rs", "all", DELETED),
    ("provider/kubernetes/retained.rs", "refused", DELETED),
    ("provider/kubernetes/store.rs", "awaited", KINDS),
    ("provider/kubernetes/store.rs", "expected", OBJECTS),
    ("provider/kubernetes/store.rs", "scopes", OBJECTS),
    ("provider/kubernetes/store.rs", "staged", OBJECTS),
    (
        "provider/kubernetes/store/endpoints.rs",
        "splits",
        Reason("labels of ReleaseBackends, while one change is applied"),
    ),
    (
        "provider/stream/follower.rs",
        "logged",
        Row("refusals by the controller that were logged"),
    ),
    (
        "provider/stream/objects.rs",
        "listed",
        Row("what the controller sends, in a pod"),
    ),
    (
        "provider/stream/objects.rs",
        "unreadable",
        Row("what the controller sends, in a pod"),
    ),
    ("proxy/connection/listener.rs", "open", PORTS),
    ("proxy/mod.rs", "protocols", PORTS),
    (
        "proxy/passwords.rs",
        "by_namespace",
        Row("passwords that wait"),
    ),
    ("proxy/passwords.rs", "ready", Row("passwords that wait")),
    ("proxy/passwords.rs", "waiting", Row("passwords that wait")),
    ("proxy/prober.rs", "permits", Row("health checks")),
    ("proxy/prober.rs", "running", Row("health checks")),
    ("proxy/quic_ports.rs", "open", PORTS),
    ("proxy/worker.rs", "accepting", PORTS),
    (
        "proxy/request/external_auth/message.rs",
        "headers",
        Row("response of an authorization server"),
    ),
    ("proxy/request/picker/message.rs", "fields", PICKER),
    ("proxy/request/picker/message.rs", "filter_metadata", PICKER),
    ("proxy/request/picker/outbox.rs", "waiting", PICKER),
    ("proxy/request/picker/protocol.rs", "messages", PICKER),
    ("proxy/request/picker/protocol.rs", "parts", PICKER),
    ("proxy/udp/sessions.rs", "by_client", Row("sessions of UDP")),
    ("proxy/udp/sessions.rs", "by_path", Row("sessions of UDP")),
    (
        "proxy/worker_state/budget.rs",
        "addresses",
        Row("bodies for retries"),
    ),
    (
        "proxy/worker_state/budget.rs",
        "waiting",
        Reason("a question to an endpoint picker, which holds bytes of the budget"),
    ),
    (
        "proxy/worker_state/current_table.rs",
        "rules",
        Row("counters, health and budgets of rules and backends"),
    ),
    (
        "proxy/worker_state/handshakes.rs",
        "by_client",
        Row("handshakes of TLS"),
    ),
    (
        "proxy/worker_state/handshakes.rs",
        "eviction_order",
        Row("handshakes of TLS"),
    ),
    ("proxy/worker_state/idle.rs", "open", Row("connections")),
    (
        "proxy/worker_state/page_slots.rs",
        "PageSlots",
        Row("error pages that are fetched"),
    ),
    (
        "proxy/worker_state/port.rs",
        "Ports",
        Reason("ports of Gateways, and addresses of the machine"),
    ),
    ("quic/inbox.rs", "entries", Row("packets of QUIC")),
    (
        "quic/socket.rs",
        "waiting",
        Reason("workers that write to a socket, one each"),
    ),
    ("stream/hub.rs", "by_gateway", PUBLISHED),
    ("stream/hub.rs", "configured", PUBLISHED),
    ("stream/hub.rs", "connected", Row("what a pod was not sent")),
    ("stream/hub.rs", "quic", Row("reports of a pod")),
    ("stream/hub.rs", "unbound", Row("reports of a pod")),
    (
        "stream/keys.rs",
        "Keys",
        Reason("the keys of the API server, which the controller trusts"),
    ),
    ("stream/log.rs", "changes", PUBLISHED),
    ("stream/mod.rs", "revisions", PUBLISHED),
    (
        "stream/pending.rs",
        "by_address",
        Row("connections without a pod"),
    ),
    ("stream/ready.rs", "addresses", OBJECTS),
    ("stream/ready.rs", "by_gateway", OBJECTS),
    ("stream/ready.rs", "gateways", OBJECTS),
    ("stream/ready.rs", "slices", OBJECTS),
    ("stream/ready.rs", "udp_ports", OBJECTS),
    ("stream/reviews.rs", "accepted", REVIEWED),
    ("stream/reviews.rs", "asking", REVIEWED),
    ("stream/reviews.rs", "issuers", REVIEWED),
    ("stream/reviews.rs", "pods", REVIEWED),
    ("stream/reviews.rs", "refused", REVIEWED),
    ("stream/reviews.rs", "refused_order", REVIEWED),
    ("stream/reviews.rs", "suspects", REVIEWED),
    (
        "stream/server.rs",
        "Refusals",
        Row("refusals that were logged"),
    ),
    ("table/authentication.rs", "clients", POLICIES),
    ("table/authentication.rs", "oidc", POLICIES),
    (
        "table/authentication.rs",
        "remembered",
        Reason("namespaces with policies, one each"),
    ),
    ("table/authentication.rs", "revocations", ENDED),
    ("table/authentication.rs", "tokens", POLICIES),
    ("table/authentication.rs", "users", POLICIES),
    (
        "table/authentication/logouts.rs",
        "kept",
        Row("logout tokens for other pods"),
    ),
    ("table/authentication/revocations.rs", "revoked", ENDED),
    ("table/authentication/revocations.rs", "tokens", ENDED),
    (
        "table/backends.rs",
        "gone",
        Reason("backends of the previous table, while one is built"),
    ),
    (
        "table/connections.rs",
        "by_client",
        Row("open connections by client"),
    ),
    ("table/hostname.rs", "exact", OBJECTS),
    ("table/hostname.rs", "wildcards", OBJECTS),
    ("table/http3.rs", "SharedHttp3", PORTS),
    (
        "table/limits.rs",
        "budgets",
        Reason("namespaces with policies, one each"),
    ),
    ("table/limits.rs", "counters", LIMITS),
    ("table/limits.rs", "limiters", LIMITS),
    ("table/limits/exchange.rs", "by_hash", LIMITS),
    ("table/route.rs", "by_object", OBJECTS),
    (
        "table/router.rs",
        "MadeRouters",
        Reason("hosts of listeners, while one table is built"),
    ),
    (
        "table/router.rs",
        "gone",
        Reason("rules of the previous table, while one is built"),
    ),
    (
        "telemetry/metrics/text/exemplars.rs",
        "by_series",
        Reason("a series each, while one response is written"),
    ),
    (
        "telemetry/metrics/text/outcomes.rs",
        "by_outcome",
        Reason("a series each, while one response is written"),
    ),
    (
        "telemetry/trace/queue.rs",
        "policies",
        Row("spans and records for collectors"),
    ),
    (
        "telemetry/trace/queue.rs",
        "waiting",
        Row("spans and records for collectors"),
    ),
    (
        "token_endpoint/mod.rs",
        "messages",
        Row("policies whose provider was reported"),
    ),
    (
        "token_endpoint/refreshes.rs",
        "Refreshes",
        Row("sessions that were refreshed"),
    ),
    (
        "token_endpoint/refreshes.rs",
        "entries",
        Row("sessions that were refreshed"),
    ),
    (
        "token_endpoint/refreshes.rs",
        "order",
        Row("sessions that were refreshed"),
    ),
    (
        "token_endpoint/room.rs",
        "Room",
        Row("requests to OpenID providers"),
    ),
    (
        "upstream/in_flight.rs",
        "by_id",
        Row("endpoints of a backend"),
    ),
    (
        "upstream/pool.rs",
        "entries",
        Row("connections to backends"),
    ),
];
