"""What all tests share: components of the tiny checkpoint, each exported at most once per session."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import typing
from functools import cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # Before numpy and torch, and for children: workers run on all cores.

from tests.fixtures.forked_workers import ForkedWorkers
from tests.fixtures.made_folders import KEPT, WHOLE

SHELF = Path(__file__).parent / "fixtures" / "shelf"
"""Graphs of test networks, so that few tests wait for the exporter; `OLIVELIKE_FILL_SHELF=1 make test` adds to them."""
if WHOLE:
    from olivelike.testing import models

    os.environ[models.SHELF_VARIABLE] = str(SHELF)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # What a shell starts in the background hands it on to children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.set_threshold(2_000_000, 5, 5)  # Collections took a twentieth of the time: they walk graphs that are in use.
os.fsync = lambda _: None  # What tests write need not outlive a loss of power; children still wait for the disk.
if os.name == "posix" and Path("/dev/shm").is_dir():
    # Nor need it reach the disk: removing what lies there took longer than writing it. Containers have less than this.
    memory = os.statvfs("/dev/shm")
    if memory.f_bavail * memory.f_frsize > 8 << 30 and not memory.f_flag & os.ST_NOEXEC:
        tempfile.tempdir = os.environ["TMPDIR"] = os.environ.get("TMPDIR", "/dev/shm")
if sys.version_info < (3, 12):  # Which keeps what a protocol has; onnx_ir asks whether an object is one for each value.
    for name in ("_get_protocol_attrs", "_is_callable_members_only"):
        setattr(typing, name, cache(getattr(typing, name)))
# For formats that no schema of ours has, jsonschema compiles a grammar in a second where this is installed.
sys.modules.setdefault("rfc3987_syntax", None)
os.environ["OLIVELIKE_SHELF"] = ""  # That of whoever runs the tests knows things, too.

if os.environ.get("OLIVELIKE_FILL_SHELF"):
    from olivelike.graphs.shelf import BUILT_IN, Shelf, ShelfFolder
    from olivelike.graphs.shelf.filling import put_graph

    unfilled = models.traced_graph

    def traced_graph(architecture):
        graph = unfilled(architecture)
        if models.SHELF_VARIABLE in os.environ and Shelf([BUILT_IN]).graph(architecture) is None:
            put_graph(ShelfFolder(SHELF), architecture, graph.data, "tests")
        return graph

    models.traced_graph = traced_graph

TOGETHER = (
    "engine", "runtime", "cli", "serve", "sources", "extras/shared_store", "graphs/fusion", "extras/cluster",
    "extras/deploy", "extras/bench", "measure/contest", "measure/verify",
)  # fmt: skip
"""Folders whose tests share what is made once per session; the longest first, so that all workers end together."""

BESIDE = {
    "engine": (
        "graphs/export/test_build_network.py",
        "passes/test_convert.py",
        "testing/test_traced.py",
        "tools/test_make_shelf.py",
    ),
    "own code": (
        "test_dependencies.py",
        "test_layers.py",
        "test_platforms.py",
        "test_private_interfaces.py",
        "test_untrusted_reads.py",
    ),
}
"""Files that run in one process: what the exporter imports takes seconds in each, and so does parsing our own code."""


def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=1, help="number of processes that run the tests")


def pytest_configure(config):
    if config.option.workers > 1:
        config.pluginmanager.register(ForkedWorkers(config.option.workers, group_of))


def pytest_make_parametrize_id(val):
    """Name a case of a long text by its beginning: workers tell names with all that they tell of a test."""
    if not isinstance(val, str | bytes) or len(val) <= 200:
        return None
    begin = val[:40] if isinstance(val, str) else val[:40].decode("latin-1")
    return f"{begin.encode('unicode_escape').decode()} and {len(val) - 40} more"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Put together what one process runs, and the folders of `TOGETHER` first, in that order."""
    order = {group: place for place, group in enumerate(TOGETHER)}
    items.sort(key=lambda item: order.setdefault(group_of(item), len(order)))


def group_of(item):
    """Return whose tests run in one process: whole folders of `TOGETHER`, whole files of the others."""
    return folder_of(item.path) or item.path.name


@cache
def folder_of(path):
    """Return which of `TOGETHER` or `BESIDE` a file of tests runs with."""
    file = Path(os.path.relpath(path, Path(__file__).parent)).as_posix()
    beside = (name for name, files in BESIDE.items() if file in files)
    return next(beside, next((one for one in TOGETHER if file.startswith(f"{one}/")), None))


def pytest_collection_finish(session):
    """Let workers share folders that are made once, and spare the garbage collector what is loaded by now.

    It takes it a second to look at, and it stays to the end.
    """
    if session.config.option.workers > 1:
        os.environ.setdefault(KEPT, str(session.config._tmp_path_factory.getbasetemp() / "folders"))
    gc.freeze()


