"""The cases: requests, bytes of streams and handshakes, each with what clients get. Every client runs those that it can express."""

import base64
import hashlib
from dataclasses import dataclass, field

from backend import PART, PARTS, filled
from objects import CALLS, MAX_BODY, ORIGIN, OTHER, WEB

Fields = list[tuple[str, str]]
LARGE = 5_000_000


@dataclass
class Request:
    method: str = "GET"
    path: str = "/echo"
    headers: Fields = field(default_factory=list)
    body: bytes = b""
    sized: bool = True
    """Whether the size of the body is sent. An empty body is one that ends at once."""
    trailers: Fields = field(default_factory=list)
    name: str = WEB
    """The server name of TLS."""
    host: str = ""
    """If it is not the server name."""
    together: int = 1
    """This number of requests is sent at the same time. Their answers are equal."""
    before: int = 0
    """This number of requests is sent before. `CLIENT` in headers is another text for each client."""
    cancel: str = ""
    """When the client cancels the request: `waiting` for the response, or `reading` it. The backend learns of it."""


@dataclass
class Wire:
    """Bytes of streams, in this order. What counts is the last one."""

    streams: list["Stream"]


@dataclass
class Stream:
    data: bytes
    is_uni: bool = False
    fin: bool = True


@dataclass
class Handshake:
    name: str = WEB
    alpn: str = "h3"
    is_guarded: bool = False
    """Whether the port asks for certificates of clients."""
    certificate: str | None = None
    """The name of a certificate of a client."""


@dataclass
class Expected:
    """What is set is compared."""

    status: int | None = 200
    headers: dict[str, str | None] = field(default_factory=dict)
    """None is a header that there is not."""
    body: bytes | None = None
    seen: dict = field(default_factory=dict)
    """What the backend has got."""
    trailers: dict[str, str] = field(default_factory=dict)
    interim: list[int] | None = field(default_factory=list)
    is_complete: bool = True
    stream: int | None = None
    """The code that ends the stream."""
    connection: int | None = None
    """The code that ends the connection."""
    alert: int | None = None
    certificate: list[str] | None = None


@dataclass
class Case:
    section: str
    name: str
    sent: Request | Wire | Handshake
    expected: Expected = field(default_factory=Expected)
    browser: Expected | bool = True
    """What a browser gets, if it is something else; False if it cannot do this."""
    references: tuple[str, ...] = ("h1", "h2")
    """Protocols over which the same request gets an equal answer."""
    lacks: tuple[str, ...] = ()
    """Clients that cannot express it, although they can express others like it."""


def seen(body: bytes = b"", **more) -> dict:
    return {"length": len(body), "digest": hashlib.sha256(body).hexdigest(), **more}


def requests():
    section = "1 requests and bodies"

    def case(name: str, request: Request, expected: Expected, **more) -> Case:
        return Case(section, name, request, expected, **more)

    large = filled(LARGE)
    yield case("GET", Request(path="/echo/a%20b?c=d&e"), Expected(seen=seen(method="GET", target="/echo/a%20b?c=d&e")))
    yield case("HEAD", Request("HEAD", "/bytes/1000"), Expected(headers={"content-length": "1000"}, body=b""))
    yield case("POST with a length", Request("POST", body=b"hello"), Expected(seen=seen(b"hello", method="POST", headers={"content-length": "5"})))
    yield case("POST without a length", Request("POST", body=b"hello", sized=False), Expected(seen=seen(b"hello")))
    yield case("POST with an empty body", Request("POST"), Expected(seen=seen()))
    yield case("POST with an empty body without a length", Request("POST", sized=False), Expected(seen=seen()))
    yield case("PUT", Request("PUT", body=b"x" * 70_000), Expected(seen=seen(b"x" * 70_000, method="PUT")))
    yield case("DELETE", Request("DELETE"), Expected(seen=seen(method="DELETE")))
    yield case("OPTIONS", Request("OPTIONS"), Expected(seen=seen(method="OPTIONS")))
    yield case("TRACE", Request("TRACE"), Expected(405), browser=False)
    yield case("5 MB up", Request("POST", body=large), Expected(seen=seen(large)))
    yield case("5 MB down", Request(path=f"/bytes/{LARGE}"), Expected(headers={"content-length": str(LARGE)}, body=large))
    yield case("5 MB down without a length", Request(path=f"/chunked/{LARGE}"), Expected(headers={"content-length": None}, body=large))
    yield case("5 MB both ways", Request("POST", "/mirror", body=large), Expected(body=large))
    yield case("a slow body", Request(path="/slow"), Expected(body=filled(PART) * PARTS))
    for status in (204, 304, 404, 500, 503):
        yield case(f"status {status}", Request(path=f"/status/{status}"), Expected(status, body=b""))


