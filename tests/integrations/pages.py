"""The objects of a page, from its blocks of YAML, and how they and the manifests of other projects are applied."""

import subprocess
from pathlib import Path

import yaml

from api import KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
CERTIFICATES = "/apis/cert-manager.io/v1"
# Kinds of other projects, in the form of `api.KINDS`.
KINDS.update(
    {
        "ClusterIssuer": (CERTIFICATES, "clusterissuers", False),
        "Certificate": (CERTIFICATES, "certificates", True),
        "Canary": ("/apis/flagger.app/v1beta1", "canaries", True),
    }
)


def blocks(page: str) -> list[str]:
    """The blocks of YAML of docs/PAGE.md."""
    parts = (DOCS / f"{page}.md").read_text().split("\n```yaml\n")[1:]
    return [part.split("\n```\n")[0] for part in parts]


def documents(page: str) -> list[dict]:
    return [one for block in blocks(page) for one in yaml.safe_load_all(block)]


def objects(page: str) -> list[dict]:
    """The objects of a page. Its other documents, such as values of charts, are left out."""
    return [one for one in documents(page) if "metadata" in one]


def find(page: str, kind: str, name: str) -> dict:
    return next(one for one in objects(page) if (one["kind"], one["metadata"]["name"]) == (kind, name))


def apply(*objects: dict) -> None:
    kubectl(*objects, arguments=["apply", "--server-side", "--force-conflicts", "-f", "-"])


def kubectl(*objects: dict, arguments: list[str]) -> str:
    """Runs kubectl with objects as its input; returns its output."""
    done = subprocess.run(["kubectl", *arguments], input=yaml.safe_dump_all(objects), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply_file(path: Path) -> None:
    kubectl(arguments=["apply", "--server-side", "-f", str(path)])


def deployment(namespace: str, name: str, *arguments: str) -> list[dict]:
    """A namespace with a program that may do everything."""
    labels = {"app": name}
    container = {"name": name, "image": name, "args": list(arguments)}
    pod = {"metadata": {"labels": labels}, "spec": {"serviceAccountName": name, "containers": [container]}}
    metadata = {"namespace": namespace, "name": name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"selector": {"matchLabels": labels}, "template": pod}},
    ]
