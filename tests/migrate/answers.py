"""What the applications of tests/migrate/cases need to be served: backends, certificates, ports, requests, and their answers. Does not know who converted them."""

import contextlib
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).resolve().parents[1] / "harness"))
from launch import until_ready

TIMEOUT_SECONDS = 30
ANNOTATION = "nginx.ingress.kubernetes.io/"
BODY = b"x" * (2 << 20)
# Each once, and below those that the kernel gives to connections: nobody takes one before the program binds it.
PORTS = iter(range(20000, 32768))
# One for all connections: each new one reads all authorities of the system.
CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE
HEADERS = ("access-control-allow-origin", "strict-transport-security", "www-authenticate", "content-security-policy")


class Backend(BaseHTTPRequestHandler):
    """Answers with what it got, and its own name."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        text = json.dumps({"backend": self.server.name, "path": self.path, "host": self.headers.get("host")}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_OPTIONS = answer

    def log_message(self, *_: object) -> None:
        pass


class Backends:
    """A server for each Service."""

    def __init__(self) -> None:
        self.ports = {}

    def port(self, name: str) -> int:
        if name not in self.ports:
            server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
            server.daemon_threads, server.name = True, name
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.ports[name] = server.server_address[1]
        return self.ports[name]


def free_port() -> int:
    for port in PORTS:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def documents(text: str) -> list:
    found = [document for document in yaml.safe_load_all(text) if document]
    return [item for document in found for item in (document["items"] if document["kind"] == "List" else [document])]


def key(document: dict, name: str | None = None) -> tuple:
    return (document["metadata"].get("namespace", "default"), name or document["metadata"]["name"])


@dataclass
class Application:
    """The objects of a case."""

    name: str
    objects: list
    settings: dict
    backends: Backends
    certificate: dict

    @property
    def ingresses(self) -> list:
        return [it for it in self.objects if it["kind"] == "Ingress" and it["apiVersion"] == "networking.k8s.io/v1"]

    def lines_about(self, report: list, host: str) -> list:
        """The lines of a report about the Ingresses of a host, and about the controller."""
        hosts = {key(it): [rule.get("host", "").replace("*", "any") for rule in it["spec"].get("rules", [])] for it in self.ingresses}
        names = ["/".join(name) for name, of_ingress in hosts.items() if host in of_ingress]
        return [line for line in report if ": Ingress " not in line or any(f": Ingress {name}: " in line for name in names)]

    def uses(self) -> dict:
        """The ports of each Service that Ingresses name."""
        known = {key(it): it["spec"].get("ports", []) for it in self.objects if it["kind"] == "Service"}
        uses = {name: {port["port"]: port.get("name") for port in ports} for name, ports in known.items()}
        for ingress in self.ingresses:
            paths = [path for rule in ingress["spec"].get("rules", []) for path in (rule.get("http") or {}).get("paths", [])]
            backends = [path["backend"] for path in paths] + [ingress["spec"].get("defaultBackend")]
            for service in [backend["service"] for backend in backends if backend and "service" in backend]:
                port = service.get("port", {}).get("number", 80)
                uses.setdefault(key(ingress, service["name"]), {}).setdefault(port, None)
            named = ingress["metadata"].get("annotations", {}).get(ANNOTATION + "default-backend")
            if named:
                uses.setdefault(key(ingress, named), {}).setdefault(80, None)
        return uses

    def surroundings(self) -> list:
        """Services with their backends, Secrets with certificates, and what the case has of its own."""
        made = [it for it in self.objects if it["kind"] in ("ConfigMap", "Secret")]
        for (namespace, name), ports in self.uses().items():
            named = [(label or f"p{port}", port) for port, label in ports.items()]
            made.append({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
                "spec": {"ports": [{"name": label, "port": port} for label, port in named]},
            })
            made.append({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
                "ports": [{"name": label, "port": self.backends.port(name)} for label, _ in named],
                "endpoints": [{"addresses": ["127.0.0.1"]}],
            })
        secrets = {key(it, tls["secretName"]) for it in self.ingresses for tls in it["spec"].get("tls", []) if "secretName" in tls}
        if "default-certificate" in self.settings:
            secrets.add(tuple(self.settings["default-certificate"].split("/")))
        present = {key(it) for it in made if it["kind"] == "Secret"}
        for namespace, name in sorted(secrets - present):
            metadata = {"name": name, "namespace": namespace}
            made.append({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "stringData": self.certificate})
        return made

    def requests(self) -> list:
        """The requests that the hosts and paths imply."""
        requests = []
        for ingress in self.ingresses:
            secure = {host for tls in ingress["spec"].get("tls", []) for host in tls.get("hosts", [])}
            for rule in ingress["spec"].get("rules", []):
                host = rule.get("host", "nobody.example.net").replace("*", "any")
                schemes = ["http", "https"] if rule.get("host") in secure else ["http"]
                paths = [path.get("path", "/") for path in (rule.get("http") or {}).get("paths", [])]
                plain = {re.sub(r"[(\[\\$|^].*", "", path) or "/" for path in paths}
                varied = {one for path in plain for one in variations(path)} | {"/", "/other/page?a=b"}
                for scheme in schemes:
                    requests += [Request(scheme, host, path) for path in sorted(varied)]
                    first = sorted(plain)[0] if plain else "/"
                    requests.append(Request(scheme, host, first, method="POST"))
                    cross = {"origin": "https://app.example.com", "access-control-request-method": "GET"}
                    requests.append(Request(scheme, host, first, headers=cross))
                    requests.append(Request(scheme, host, first, method="OPTIONS", headers=cross))
                    requests.append(Request(scheme, host, first, headers={"x-canary": "always"}))
        unique = {str(request): request for request in requests}
        return list(unique.values())


def variations(path: str) -> list:
    base = path.rstrip("/")
    return [path, base or "/", f"{base}/", f"{base or '/'}x", f"{base}/sub/page?q=1", path.upper()]


@dataclass
class Request:
    scheme: str
    host: str
    path: str
    method: str = "GET"
    headers: dict = field(default_factory=dict)

    def __str__(self) -> str:
        headers = "".join(f" {name}" for name in self.headers)
        return f"{self.method} {self.scheme}://{self.host}{self.path}{headers}"


class Served:
    """What a tool made of an application, served by the program."""

    def __init__(self, program: Path, objects: list, folder: Path) -> None:
        self.ports = {}
        self.listeners = []
        for document in objects:
            if document["kind"] in ("Gateway", "ListenerSet", "XListenerSet"):
                self.place(document)
        folder.mkdir()
        (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
        admin = free_port()
        with (folder.parent / f"{folder.name}.log").open("w") as log:
            arguments = ["run", "--config-dir", folder, "--admin", f"127.0.0.1:{admin}", "--drain-delay", "0s", "--drain-deadline", "0s", "--workers", "1"]
            self.process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
        until_ready(self.process, admin)

    def place(self, document: dict) -> None:
        """Gives the ports of a Gateway to it alone."""
        spec = document["spec"]
        owner = key(document)
        if document["kind"] == "Gateway":
            spec["gatewayClassName"] = "portcullis"
        else:
            parent = spec["parentRef"]
            owner = (parent.get("namespace", owner[0]), parent["name"])
        for listener in spec["listeners"]:
            place = (owner, listener["port"])
            if place not in self.ports:
                self.ports[place] = free_port()
            listener["port"] = self.ports[place]
            scheme = {"HTTP": "http", "HTTPS": "https", "TLS": "https"}[listener["protocol"]]
            self.listeners.append((scheme, listener.get("hostname", ""), listener["port"]))

    def port(self, request: Request) -> int | None:
        """The port of the most specific listener for a host."""
        found = []
        for scheme, hostname, port in self.listeners:
            is_match = hostname in ("", request.host) or (hostname.startswith("*") and request.host.endswith(hostname[1:]))
            if scheme == request.scheme and is_match:
                found.append((hostname == request.host, len(hostname), port))
        return max(found)[2] if found else None

    def answer(self, request: Request) -> dict:
        port = self.port(request)
        if port is None:
            return {"status": "no listener"}
        try:
            return exchange(request, port)
        except (OSError, http.client.HTTPException):
            return {"status": "closed"}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def exchange(request: Request, port: int) -> dict:
    stream = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
    if request.scheme == "https":
        stream = CONTEXT.wrap_socket(stream, server_hostname=request.host)
    connection = http.client.HTTPConnection(request.host)
    connection.sock = stream
    body = BODY if request.method == "POST" else None
    # A refused body ends the connection; the response may have come.
    with contextlib.suppress(OSError):
        connection.request(request.method, request.path, body, {"host": request.host, **request.headers})
    response = connection.getresponse()
    text = response.read()
    answer = {"status": response.status, "location": response.headers.get("location")}
    answer |= {name: response.headers.get(name) for name in HEADERS}
    cookies = response.headers.get_all("set-cookie") or []
    answer["cookies"] = ",".join(sorted(cookie.split("=")[0] for cookie in cookies)) or None
    if response.status == 200 and text.startswith(b'{"backend"'):
        answer |= json.loads(text)
    connection.close()
    return {name: value for name, value in answer.items() if value is not None}
