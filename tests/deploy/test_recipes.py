"""What `deploy/` says is what the code does: commands, options, variables, extras, ports, paths."""

from __future__ import annotations

import fnmatch
import re
import tomllib

import pytest
import yaml

from olivelike._extras import place_of
from tests.deploy.recipes import (
    APPLIED,
    COMPOSE,
    CREATED,
    CUDA,
    DEPLOY,
    DOCKERFILE,
    DRAW,
    INIT,
    KUBERNETES,
    ROOT,
    SERVICES,
    container,
    container_command,
    instruction,
    of_kind,
    ours,
    pods,
    service_command,
)  # fmt: skip
from tools.wheels import OPTIONS, RUNTIMES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGE = f"olivelike:{PROJECT['version']}"
THEIRS = {
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "DASK_LOGGING__DISTRIBUTED",
    "HF_TOKEN",
}  # fmt: skip
"""Variables that s3fs, Dask and huggingface_hub read."""
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OLIVELIKE_API_KEY", "HF_TOKEN")
COMMANDS = {
    "image": [*instruction("ENTRYPOINT"), *instruction("CMD")][2:],
    **{f"compose-{name}": service_command(name) for name in ours() if name != "bucket"},
    **{f"pod-{name}": container_command(name) for name in pods()},
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_each_command_line_is_understood(words):
    """By the program's own parser: options that are not there, values that are none and missing ones are errors."""
    from click import Context
    from distributed.cli import dask_scheduler, dask_worker
    from typer.main import get_command

    from olivelike.cli import app

    program, name, *arguments = words
    if program == "dask":
        command = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}[name]
    else:
        assert program == "olivelike"
        olivelike = get_command(app._app)
        command = olivelike.get_command(Context(olivelike), name)
    assert command.make_context(name, arguments).params


def test_every_variable_is_read_by_somebody():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "olivelike").rglob("*.py"))
    named = {name for service in ours().values() for name in service.get("environment", ())}
    named |= {name for one in of_kind("ConfigMap") for name in one["data"]}
    named |= {variable["name"] for name in pods() for variable in container(name).get("env", ())}
    named |= set(re.findall(r"\b(OLIVELIKE_\w+)", DOCKERFILE))
    assert {"OLIVELIKE_SHARED_CACHE", "OLIVELIKE_CACHE_DIR", "OLIVELIKE_API_KEY", "OLIVELIKE_CLUSTER_PLUGINS"} <= named
    if place_of("EXECUTORS", "tasks") is None:  # Without the extra that reads it.
        named.remove("OLIVELIKE_CLUSTER_PLUGINS")
    assert {name for name in named - THEIRS if f'"{name}"' not in code} == set()


def test_extras_version_and_python_are_those_of_the_project():
    (extras,) = re.findall(r'extras="([\w,]+)"', DOCKERFILE)
    assert {"cluster", "s3", "serve"} <= set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    (version,) = re.findall(r"BASE=python:(3\.\d+)-", DOCKERFILE)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    assert f'image.version="{PROJECT["version"]}"' in DOCKERFILE


def test_the_image_finds_which_torch_the_project_takes():
    (prefix,) = re.findall(r'one\.startswith\("(\S+)"\)', DOCKERFILE)
    (found,) = [one for one in PROJECT["dependencies"] if one.startswith(prefix)]
    assert re.fullmatch(r"torch>=[\d.]+,<[\d.]+", found)


def test_what_the_image_copies_is_there_and_nothing_else_is_sent():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {path for line in lines for path in line.split()} == sent
    assert all((ROOT / path).exists() for path in sent)
    kept_out = (".git", ".venv", "models", "cache", "gallery", "tests", "deploy", ".env")
    assert not [name for name in kept_out if any(fnmatch.fnmatch(name, pattern) for pattern in sent)]