def pytest_runtest_teardown(nextitem, known=set()):  # noqa: B006
    """Spare it what tests have imported since, too: each pipeline that is closed makes it look at all."""
    if nextitem and len(sys.modules) > len(known) + 300:
        known.update(sys.modules)
        gc.collect()
        gc.freeze()


def pytest_sessionfinish():
    """Look for garbage once: pytest does so five times in the end, for errors of finalisers."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def allowed_plugins(tmp_path_factory):
    """Let workflows that tests write run their plugins, and leave the user's own record alone."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    if WHOLE:
        from olivelike.workflow.passes.allowed_plugins import AllowedPlugins

        AllowedPlugins().allow_folders([tmp_path_factory.getbasetemp().resolve()])
    yield
    os.environ.pop("XDG_STATE_HOME")
    if before is not None:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def sessions_run_in_one_thread():
    """Let ONNX Runtime compute in one thread where no number is said, and others wait without spinning.

    Spinning took as long again as what they compute, and twice as long to open a network.
    """
    import onnxruntime

    class SessionOptions(onnxruntime.SessionOptions):
        def __init__(self):
            super().__init__()
            self.intra_op_num_threads = 0
            self.add_session_config_entry("session.intra_op.allow_spinning", "0")

        def __setattr__(self, name, value):
            super().__setattr__(name, value or 1 if name == "intra_op_num_threads" else value)

    class InferenceSession(onnxruntime.InferenceSession):
        def __init__(self, model, sess_options=None, *more, **named):
            super().__init__(model, sess_options or SessionOptions(), *more, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(onnxruntime, "SessionOptions", SessionOptions)
        patched.setattr(onnxruntime, "InferenceSession", InferenceSession)
        yield


@pytest.fixture(scope="session", autouse=True)
def closed_networks_are_looked_for_among_what_is_young():
    """Spare each pipeline that closes a network a look at all that the tests have made: a tenth of a second."""
    from olivelike.runtime.pipeline import networks

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(networks, "gc", SimpleNamespace(collect=partial(gc.collect, 1)))
        yield


@pytest.fixture(scope="session", autouse=True)
def entry_points_read_once():
    """Read those of all distributions anew only where the import path has changed: each run asks for them."""
    import importlib.metadata

    unread, read = importlib.metadata.entry_points, {}

    def entry_points(**asked):
        folders = [Path(folder) for folder in sys.path]
        times = (folder.stat().st_mtime_ns if folder.is_dir() else None for folder in folders)
        key = (*folders, *times, *asked.items())
        if key not in read:
            read[key] = unread(**asked)
        return read[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(importlib.metadata, "entry_points", entry_points)
        yield


@pytest.fixture(scope="session", autouse=True)
def code_of_ours_digested_once():
    """Digest olivelike's own code once: no test changes it, and each run asks for what is behind each of its nodes."""
    if not WHOLE:
        yield
        return
    from olivelike.workflow.code import code_digest

    digested, known = code_digest._digested, {}

    @wraps(digested)
    def digested_once(modules, plugin, said, owner):
        if plugin is not None or any(name.partition(".")[0] != code_digest.ENGINE for name in modules):
            return digested(modules, plugin, said, owner)
        key = (*modules, frozenset(said), owner, *sys.path)
        if key not in known:
            known[key] = digested(modules, plugin, said, owner)
        return known[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(code_digest, "_digested", digested_once)
        yield


@pytest.fixture(scope="session")
def bucket_server():
    """An S3 server for whoever needs buckets.

    Each client anew would read what botocore knows of all services and whom the system trusts, and each request would
    make the server look through all that it could serve.
    """
    from aiobotocore.httpsession import AIOHTTPSession
    from botocore.loaders import JSONFileLoader, Loader
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    from tests.fixtures.faulty_bucket import FaultyBucket

    def once(method, key):
        known = {}

        @wraps(method)
        def told(*asked, **named):
            if (found := key(*asked, **named)) not in known:
                known[found] = method(*asked, **named)
            return known[found]

        return told

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(JSONFileLoader, "load_file", staticmethod(cache(JSONFileLoader().load_file)))
        for owner, name, key in (
            (Loader, "list_available_services", lambda _, type_name: type_name),
            (AIOHTTPSession, "_build_verify_context", lambda session: session._verify),
            (DomainDispatcherApplication, "get_backend_for_host", lambda _, host: host),
        ):
            patched.setattr(owner, name, once(getattr(owner, name), key))
        server = FaultyBucket()
        yield server
        server.close()


@pytest.fixture
def bucket(bucket_server, monkeypatch):
    """A new bucket, which the environment leads to; its proxy can be told to do its work badly."""
    bucket_server.renew()
    for name, value in bucket_server.environment().items():
        monkeypatch.setenv(name, value)
    return bucket_server


@pytest.fixture(scope="session")
def one_torch_thread():
    """Leave the other cores to the other processes of the suite."""
    if WHOLE:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(one_torch_thread):
    """Return a component of the tiny checkpoint, with its graph: `tiny("vae_decoder")`."""
    from olivelike.testing import tiny_model

    return partial(tiny_model, graph=True)