def headers():
    section = "2 headers"

    def case(name: str, request: Request, expected: Expected, **more) -> Case:
        return Case(section, name, request, expected, **more)

    cookies = [("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]
    yield case("split cookies", Request(headers=cookies), Expected(seen={"headers": {"cookie": "a=1; b=2; c=3"}}), references=("h2",))
    yield case("two Set-Cookie", Request(path="/cookies"), Expected(headers={"set-cookie": "a=1, b=2; Path=/"}), browser=Expected())
    values = [("x-a", "1"), ("x-a", "2"), ("x-empty", "")]
    yield case("repeated and empty", Request(headers=values), Expected(seen={"headers": {"x-a": "1, 2", "x-empty": ""}}))
    forged = [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-proto", "http"), ("x-forwarded-host", "forged.test")]
    actual = {"x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "https", "host": WEB}
    yield case("forged addresses", Request(headers=forged), Expected(seen={"headers": actual}), browser=False)
    near = [(f"x-{number}", "y" * 2000) for number in range(30)]
    yield case("a head near the limit", Request(headers=near), Expected(seen={"headers": {"x-29": "y" * 2000}}))
    # net/http over HTTP/2 and h3 obey the limit that the proxy announces, and send nothing.
    yield case("a head beyond the limit", Request(headers=near + [(f"y-{number}", "y" * 2000) for number in range(10)]), Expected(431), references=("h1",), lacks=("quinn",))
    yield case("too many headers", Request(headers=[(f"x-{number}", "y") for number in range(150)]), Expected(431), references=("h2",))
    yield case("a large head of a response", Request(path="/large-head/50000"), Expected(headers={"x-large": "x" * 50_000}))
    yield case("a host with a port", Request(host=f"{WEB}:444"), Expected(seen={"headers": {"host": f"{WEB}:444"}}))


def interim_and_trailers():
    section = "3 interim responses and trailers"

    def case(name: str, request: Request, expected: Expected, **more) -> Case:
        return Case(section, name, request, expected, **more)

    yield case("103", Request(path="/early"), Expected(body=b"after hints", interim=[103]))
    waits = Request("POST", body=b"waits", headers=[("expect", "100-continue")])
    yield case("100-continue", waits, Expected(seen=seen(b"waits"), interim=[100]))
    # Over HTTP/1.1 the proxy sends trailers to those who ask for them.
    http2 = {"references": ("h2",)}
    sums = {"x-sum": "1", "x-seen": ""}
    yield case("trailers of a response", Request(path="/trailers"), Expected(body=b"body", trailers=sums), browser=Expected(body=b"body"), **http2)
    both = Request("POST", "/trailers", body=b"up", sized=False, trailers=[("x-a", "1"), ("x-b", "2")])
    yield case("trailers both ways", both, Expected(body=b"up", trailers={"x-sum": "1", "x-seen": "x-a=1,x-b=2"}), **http2)
    large = Request("POST", "/trailers", body=b"up", sized=False, trailers=[("x-a", "y" * 8000)])
    yield case("large trailers", large, Expected(trailers={"x-seen": "x-a=" + "y" * 8000}), **http2)
    call = [("content-type", "application/grpc"), ("te", "trailers")]
    message = b"\0\0\0\0\5hello"
    # Over HTTP/1.1 there is no gRPC.
    grpc = {"references": ("h2",), "browser": False}
    yield case("a gRPC call", Request("POST", "/test.Service/Echo", call, message, False, name=CALLS), Expected(body=message, trailers={"grpc-status": "0"}), **grpc)
    twice = Request("POST", "/test.Service/Echo", call, message * 1000, False, name=CALLS)
    yield case("a gRPC call with 1000 messages", twice, Expected(body=message * 1000, trailers={"grpc-status": "0"}), **grpc)
    yield case("a gRPC call of no method", Request("POST", "/test.Service/None", call, message, False, name=CALLS), Expected(headers={"grpc-status": "12"}), **grpc)
    yield case("a gRPC call of no service", Request("POST", "/test.None/Echo", call, message, False, name=CALLS), Expected(headers={"grpc-status": "12"}), **grpc)


def streams():
    section = "4 streams"

    def case(name: str, request: Request, expected: Expected, **more) -> Case:
        return Case(section, name, request, expected, **more)

    yield case("120 requests at once", Request(path="/bytes/100", together=120), Expected(body=filled(100)))
    body = b"z" * 20_000
    yield case("50 bodies at once", Request("POST", "/mirror", body=body, together=50), Expected(body=body))
    yield case("a response before the body", Request("POST", "/refuse", body=b"z" * 100_000, sized=False), Expected(409, body=b"refused"), browser=False)
    yield case("a backend that ends without a response", Request(path="/broken"), Expected(502))
    yield case("a backend that ends within its response", Request(path="/cut"), Expected(None, is_complete=False, stream=0x102))
    yield case("cancelled while it waits", Request(path="/hang/KEY", cancel="waiting"), Expected(None, is_complete=False))
    yield case("cancelled while it reads", Request(path="/endless/KEY", cancel="reading"), Expected(is_complete=False))


def policies():
    section = "5 routes and policies"

    def case(name: str, request: Request, expected: Expected, **more) -> Case:
        return Case(section, name, request, expected, **more)

    yield case("no route", Request(path="/none"), Expected(404))
    yield case("no endpoint", Request(path="/absent"), Expected(503))
    yield case("no such host", Request(host="none.test"), Expected(404))
    yield case("the host of another certificate", Request(host=OTHER), Expected(421))
    yield case("no credentials", Request(path="/login"), Expected(401, {"www-authenticate": 'Basic realm="restricted", charset="UTF-8"'}))
    basic = [("authorization", "Basic " + base64.b64encode(b"user:password").decode())]
    yield case("credentials", Request(path="/login", headers=basic), Expected(seen=seen()))
    yield case("forbidden", Request(path="/forbidden"), Expected(403))
    yield case("a body that is too large", Request("POST", "/small", body=filled(MAX_BODY + 1)), Expected(413))
    yield case("a body that becomes too large", Request("POST", "/small", body=filled(MAX_BODY + 1), sized=False), Expected(413))
    yield case("too many requests", Request(path="/limited", headers=[("x-client", "CLIENT")], before=1), Expected(429))
    preflight = [("origin", ORIGIN), ("access-control-request-method", "PUT"), ("access-control-request-headers", "x-custom")]
    allowed = {"access-control-allow-origin": ORIGIN, "access-control-allow-methods": "GET, PUT", "access-control-allow-headers": "x-custom"}
    yield case("a preflight", Request("OPTIONS", "/cors", preflight), Expected(None, allowed), browser=False)
    yield case("a request of another origin", Request(path="/cors", headers=[("origin", ORIGIN)]), Expected(headers={"access-control-allow-origin": ORIGIN}), browser=False)
    elsewhere = Request("PUT", "/cors", [("x-custom", "1")], b"body", name=OTHER)
    yield case("a request with a preflight", elsewhere, Expected(seen=seen(b"body", method="PUT")))
    yield case("a redirect", Request(path="/moved"), Expected(302, {"location": f"https://{WEB}:PORT/echo"}), browser=Expected(seen=seen(target="/echo")))
    yield case("a rewrite", Request(path="/old/a?b"), Expected(seen=seen(target="/echo/new/a?b")))
    yield case("added headers", Request(path="/added"), Expected(headers={"x-added": "by the route"}, seen={"headers": {"x-added": "by the route"}}))
    plain = Expected(body=filled(100_000))
    for encoding in ("gzip", "br", "zstd"):
        accepts = [("accept-encoding", encoding)]
        yield case(f"compression, {encoding}", Request(path="/text/100000", headers=accepts), Expected(headers={"content-encoding": encoding, "vary": "Accept-Encoding"}, body=plain.body), browser=False)
    yield case("compression of a browser", Request(path="/text/100000"), plain)


# The wire. Integers and field sections of QPACK are written by hand, since clients do not write malformed ones.

DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 13
CONTROL, PUSH, ENCODER, DECODER = 0, 1, 2, 3
GREASE = 0x1F * 1000 + 0x21
STREAM_CREATION_ERROR, CLOSED_CRITICAL_STREAM, FRAME_UNEXPECTED, FRAME_ERROR = 0x103, 0x104, 0x105, 0x106
ID_ERROR, SETTINGS_ERROR, MISSING_SETTINGS, REQUEST_INCOMPLETE, MESSAGE_ERROR = 0x108, 0x109, 0x10A, 0x10D, 0x10E
DECOMPRESSION_FAILED, ENCODER_STREAM_ERROR, DECODER_STREAM_ERROR = 0x200, 0x201, 0x202


def integer(value: int) -> bytes:
    """RFC 9000, 16."""
    size = next(size for size in range(4) if value < 1 << (8 * (1 << size) - 2))
    return (value | size << (8 * (1 << size) - 2)).to_bytes(1 << size, "big")


def frame(kind: int, payload: bytes = b"") -> bytes:
    return integer(kind) + integer(len(payload)) + payload


def prefixed(value: int, bits: int, first: int) -> bytes:
    """RFC 7541, 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    written, value = [first | most], value - most
    while value >= 128:
        written.append(value % 128 + 128)
        value //= 128
    return bytes([*written, value])


def section(*lines: tuple[str, str]) -> bytes:
    """Literal field lines with literal names (RFC 9204, 4.5.6)."""
    written = bytes(2)
    for name, value in lines:
        written += prefixed(len(name), 3, 0x20) + name.encode() + prefixed(len(value), 7, 0) + value.encode()
    return written


def head(*more: tuple[str, str], method: str = "GET") -> bytes:
    return frame(HEADERS, section(*control(method), *more))


def control(method: str = "GET") -> Fields:
    return [(":method", method), (":scheme", "https"), (":authority", WEB), (":path", "/echo")]


def control_stream(*frames: bytes, fin: bool = False) -> Stream:
    return Stream(integer(CONTROL) + b"".join(frames), True, fin)


def wire():
    request = "6 malformed requests"
    begun = control_stream(frame(SETTINGS))

    def refused(name: str, data: bytes, code: int = MESSAGE_ERROR) -> Case:
        return Case(request, name, Wire([begun, Stream(data)]), Expected(None, stream=code, is_complete=False))

    for index, name in enumerate(("method", "scheme", "authority", "path")):
        yield refused(f"no :{name}", frame(HEADERS, section(*(line for at, line in enumerate(control()) if at != index))))
        yield refused(f"two :{name}", frame(HEADERS, section(*control(), control()[index])))
    yield refused("an unknown pseudo-header", frame(HEADERS, section(*control(), (":x", "y"))))
    yield refused("a pseudo-header of responses", frame(HEADERS, section(*control(), (":status", "200"))))
    yield refused("a pseudo-header after a header", frame(HEADERS, section(*control()[:3], ("x", "y"), control()[3])))
    yield refused("an empty :path", frame(HEADERS, section(*control()[:3], (":path", ""))))
    yield refused(":protocol without CONNECT", head((":protocol", "websocket")))
    yield refused("a host that is not :authority", head(("host", OTHER)))
    yield refused("an uppercase name", head(("Upper", "x")))
    yield refused("an empty name", head(("", "x")))
    yield refused("a space in a name", head(("a b", "x")))
    yield refused("a line break in a value", head(("a", "x\r\ny: z")))
    yield refused("a NUL in a value", head(("a", "x\0y")))
    for name, value in (("connection", "close"), ("keep-alive", "1"), ("proxy-connection", "close"), ("transfer-encoding", "chunked"), ("upgrade", "x"), ("te", "gzip")):
        yield refused(f"the header {name}", head((name, value)))
    length = ("content-length", "3")
    yield refused("more content than its length", head(length, method="POST") + frame(DATA, b"four"))
    yield refused("less content than its length", head(length, method="POST") + frame(DATA, b"tw"))
    yield refused("no content with a length", head(length, method="POST"))
    yield refused("two lengths", head(length, ("content-length", "4"), method="POST") + frame(DATA, b"abc"))
    equal = Wire([begun, Stream(head(length, length, method="POST") + frame(DATA, b"abc"))])
    yield Case(request, "two equal lengths", equal, Expected(400))
    yield refused("a length with a sign", head(("content-length", "+3"), method="POST") + frame(DATA, b"abc"))
    yield refused("a pseudo-header in trailers", head(method="POST") + frame(DATA, b"abc") + frame(HEADERS, section((":path", "/"))))
    yield refused("a connection-specific trailer", head(method="POST") + frame(DATA, b"abc") + frame(HEADERS, section(("connection", "x"))))
    yield refused("a stream without a request", b"", REQUEST_INCOMPLETE)
    yield refused("nothing but a frame to ignore", frame(GREASE, b"x"), REQUEST_INCOMPLETE)
    yield from forbidden(begun)
    yield from ignored(begun)


def forbidden(begun: Stream):
    name = "7 forbidden frames and streams"

    def on_request(what: str, data: bytes, code: int = FRAME_UNEXPECTED) -> Case:
        return Case(name, what, Wire([begun, Stream(data)]), Expected(None, connection=code, is_complete=False))

    def on_control(what: str, *frames: bytes, code: int = FRAME_UNEXPECTED, fin: bool = False) -> Case:
        return Case(name, what, Wire([control_stream(*frames, fin=fin)]), Expected(None, connection=code, is_complete=False))

    def second(what: str, data: bytes, code: int, fin: bool = False) -> Case:
        return Case(name, what, Wire([begun, Stream(data, True, fin)]), Expected(None, connection=code, is_complete=False))

    yield on_request("DATA before HEADERS", frame(DATA, b"x"))
    yield on_request("DATA after trailers", head() + frame(HEADERS, section(("a", "b"))) + frame(DATA, b"x"))
    yield on_request("a third section", head() + 2 * frame(HEADERS, section(("a", "b"))))
    for kind in (CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID, 2, 6, 8, 9):
        yield on_request(f"frame {kind:#x} on a request stream", head() + frame(kind, b"\0"))
    yield on_request("a stream that ends within a frame", head(method="POST") + integer(DATA) + integer(10) + b"x", FRAME_ERROR)
    yield on_request("a reference to the dynamic table", frame(HEADERS, b"\2\0\x80"), DECOMPRESSION_FAILED)
    yield on_request("a static entry that there is not", frame(HEADERS, b"\0\0" + prefixed(99, 6, 0xC0)), DECOMPRESSION_FAILED)
    yield on_control("no SETTINGS", frame(GOAWAY, b"\0"), code=MISSING_SETTINGS)
    yield on_control("a frame to ignore before SETTINGS", frame(GREASE), frame(SETTINGS), code=MISSING_SETTINGS)
    yield on_control("two SETTINGS", frame(SETTINGS), frame(SETTINGS))
    for kind in (DATA, HEADERS, PUSH_PROMISE, 2, 6, 8, 9):
        yield on_control(f"frame {kind:#x} on the control stream", frame(SETTINGS), frame(kind, b"\0"))
    for setting in (0, 2, 3, 4, 5):
        yield on_control(f"setting {setting} of HTTP/2", frame(SETTINGS, integer(setting) + b"\0"), code=SETTINGS_ERROR)
    yield on_control("a setting that is there twice", frame(SETTINGS, b"\6\x20\6\x20"), code=SETTINGS_ERROR)
    yield on_control("an extended CONNECT of 2", frame(SETTINGS, b"\x08\2"), code=SETTINGS_ERROR)
    yield on_control("SETTINGS that are cut", frame(SETTINGS, b"\6"), code=FRAME_ERROR)
    yield on_control("a GOAWAY with a rest", frame(SETTINGS), frame(GOAWAY, b"\0\0"), code=FRAME_ERROR)
    yield on_control("a GOAWAY that grows", frame(SETTINGS), frame(GOAWAY, b"\0"), frame(GOAWAY, b"\4"), code=ID_ERROR)
    yield on_control("a MAX_PUSH_ID that shrinks", frame(SETTINGS), frame(MAX_PUSH_ID, b"\4"), frame(MAX_PUSH_ID, b"\0"), code=ID_ERROR)
    yield on_control("CANCEL_PUSH of no push", frame(SETTINGS), frame(CANCEL_PUSH, b"\0"), code=ID_ERROR)
    yield on_control("the end of the control stream", frame(SETTINGS), code=CLOSED_CRITICAL_STREAM, fin=True)
    yield second("a second control stream", integer(CONTROL) + frame(SETTINGS), STREAM_CREATION_ERROR)
    yield second("a push stream", integer(PUSH) + b"\0", STREAM_CREATION_ERROR)
    yield second("an encoder with a table", integer(ENCODER) + b"\x3f\xbd\1", ENCODER_STREAM_ERROR)
    yield second("a decoder that acknowledges", integer(DECODER) + b"\x84", DECODER_STREAM_ERROR)
    yield second("the end of an encoder", integer(ENCODER), CLOSED_CRITICAL_STREAM, True)
    yield second("the end of a decoder", integer(DECODER), CLOSED_CRITICAL_STREAM, True)


def ignored(begun: Stream):
    name = "8 what is ignored"

    def answered(what: str, *streams: Stream) -> Case:
        return Case(name, what, Wire(list(streams)))

    plain = Stream(head())
    many = b"".join(frame(GREASE, b"x" * size) for size in (0, 1, 100, 20_000))
    yield answered("a request without a control stream", plain)
    yield answered("frames between others", begun, Stream(many + head(method="POST") + many + frame(DATA, b"a") + many + frame(DATA) + frame(DATA, b"b") + many))
    yield answered("settings", control_stream(frame(SETTINGS, integer(GREASE) + integer(1 << 40) + integer(0x33) + b"\1" + integer(0x4D44) + b"\1")), plain)
    yield answered("frames of the control stream", control_stream(frame(SETTINGS), many, frame(MAX_PUSH_ID, b"\4"), frame(0xF0700, b"\0u=1"), frame(GOAWAY, b"\0")), plain)
    yield answered("unidirectional streams", begun, Stream(integer(GREASE) + b"x", True), Stream(integer(0x54) + b"x", True, False), plain)
    yield answered("QPACK streams", begun, Stream(integer(ENCODER) + b"\x20", True, False), Stream(integer(DECODER) + b"\x40", True, False), plain)
    yield answered("an equal host", begun, Stream(head(("host", WEB.upper()))))
    stopped = Wire([begun, Stream(integer(GREASE) + b"x", True, False)])
    yield Case(name, "a stream of an unknown type is stopped", stopped, Expected(None, stream=STREAM_CREATION_ERROR, is_complete=False))


def handshakes():
    section = "9 handshakes"

    def case(name: str, handshake: Handshake, expected: Expected, **more) -> Case:
        return Case(section, name, handshake, expected, **more)

    def served(*names: str) -> Expected:
        return Expected(None, certificate=list(names))

    def refused(alert: int) -> Expected:
        return Expected(None, alert=alert, is_complete=False)

    unrecognized, certificate_required, unknown_authority, no_protocol = 112, 116, 48, 120
    yield case("the certificate of a name", Handshake(), served(WEB))
    yield case("the certificate of another name", Handshake(OTHER), served(OTHER))
    yield case("a name with capitals", Handshake("WEB.test"), served(WEB))
    yield case("an unknown name", Handshake("none.test"), refused(unrecognized))
    for alpn in ("h2", "http/1.1", "h3-29", "hq-interop"):
        yield case(f"ALPN {alpn}", Handshake(alpn=alpn), refused(no_protocol))
    yield case("a certificate of the client", Handshake(is_guarded=True, certificate="client"), served(WEB))
    yield case("no certificate of the client", Handshake(is_guarded=True), refused(certificate_required))
    yield case("a certificate of an unknown authority", Handshake(is_guarded=True, certificate="stranger"), refused(unknown_authority))


def discovery():
    section = "10 discovery"
    told = {"alt-svc": 'h3=":PORT"; ma=3600'}
    yield Case(section, "no Alt-Svc over h3", Request(), Expected(headers={"alt-svc": None, "connection": None}), references=())
    for protocol in ("h1", "h2"):
        yield Case(section, f"Alt-Svc over {protocol}", Request(), Expected(headers=told), False, (protocol,), ("aioquic", "quic-go", "quinn"))


def cases() -> list[Case]:
    sections = (requests, headers, interim_and_trailers, streams, policies, wire, handshakes, discovery)
    return [case for section in sections for case in section()]
