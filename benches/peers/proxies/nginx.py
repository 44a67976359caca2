"""Owns how nginx is configured, as a proxy under test and as the backend behind all of them."""

import os
import re
import subprocess
from pathlib import Path

from .base import SERVER_NAME, ForwardSite, Proxy, Site

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

    def missing_to_forward(self) -> str:
        return "" if self._stream_module() is not None else "apt-get install libnginx-mod-stream"

    def forward_command(self, site: ForwardSite, folder: Path) -> list[str]:
        return _command(self.path, folder, f"stream {{\n{_forward_stream(site)}\n}}", self._stream_module() or "")

    def _stream_module(self) -> str | None:
        """The line that loads the stream module: empty if the program has it built in; None if there is none."""
        built = subprocess.run([self.path, "-V"], capture_output=True, text=True, timeout=20).stderr
        if re.search(r"--with-stream(\s|$)", built):
            return ""
        folder = re.search(r"--modules-path=(\S+)", built)
        module = Path(folder[1] if folder else "/usr/lib/nginx/modules") / "ngx_stream_module.so"
        return f"load_module {module};" if module.exists() else None


def start(program: str, folder: Path, http: str, access_log: Path | None = None, connections: int = 8192) -> list[str]:
    """The command for an nginx of one worker with `http` in its http block."""
    temp = "\n".join(f"    {kind}_temp_path {folder}/{kind};" for kind in _TEMP_KINDS)
    log = f"{access_log} combined buffer=64k flush=100ms" if access_log else "off"
    return _command(program, folder, f"""\
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
}}""", connections=connections)


def _command(program: str, folder: Path, blocks: str, modules: str = "", connections: int = 8192) -> list[str]:
    # As root, the worker would turn into nobody, who may not read the folder.
    user = "user root;" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(f"""\
{modules}
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{
    worker_connections {connections};
    multi_accept on;
}}
{blocks}
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


def _forward_stream(site: ForwardSite) -> str:
    return f"""\
    access_log off;
    tcp_nodelay on;
    proxy_timeout 3600s;
    proxy_buffer_size 64k;
    map $ssl_preread_server_name $by_name {{
        {SERVER_NAME} tls;
    }}
    upstream tcp {{ server 127.0.0.1:{site.tcp_backend}; }}
    upstream tls {{ server 127.0.0.1:{site.tls_backend}; }}
    upstream udp {{ server 127.0.0.1:{site.udp_backend}; }}
    server {{
        listen 127.0.0.1:{site.tcp} backlog=4096;
        proxy_pass tcp;
    }}
    server {{
        listen 127.0.0.1:{site.tls} backlog=4096;
        ssl_preread on;
        proxy_pass $by_name;
    }}
    server {{
        listen 127.0.0.1:{site.udp} udp;
        proxy_pass udp;
        proxy_timeout 60s;
    }}"""
