"""Owns how HAProxy is configured as a proxy under test."""

from pathlib import Path

from .base import SERVER_NAME, ForwardSite, Proxy, Site


class HAProxy(Proxy):
    name = "haproxy"
    program = "haproxy"
    install = "apt-get install haproxy"
    forwards_udp = False

    def version_arguments(self) -> list[str]:
        return ["-v"]

    def command(self, site: Site, folder: Path) -> list[str]:
        # HAProxy wants certificate and key in one file.
        pem = folder / "certificate.pem"
        pem.write_text(site.certificate.read_text() + site.key.read_text())
        config = folder / "haproxy.cfg"
        config.write_text(_config(site, pem))
        return [self.path, "-db", "-f", str(config)]

    def forward_command(self, site: ForwardSite, folder: Path) -> list[str]:
        config = folder / "haproxy.cfg"
        config.write_text(_forward_config(site))
        return [self.path, "-db", "-f", str(config)]


def _config(site: Site, pem: Path) -> str:
    headers = """
    option forwardfor
    http-request set-header X-Forwarded-Proto https if { ssl_fc }
    http-request set-header X-Forwarded-Proto http unless { ssl_fc }
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    unique-id-format %[uuid()]
    unique-id-header X-Request-Id"""
    # HAProxy writes to its output, not to files; the bench sends the output to the log.
    log = "\n    log stdout format raw local0\n    option httplog" if site.access_log else ""
    splice = "\n    option splice-response" if site.haproxy_splice else ""
    return f"""\
global
    nbthread 1
    maxconn 4096
    ssl-default-bind-options ssl-min-ver TLSv1.3

defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s
    timeout http-keep-alive 3600s
    option http-keep-alive
    http-reuse always{splice}{log}

frontend bench
    bind 127.0.0.1:{site.http} backlog 4096
    bind 127.0.0.1:{site.h2c} backlog 4096 proto h2
    bind 127.0.0.1:{site.https} backlog 4096 ssl crt {pem} alpn h2,http/1.1{headers if site.same_headers else ""}
    default_backend bench

backend bench
    server backend 127.0.0.1:{site.backend} pool-max-conn -1 pool-purge-delay 3600s
"""


def _forward_config(site: ForwardSite) -> str:
    splice = "\n    option splice-auto" if site.haproxy_splice else ""
    return f"""\
global
    nbthread 1
    maxconn 4096

defaults
    mode tcp
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s{splice}

frontend tcp
    bind 127.0.0.1:{site.tcp} backlog 4096
    default_backend tcp

frontend tls
    bind 127.0.0.1:{site.tls} backlog 4096
    tcp-request inspect-delay 5s
    tcp-request content accept if {{ req.ssl_hello_type 1 }}
    use_backend tls if {{ req.ssl_sni -i {SERVER_NAME} }}

backend tcp
    server backend 127.0.0.1:{site.tcp_backend}

backend tls
    server backend 127.0.0.1:{site.tls_backend}
"""
