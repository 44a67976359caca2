"""Owns how Envoy is configured beside Portcullis: ext_proc with full-duplex bodies, and the endpoint in the header of the picker, as Istio does."""

TYPES = "type.googleapis.com/envoy.extensions"
DESTINATION = "x-gateway-destination-endpoint"
EXT_PROC = "envoy.filters.http.ext_proc"
NO_LIMIT = 100_000


def config(port: int, picker: int, model: tuple[str, int]) -> dict:
    """/echo asks the picker, and /plain does not."""
    routes = [
        {
            "match": {"prefix": "/plain"},
            "route": {"cluster": "models", "timeout": "0s"},
            "typed_per_filter_config": {EXT_PROC: {"@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute", "disabled": True}},
        },
        {"match": {"prefix": "/"}, "route": {"cluster": "models", "timeout": "0s"}},
    ]
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "models", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {"name": EXT_PROC, "typed_config": _ext_proc()},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router", "suppress_envoy_headers": True}},
        ],
    }
    listener = {
        "name": "http",
        "address": _address("127.0.0.1", port),
        "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}],
        "tcp_backlog_size": 4096,
    }
    http2 = {"@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}
    balancing = {"policies": [{"typed_extension_config": {"name": "override_host", "typed_config": _override_host()}}]}
    clusters = [
        _cluster("picker", "127.0.0.1", picker, typed_extension_protocol_options={"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}),
        _cluster("models", *model, load_balancing_policy=balancing),
    ]
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def _ext_proc() -> dict:
    both = {f"{side}_{part}_mode": "SEND" for side in ("request", "response") for part in ("header", "trailer")}
    bodies = {f"{side}_body_mode": "FULL_DUPLEX_STREAMED" for side in ("request", "response")}
    return {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "message_timeout": "10s",
        "processing_mode": {**both, **bodies},
    }


def _override_host() -> dict:
    in_turn = {"name": "round_robin", "typed_config": {"@type": f"{TYPES}.load_balancing_policies.round_robin.v3.RoundRobin"}}
    return {
        "@type": f"{TYPES}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": DESTINATION}],
        "fallback_policy": {"policies": [{"typed_extension_config": in_turn}]},
    }


def _cluster(name: str, address: str, port: int, **more: dict) -> dict:
    endpoint = {"endpoint": {"address": _address(address, port)}}
    limits = {"max_connections": NO_LIMIT, "max_pending_requests": NO_LIMIT, "max_requests": NO_LIMIT}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        **more,
    }


def _address(address: str, port: int) -> dict:
    return {"socket_address": {"address": address, "port_value": port}}
