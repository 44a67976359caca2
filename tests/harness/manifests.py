"""Documents of YAML that the objects of several scripts begin with."""

CLASS = """\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway-controller}
---
"""


def service(name: str, port: int = 1, *addresses: str, protocol: str = "") -> str:
    """A Service whose endpoints have these addresses and speak a protocol, as `appProtocol` names it."""
    endpoints = ", ".join(f"{{addresses: [{address}]}}" for address in addresses)
    spoken = f", appProtocol: {protocol}" if protocol else ""
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{ports: [{{port: 80{spoken}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{endpoints}]
---
"""
