"""An OpenID provider in the cluster, and browsers that sign in there at pods of a Gateway."""

import http.client
import json
import shutil
import tempfile
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from issuer import SERVE, Issuer, encoded, openssl

CLIENT, SECRET = "desk", "canary-of-the-client-desk"
HOST = "desk.test"
# A code is the nonce of its sign-in, so that the provider keeps nothing.
SERVER = (
    """
import base64, http.server, json, ssl, subprocess, sys, time, urllib.parse
def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")
def token(nonce):
    now = int(time.time())
    claims = json.load(open("/keys/claims")) | {"nonce": nonce, "iat": now, "exp": now + 3600}
    parts = {"alg": "RS256", "kid": "provider"}, claims
    message = b".".join(encoded(json.dumps(part).encode()) for part in parts)
    command = [sys.argv[1], "dgst", "-sha256", "-sign", "/keys/sign.key"]
    signature = subprocess.run(command, input=message, check=True, capture_output=True).stdout
    return (message + b"." + encoded(signature)).decode()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(open("/keys/discovery" if "/.well-known/" in self.path else "/keys/jwks", "rb").read())
    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        tokens = {"access_token": "access", "token_type": "Bearer", "expires_in": 3600, "id_token": token(form["code"][0])}
        self.answer(json.dumps(tokens).encode())
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
"""
    + SERVE
)


class SigningKey:
    """An RSA key of the provider, which can sign without a file for the message."""

    def __init__(self):
        self._file = Path(tempfile.mkdtemp()) / "key"
        openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self._file)

    def jwk(self) -> dict:
        modulus = openssl("rsa", "-in", self._file, "-noout", "-modulus").decode().strip().partition("=")[2]
        return {"kty": "RSA", "kid": "provider", "use": "sig", "alg": "RS256", "n": encoded(bytes.fromhex(modulus)), "e": "AQAB"}

    def private(self) -> str:
        return self._file.read_text()


class Provider(Issuer):
    """The provider in a namespace, with the objects of an issuer."""

    def __init__(self, cluster, namespace: str, host: str):
        super().__init__(cluster, namespace, host, SERVER, shutil.which("openssl"))
        self.url = f"https://{host}:8443"
        discovery = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        discovery |= {f"{name}_endpoint": f"{self.url}/{name}" for name in ("authorization", "token")}
        self._signing = SigningKey()
        claims = {"iss": self.url, "aud": CLIENT, "sub": "alice"}
        self._more = {"discovery": json.dumps(discovery), "claims": json.dumps(claims), "sign.key": self._signing.private()}

    def start_signing(self) -> None:
        self.start(self._signing)


class Browser:
    """What a browser keeps for one host, whichever pod it asks."""

    def __init__(self):
        self._cookies: dict[str, str] = {}

    def visit(self, pod: dict, path: str = "/") -> tuple[int, str]:
        """Status and Location of the response for a page."""
        cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())} if self._cookies else {}
        connection = http.client.HTTPConnection(pod["status"]["podIP"], 8080, timeout=60)
        try:
            connection.request("GET", path, headers={"Host": HOST, "Accept": "text/html", **cookies})
            response = connection.getresponse()
            response.read()
        finally:
            connection.close()
        for line in response.headers.get_all("Set-Cookie", []):
            name, _, value = line.partition(";")[0].partition("=")
            if "max-age=0" in line.lower():
                self._cookies.pop(name, None)
            else:
                self._cookies[name] = value
        return response.status, response.headers.get("Location", "")

    def sign_in(self, provider: Provider, begins: dict, ends: dict) -> None:
        """Begins a sign-in at one pod, and ends it at another one."""
        status, location = self.visit(begins, "/page?a=b")
        assert status == 302 and location.startswith(provider.url), (status, location)
        query = parse_qs(urlsplit(location).query)
        answer = urlencode({"code": query["nonce"][0], "state": query["state"][0]})
        status, location = self.visit(ends, f"{urlsplit(query['redirect_uri'][0]).path}?{answer}")
        assert status == 302 and location.endswith("/page?a=b"), (status, location)
