"""Self-signed ECDSA P-256 certificates, made with nothing but the standard library. For examples and measurements only: the arithmetic leaks
keys by its timing."""

import base64
import hashlib
import secrets

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
_EC_P256 = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")


def self_signed(hostname: str) -> tuple[str, str]:
    """A certificate for a hostname and its key, in PEM."""
    key = secrets.randbelow(_N - 1) + 1
    public = b"\x04" + b"".join(part.to_bytes(32, "big") for part in _multiply(key))
    name = _sequence(_tlv(0x31, _sequence(bytes.fromhex("0603550403"), _tlv(0x0C, hostname.encode()))))
    subject_names = _sequence(bytes.fromhex("0603551d11"), _tlv(0x04, _sequence(_tlv(0x82, hostname.encode()))))
    body = _sequence(
        _tlv(0xA0, _integer(2)),
        _integer(secrets.randbits(120)),
        _ECDSA_SHA256,
        name,
        _sequence(_tlv(0x17, b"250101000000Z"), _tlv(0x17, b"490101000000Z")),
        name,
        _sequence(_EC_P256, _bits(public)),
        _tlv(0xA3, _sequence(subject_names)),
    )
    certificate = _sequence(body, _ECDSA_SHA256, _bits(_sign(key, body)))
    private = _sequence(_integer(1), _tlv(0x04, key.to_bytes(32, "big")), _tlv(0xA1, _bits(public)))
    return _pem("CERTIFICATE", certificate), _pem("PRIVATE KEY", _sequence(_integer(0), _EC_P256, _tlv(0x04, private)))


def der(certificate: str) -> bytes:
    """The bytes of a certificate in PEM."""
    return base64.b64decode("".join(certificate.splitlines()[1:-1]))


def _sign(key: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    nonce = secrets.randbelow(_N - 1) + 1
    r = _multiply(nonce)[0] % _N
    return _sequence(_integer(r), _integer(pow(nonce, -1, _N) * (digest + r * key) % _N))


def _multiply(factor: int) -> tuple[int, int]:
    """A multiple of the base point."""
    total = None
    for position, window in enumerate(_WINDOWS):
        digit = factor >> (4 * position) & 15
        if digit:
            total = _add(total, window[digit - 1])
    x, y, z = total
    inverse = pow(z, -1, _P)
    return x * inverse**2 % _P, y * inverse**3 % _P


def _add(one: tuple[int, int, int] | None, other: tuple[int, int, int]) -> tuple[int, int, int]:
    """The sum of two points in Jacobian coordinates."""
    if one is None:
        return other
    (x1, y1, z1), (x2, y2, z2) = one, other
    z1z1, z2z2 = z1 * z1 % _P, z2 * z2 % _P
    u1, s1 = x1 * z2z2 % _P, y1 * z2 * z2z2 % _P
    h, r = (x2 * z1z1 - u1) % _P, (y2 * z1 * z1z1 - s1) % _P
    if h == 0 and r == 0:
        yy = y1 * y1 % _P
        s, m = 4 * x1 * yy % _P, 3 * (x1 - z1z1) * (x1 + z1z1) % _P
        x = (m * m - 2 * s) % _P
        return x, (m * (s - x) - 8 * yy * yy) % _P, 2 * y1 * z1 % _P
    hh = h * h % _P
    hhh, v = h * hh % _P, u1 * hh % _P
    x = (r * r - hhh - 2 * v) % _P
    return x, (r * (v - x) - s1 * hhh) % _P, h * z1 * z2 % _P


def _windows() -> list[list[tuple[int, int, int]]]:
    """The multiples from 1 to 15 of the base point, for each of the 64 hexadecimal digits of a factor."""
    windows, point = [], (*_G, 1)
    for _ in range(64):
        window = [point]
        for _ in range(15):
            window.append(_add(window[-1], point))
        point = window.pop()
        windows.append(window)
    return windows


def _tlv(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 128 + len(size)]) + size + content


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tlv(0x03, b"\0" + content)


def _pem(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


_WINDOWS = _windows()
