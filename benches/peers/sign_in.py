"""Owns how a load has a session of `oidc`: an OpenID provider of the bench, and the browser that signs in there once. The session is good for
every process with the same key, so that the load of any of them can have its cookie."""

import atexit
import functools
import http.client
import http.server
import json
import os
import shutil
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

import issuer

CLIENT = "bench"
TIMEOUT_SECONDS = 30.0
DISCOVERY = "/.well-known/openid-configuration"


class Provider(http.server.ThreadingHTTPServer):
    """A provider on loopback. It issues an ID token with the nonce of the last visit to every code."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.nonce = ""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        url = self.server.url
        documents = {
            DISCOVERY: {
                "issuer": url, "jwks_uri": f"{url}/jwks", "authorization_endpoint": f"{url}/authorize", "token_endpoint": f"{url}/token",
                "response_types_supported": ["code"], "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["RS256"],
            },
            "/jwks": json.loads(issuer.key_set()),
        }  # fmt: skip
        self._answer(documents.get(self.path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        token = issuer.token({**issuer.claims(self.server.url, CLIENT), "nonce": self.server.nonce})
        self._answer({"access_token": "access", "token_type": "Bearer", "expires_in": issuer.TOKEN_SECONDS, "id_token": token})

    def _answer(self, document: dict | None) -> None:
        body = json.dumps(document or {}).encode()
        self.send_response(200 if document else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing on standard error."""


@functools.cache
def provider() -> Provider:
    return Provider()


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="portcullis-sign-in-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "key").write_text(os.urandom(32).hex())
    return folder


def arguments() -> list[str]:
    """What a process needs that knows the session."""
    return ["--session-key-file", str(_folder() / "key"), "--allow-jwks-address", "127.0.0.0/8"]


@functools.cache
def cookie(port: int) -> str:
    """Signs in at the process that listens on this port. Returns its cookies."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (visit := _get(port, "/", ""))[0] != 302:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no redirect to the provider, but {visit[0]}")
        time.sleep(0.05)
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(visit[1]["location"]).query)
    provider().nonce = query["nonce"][0]
    answer = urllib.parse.urlencode({"code": "code", "state": query["state"][0]})
    returned = urllib.parse.urlsplit(query["redirect_uri"][0]).path
    status, headers = _get(port, f"{returned}?{answer}", _cookies(visit[1]))
    if not (session := _cookies(headers)):
        raise RuntimeError(f"no session, but {status}")
    return session


def _get(port: int, path: str, cookies: str) -> tuple[int, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        headers = {"host": f"localhost:{port}", "accept": "text/html"} | ({"cookie": cookies} if cookies else {})
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers
    finally:
        connection.close()


def _cookies(headers: http.client.HTTPMessage) -> str:
    """The cookies that a response sets, without those that it removes, as a request has them."""
    pairs = [line.partition(";")[0] for line in headers.get_all("set-cookie", []) if "max-age=0" not in line.lower()]
    return "; ".join(pair for pair in pairs if pair.partition("=")[2])