def test_images_are_pinned():
    found = {one["image"] for one in (*SERVICES.values(), *(container(name) for name in pods()))}
    assert {image for image in found if not image.startswith("chrislusf/")} == {IMAGE}
    assert re.fullmatch(r"chrislusf/seaweedfs:\d+\.\d+", SERVICES["objects"]["image"])
    assert re.search(r"^ARG BASE=\S+:\d+\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)


def test_the_services_with_cuda_are_all_of_ours():
    assert CUDA["services"].keys() == ours().keys()
    for one in CUDA["services"].values():
        assert one["image"] == f"{IMAGE}-cuda"
        assert one["build"]["args"] == {"VARIANT": "cuda"}
    assert "cuda)" in DOCKERFILE


def test_the_server_that_draws_alone_is_the_other_one_without_a_cluster():
    (alone,) = DRAW["services"].values()
    of_cluster = {name: one for name, one in SERVICES["server"].items() if name not in {"networks", "depends_on"}}
    command = [word for word in of_cluster["command"] if not word.startswith("--cluster=")]
    build = {**of_cluster["build"], "args": {"VARIANT": "draw"}}
    assert alone == {**of_cluster, "image": f"{IMAGE}-draw", "build": build, "command": command}
    assert DRAW["volumes"].keys() == {claim.partition(":")[0] for claim in alone["volumes"]}


def test_what_draws_is_installed_with_extras_of_its_own():
    (extras,) = re.findall(r"olivelike_runtime-\*\.whl\)\[([\w,]+)\]", DOCKERFILE)
    assert {"cpu", "serve"} <= set(extras.split(",")) <= {*RUNTIMES, *OPTIONS}
    assert set(re.findall(r"^      (\w+)\) \\$", DOCKERFILE, re.MULTILINE)) == {"cpu", "cuda", "draw"}


def test_nobody_is_root_or_writes_outside_of_volumes():
    (user,) = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)
    assert f"useradd --uid {user} " in DOCKERFILE
    for service in ours().values():
        assert service["read_only"]
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        assert "user" not in service
    for name, pod in pods().items():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == int(user)
        assert not pod["automountServiceAccountToken"]
        assert container(name)["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container(name)["resources"].keys() == {"requests", "limits"}


GIGA = 1 << 30
UNITS = {"m": 1 << 20, "g": GIGA, "Mi": 1 << 20, "Gi": GIGA}


def in_bytes(text):
    """Return what a size means where nothing else is set in `deploy/.env`."""
    number, unit = re.fullmatch(r"(?:\$\{\w+:-)?(\d+)(\w+?)\}?", text).groups()
    return int(number) * UNITS[unit]


def test_nothing_takes_all_memory_all_processors_or_the_whole_disk():
    for name, service in SERVICES.items():
        assert {"mem_limit", "cpus", "pids_limit", "logging"} <= service.keys(), name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    for name, service in ours().items():
        (temporary,) = service["tmpfs"]
        place, size = temporary.split(":size=")
        assert place == "/tmp"
        assert in_bytes(size) <= in_bytes(service["mem_limit"]) / 2, f"{name}: what lies in /tmp counts as memory"
    for name, pod in pods().items():
        assert container(name)["resources"]["limits"].keys() == {"cpu", "memory"}
        assert all("sizeLimit" in one["emptyDir"] for one in pod["volumes"] if "emptyDir" in one), name


def test_only_a_run_has_the_token_of_a_hub_and_may_do_without():
    assert [name for name, one in SERVICES.items() if "HF_TOKEN" in one.get("environment", ())] == ["run"]
    having = {name: one for name in pods() for one in container(name).get("env", ()) if one["name"] == "HF_TOKEN"}
    assert having.keys() == {"run"}
    assert having["run"]["valueFrom"]["secretKeyRef"]["optional"]
    assert SERVICES["run"]["environment"]["HF_TOKEN"] == "${HF_TOKEN:-}"


def test_the_manifests_can_be_applied_and_a_run_created_as_often_as_one_likes():
    """The template of a Job can't be changed; what is applied has none, and each run gets a name of its own."""
    assert "Job" not in {one["kind"] for one in APPLIED}
    assert all("name" in one["metadata"] for one in APPLIED)
    (job,) = CREATED
    assert job["kind"] == "Job"
    assert "name" not in job["metadata"]
    assert job["metadata"]["generateName"].endswith("-")
    assert job["spec"]["ttlSecondsAfterFinished"] > 0
    # `docker compose run` makes a new container each time, which `--rm` removes.
    assert SERVICES["run"]["restart"] == "no"
    assert "container_name" not in SERVICES["run"]
    guide = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    assert "kubectl create -f deploy/kubernetes-run.yaml" in guide or "kubernetes-run.yaml | kubectl create" in guide
    assert all("--rm" in line for line in guide.splitlines() if "compose.yaml run" in line)


def test_each_place_that_a_command_names_is_a_volume():
    """A root that can't be written has no other."""
    for name, service in ours().items():
        mounted = [claim.split(":")[1] for claim in service.get("volumes", ())]
        mounted += [place.partition(":")[0] for place in service["tmpfs"]]
        assert [path for path in _paths(service_command(name)) if not _is_in(path, mounted)] == [], name
    for name in pods():
        mounted = [mount["mountPath"] for mount in container(name)["volumeMounts"]]
        assert [path for path in _paths(container_command(name)) if not _is_in(path, mounted)] == [], name
        assert "/tmp" in mounted


def _paths(words):
    return [path for word in words for path in re.findall(r"^(?:--[\w-]+=)?(/\w[\w/]*)$", word)]


def _is_in(path, folders):
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def test_no_secret_lies_in_the_recipes():
    for path in DEPLOY.iterdir():
        text = path.read_text(encoding="utf-8")
        for name in SECRETS:
            values = re.findall(rf"{name}: *([^\s,)]+)", text)
            assert all(value.startswith((f"${{{name}:?", f"${{{name}:-}}")) for value in values), (path, values)
    assert of_kind("Secret") == []
    assert "/deploy/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_only_who_gives_to_the_store_can_write_to_it():
    services = {name for name, one in SERVICES.items() if "AWS_SECRET_ACCESS_KEY" in one.get("environment", ())}
    assert services == {"objects", "bucket", "run"}
    having = {
        name for name in pods() if {"secretRef": {"name": "olivelike-objects"}} in container(name).get("envFrom", ())
    }
    assert having == {"run"}
    assert {name for name, one in SERVICES.items() if "objects" in one["networks"]} == services


def test_ports_of_the_compose_file_fit_together():
    assert [(name, one["ports"]) for name, one in SERVICES.items() if "ports" in one] == [
        ("server", ["127.0.0.1:7860:7860"])
    ]
    assert "EXPOSE 7860" in DOCKERFILE
    assert "--port" not in service_command("server")
    scheduler, worker = service_command("scheduler"), service_command("worker")
    assert scheduler[scheduler.index("--port") + 1] == "8786"
    asked = {name: re.findall(r":(\d+)/", one["healthcheck"]["test"][-1]) for name, one in SERVICES.items()
             if "test" in one.get("healthcheck", ())}  # fmt: skip
    assert asked == {"objects": ["8333"], "scheduler": ["8787"], "worker": ["8788"]}
    assert ":8787" in scheduler
    assert "--dashboard-address=:8788" in worker
    assert SERVICES["run"]["environment"]["AWS_ENDPOINT_URL"] == "http://objects:8333"
    bucket = re.findall(r"makedirs\('(\w+)'", service_command("bucket")[-1])
    assert re.findall(r"^s3://(\w+)/", SERVICES["run"]["environment"]["OLIVELIKE_SHARED_CACHE"]) == bucket


def test_services_are_found_by_the_names_that_are_used():
    hosts = [re.findall(r"tcp://([\w-]+):8786", " ".join(service_command(name))) for name in ours() if name != "bucket"]
    assert {host for found in hosts for host in found} == {"scheduler"}
    (cluster,) = of_kind("DaskCluster")
    called = {host for name in pods() for host in re.findall(r"tcp://([\w-]+):8786", " ".join(container_command(name)))}
    assert called == {f"{cluster['metadata']['name']}-scheduler"}
    (service,) = of_kind("Service")
    assert f"--allow-host={service['metadata']['name']}" in container("server")["args"]
    assert "--allow-host=server" in service_command("server")


def test_volumes_networks_and_dependencies_of_the_compose_file_are_declared():
    claims = {claim.partition(":")[0] for one in SERVICES.values() for claim in one.get("volumes", ())}
    assert claims - {"../workflows"} == COMPOSE["volumes"].keys()
    assert {name for one in SERVICES.values() for name in one["networks"]} == COMPOSE["networks"].keys()
    for name, one in SERVICES.items():
        for other, how in one.get("depends_on", {}).items():
            healthy = how["condition"] == "service_healthy"
            assert not healthy or "test" in SERVICES[other].get("healthcheck", ()), (name, other)
    assert {name for name, one in SERVICES.items() if "profiles" in one} == {"run"}
    assert SERVICES["worker"]["deploy"] == {"replicas": 2}


def test_selectors_ports_and_volumes_of_the_manifests_fit_together():
    (deployment,), (service,), (cluster,) = of_kind("Deployment"), of_kind("Service"), of_kind("DaskCluster")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {
        name: {port["name"]: port["containerPort"] for port in container(name).get("ports", ())} for name in pods()
    }
    assert ports == {
        "scheduler": {"tcp-comm": 8786, "http-dashboard": 8787},
        "worker": {"http-dashboard": 8788},
        "run": {},
        "server": {"http": 7860},
    }
    for one in (*service["spec"]["ports"], *cluster["spec"]["scheduler"]["service"]["ports"]):
        assert {**ports["server"], **ports["scheduler"]}[one["targetPort"]] == one["port"]
    assert cluster["spec"]["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == cluster["metadata"]["name"]
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods().values() for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    }  # fmt: skip
    assert used == {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")}
    for name, pod in pods().items():
        assert {one["name"] for one in container(name)["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_probes_ask_for_routes_that_are_there_and_need_no_key():
    from olivelike.serve.api import guards, health

    routes = {route.path for route in health.router.routes}
    asked = {
        container("server")[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked <= routes & guards._FREE
    (path,) = re.findall(r"127\.0\.0\.1:7860(/\w+)", DOCKERFILE)
    assert path in asked
    for name in ("scheduler", "worker"):
        for probe in ("readinessProbe", "livenessProbe"):
            assert container(name)[probe]["httpGet"] == {"port": "http-dashboard", "path": "/health"}


def test_a_job_is_not_tried_again_for_what_its_user_must_mend():
    from olivelike.errors import UsageError

    (job,) = of_kind("Job")
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["values"] == [UsageError.exit_code]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_whoever_names_an_image_of_their_own_changes_nothing_else():
    """The guide has a command that puts a registry before the image's name."""
    assert sum(text.count(IMAGE) for text in KUBERNETES) == len(pods())
    for text, manifests in zip(KUBERNETES, (APPLIED, CREATED), strict=True):
        changed = list(yaml.safe_load_all(text.replace(IMAGE, f"registry.example.com/{IMAGE}")))
        assert len(changed) == len(manifests)
    assert instruction("ENTRYPOINT")[:2] == INIT
