"""Owns tokens as an issuer makes them, signed with RS256, and the key set that verifies them. The key lives as long as the bench."""

import base64
import functools
import json
import subprocess
import tempfile
import time

TOKEN_SECONDS = 24 * 3600
KEY_NAME = "bench"


def claims(issuer: str, audience: str) -> dict:
    """Those of a login."""
    now = int(time.time())
    return {
        "iss": issuer, "aud": audience, "sub": "8f14e45f-ceea-467f-a8b7-1f0c3c2a9d11", "iat": now, "exp": now + TOKEN_SECONDS,
        "email": "alice@example.com", "scope": "openid profile email", "roles": ["clerk", "reader"],
    }


def token(content: dict) -> str:
    """A token that says this."""
    header = {"alg": "RS256", "typ": "JWT", "kid": KEY_NAME}
    signed = ".".join(_base64url(json.dumps(part).encode()) for part in (header, content))
    return f"{signed}.{_base64url(_sign(signed.encode()))}"


@functools.cache
def key_set() -> str:
    modulus = _openssl("rsa", "-noout", "-modulus", given=_key()).decode().strip().partition("=")[2]
    return json.dumps({"keys": [{"kty": "RSA", "kid": KEY_NAME, "n": _base64url(bytes.fromhex(modulus)), "e": "AQAB"}]})


@functools.cache
def _key() -> bytes:
    return _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048")


def _sign(text: bytes) -> bytes:
    """Signs with SHA-256. The key is in a file meanwhile, since openssl takes only the text from its input."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(_key())
        file.flush()
        return _openssl("dgst", "-sha256", "-sign", file.name, given=text)


def _openssl(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True, timeout=30).stdout


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
