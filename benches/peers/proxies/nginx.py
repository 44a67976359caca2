"""Owns how nginx is configured, as a proxy under test and as the backend behind all of them."""

import os
from pathlib import Path

from .base import Proxy, Site

# nginx makes these folders at start even when nothing is ever written there.
_TEMP_KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx(Proxy):
    name = "nginx"
    program = "nginx"
    install = "apt-get install nginx-light"

    def version_arguments(self) -> list[str]:
        return ["-v"]

    def command(self, site: Site, folder: Path) -> list[str]:
        return start(self.path, folder, _proxy_http(site), site.access_log)


def start(program: str, folder: Path, http: str, access_log: Path | None = None) -> list[str]:
    """The command for an nginx of one worker with `http` in its http block."""
    temp = "\n".join(f"    {kind}_temp_path {folder}/{kind};" for kind in _TEMP_KINDS)
    # As root, the worker would turn into nobody, who may not read the folder.
    log = f"{access_log} combined buffer=64k flush=100ms" if access_log else "off"
    user = "user root;" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(f"""\
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{
    worker_connections 8192;
    multi_accept on;
}}
http {{
    access_log {log};
    server_tokens off;
    default_type text/plain;
    tcp_nodelay on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    keepalive_time 24h;
{temp}
{http}
}}
""")
    return [program, "-e", "stderr", "-p", str(folder), "-c", str(config)]


def _proxy_http(site: Site) -> str:
    headers = """
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Request-Id $request_id;"""
    return f"""\
    upstream backend {{
        server 127.0.0.1:{site.backend};
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_time 24h;
        keepalive_timeout 3600s;
    }}
    server {{
        listen 127.0.0.1:{site.http} backlog=4096;
        listen 127.0.0.1:{site.h2c} http2 backlog=4096;
        listen 127.0.0.1:{site.https} ssl http2 backlog=4096;
        ssl_certificate {site.certificate};
        ssl_certificate_key {site.key};
        ssl_protocols TLSv1.3;
        location / {{
            proxy_pass http://backend;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;{headers if site.same_headers else ""}
            proxy_buffer_size 16k;
            proxy_buffers 8 16k;
            proxy_max_temp_file_size 0;
        }}
    }}"""
