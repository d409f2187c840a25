"""The manifests fit the schemas of Kubernetes, and of the operator.

Both come from PyPI, and are no part of the usual environment: `pip install kubernetes-validate dask-kubernetes`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.recipes import MANIFESTS, of_kind, pods

pytestmark = pytest.mark.slow
VERSIONS = ("1.29", "1.31", "1.33", "1.35")
"""Of Kubernetes; the schema of 1.28 wants `onPodConditions` beside `onExitCodes`."""
CRD = "operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"


@pytest.fixture(scope="module")
def validate():
    found = pytest.importorskip("kubernetes_validate", reason="`pip install kubernetes-validate` has the schemas")
    return found.validate


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata'].get('name')}")
def test_manifests_have_the_fields_of_kubernetes_and_no_others(manifest, version, validate):
    if manifest["kind"] != "DaskCluster":
        validate(manifest, version, strict=True)
        return
    for name in ("scheduler", "worker"):
        validate(of_core("Pod", pods()[name]), version, strict=True)
    validate(of_core("Service", manifest["spec"]["scheduler"]["service"]), version, strict=True)


def of_core(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return what the operator makes of a part of its manifest."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "made"}, "spec": spec}


def test_the_cluster_has_the_fields_of_the_operator_and_no_others():
    from jsonschema import Draft202012Validator

    found = find_spec("dask_kubernetes")
    if found is None or found.origin is None:
        pytest.skip("`pip install dask-kubernetes` has the operator's own schema")
    definition = yaml.safe_load((Path(found.origin).parent / CRD).read_text(encoding="utf-8"))
    (version,) = definition["spec"]["versions"]
    (cluster,) = of_kind("DaskCluster")
    assert cluster["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"].update(apiVersion={}, kind={}, metadata={})
    assert [error.message for error in Draft202012Validator(schema).iter_errors(cluster)] == []


def closed(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {name: closed(one) for name, one in schema.items()}
    kept = schema.get("additionalProperties") or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not kept:
        made["additionalProperties"] = False
    return made
