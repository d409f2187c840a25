"""Tests in several processes, forked from one that has collected them: `make test` runs `--forks 2`.

Each process takes one group of tests after another from a pipe, so what a folder's tests share is made once, and what
they import is imported once for all. Reports go back when a test has ended.
"""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import chain, groupby
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import pytest

TOGETHER = (
    "engine", "cli", "sources", "serve", "extras/shared_store", "extras/cluster", "extras/deploy",
    "runtime", "graphs/fusion", "extras/bench", "measure/contest", "measure/verify",
)  # fmt: skip
"""Folders whose tests share what is made once per process; the longest first, so that all processes end together."""

TRACING = (
    "graphs/export/test_build_network.py",
    "passes/test_convert.py",
    "testing/test_traced.py",
    "tools/test_make_shelf.py",
)
"""Files that trace networks as `engine` does: what the exporter imports takes seconds in each process."""

GROUP_BYTES = 2
"""A group's number in the pipe that all processes read: few enough bytes that nobody gets half of one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=1, help="processes that take groups of tests")


@cache
def group_of(path: Path) -> str:
    """Return the folder of `TOGETHER` that a file of tests runs with, else the file."""
    file = Path(os.path.relpath(path, Path(__file__).parent)).as_posix()
    return "engine" if file in TRACING else next((one for one in TOGETHER if file.startswith(f"{one}/")), file)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of each group together, folders of `TOGETHER` first."""
    order = {name: number for number, name in enumerate(TOGETHER)}
    for item in items:
        order.setdefault(group_of(item.path), len(order))
    items.sort(key=lambda item: order[group_of(item.path)])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Let processes run the tests, unless one is enough."""
    if session.config.option.forks < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    Forks(session).run()
    return True


class Forks:
    """All processes and what they have yet to do."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        numbers = groupby(range(len(session.items)), key=lambda number: group_of(session.items[number].path))
        self._groups = [list(group) for _, group in numbers]
        self._left, writing = os.pipe()
        os.write(writing, b"".join(number.to_bytes(GROUP_BYTES, "big") for number in range(len(self._groups))))
        os.close(writing)
        self._folder = session.config._tmp_path_factory.getbasetemp()
        self._started = 0
        self._forks: dict[Connection, Fork] = {}

    def run(self) -> None:
        """Return when all tests have ended."""
        reporter = self._session.config.pluginmanager.getplugin("terminalreporter")
        reporter.showfspath = False  # Files take turns.
        try:
            for _ in range(min(self._session.config.option.forks, len(self._groups))):
                self._fork()
            while self._forks:
                for connection in wait(list(self._forks)):
                    self._listen(connection)
                if self._session.shouldfail or self._session.shouldstop:
                    break
        finally:
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGINT)
            for fork in self._forks.values():
                os.waitpid(fork.pid, 0)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _fork(self, first: int | None = None) -> None:
        """Start a process, with what is left of a group from its test `first` on."""
        receiving, sending = Pipe(duplex=False)
        number, self._started = self._started, self._started + 1
        if not (pid := os.fork()):
            status = 1
            try:
                receiving.close()
                _work(self._session, self._numbers(first), self._folder / f"fork{number}", sending)
                status = 0
            finally:
                os._exit(status)  # Neither the parent's stack nor what waits for the parent's threads.
        sending.close()
        self._forks[receiving] = Fork(pid)

    def _numbers(self, first: int | None) -> Iterator[int]:
        """Return tests, each group's read from the pipe when all before it have begun."""
        begun = next((group[group.index(first) :] for group in self._groups if first in group), [])
        numbers = iter(lambda: os.read(self._left, GROUP_BYTES), b"")
        return chain(begun, chain.from_iterable(self._groups[int.from_bytes(number, "big")] for number in numbers))

    def _listen(self, connection: Connection) -> None:
        """Take one message of a process: a test that begins, what was seen of one, or that it is at its end."""
        fork, hook = self._forks[connection], self._session.config.hook
        try:
            told, *values = connection.recv()
        except EOFError:
            told, values = "lost", []
        if told == "begins":
            fork.running, fork.following = values
        elif told == "ended":
            fork.running = None
            for name, arguments in values[0]:
                if name == "pytest_runtest_logreport":
                    report = hook.pytest_report_from_serializable(config=self._session.config, data=arguments["report"])
                    arguments["report"] = report
                told_of = getattr(hook, name)
                told_of.call_historic(kwargs=arguments) if told_of.is_historic() else told_of(**arguments)
        else:
            del self._forks[connection]
            _, status = os.waitpid(fork.pid, 0)
            if told == "broken":
                raise RuntimeError(values[0])
            if told == "lost":
                self._tell_loss(fork, os.waitstatus_to_exitcode(status))

    def _tell_loss(self, fork: Fork, status: int) -> None:
        """Fail the test during which a process ended, and let another one do the rest."""
        if fork.running is None:
            raise RuntimeError(f"a process of the tests ended with status {status} between two tests")
        item, hook = self._session.items[fork.running], self._session.config.hook
        words = f"the process ended with status {status}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if fork.following is not None:
            self._fork(fork.following)


class Fork:
    """A process: the test that it runs and the one after that."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.running: int | None = None
        self.following: int | None = None


def _work(session: pytest.Session, numbers: Iterator[int], folder: Path, sending: Connection) -> None:
    """Run tests in a process of their own and tell of each."""
    config = session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # Its files are the parent's.
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.pluginmanager.unregister(name="terminalreporter")
    config._tmp_path_factory._given_basetemp, config._tmp_path_factory._basetemp = folder, None
    seen = Seen(config)
    config.pluginmanager.register(seen)
    try:
        number = next(numbers, None)
        while number is not None and not (session.shouldfail or session.shouldstop):
            following = next(numbers, None)
            sending.send(("begins", number, following))
            nextitem = None if following is None else session.items[following]
            config.hook.pytest_runtest_protocol(item=session.items[number], nextitem=nextitem)
            sending.send(("ended", seen.calls))
            seen.calls.clear()
            number = following
        session._setupstate.teardown_exact(None)
        sending.send(("done",))
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)
    except BaseException:
        sending.send(("broken", traceback.format_exc()))


class Seen:
    """Calls of hooks that the parent makes again."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.calls: list[tuple[str, dict[str, object]]] = []

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self.calls.append(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.calls.append(("pytest_runtest_logreport", {"report": data}))

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self.calls.append(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        words = UserWarning(f"{warning_message.category.__name__}: {warning_message.message}")
        message = warnings.WarningMessage(words, UserWarning, warning_message.filename, warning_message.lineno)
        told = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self.calls.append(("pytest_warning_recorded", told))
