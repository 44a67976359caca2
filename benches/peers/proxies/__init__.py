"""Owns the list of proxies under test. A new peer is one module with a `Proxy` and one entry here."""

from .base import SERVER_NAME, ForwardSite, Proxy, Site
from .envoy import Envoy
from .haproxy import HAProxy
from .nginx import Nginx
from .portcullis import Before, Portcullis, Restricted

OURS = Portcullis.name
ALL: dict[str, type[Proxy]] = {proxy.name: proxy for proxy in (Portcullis, Nginx, HAProxy, Envoy)}

__all__ = ["ALL", "OURS", "SERVER_NAME", "Before", "ForwardSite", "Portcullis", "Proxy", "Restricted", "Site"]
