"""What `olivelike serve` adds to a picture, how soon its first preview comes, how it bears 100 clients, and its memory.

    olivelike run workflows/demo.yaml
    python benchmarks/serve.py models/demo

A picture of the server is timed from the request to the event that says that it is in its file; in turn with it, this
process draws the same one with `open_pipeline` and writes it. Clients and server are on one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import operator
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

ORDER = {"prompt": "a red circle", "steps": 50}
"""As many steps as `generate` takes by default."""


@contextmanager
def server(folder: Path, gallery: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "olivelike", "serve", str(folder), "--port", "0", "--gallery", str(gallery)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield process.stdout.readline().split()[0], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(10)
            errors.seek(0)  # What it says of being ended so is none.
            sys.stderr.writelines(line for line in errors if line != "error: interrupted\n")


def connected(url: str) -> socket.socket:
    """Return a connection to a server, which clients keep for several orders."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)))


def processor_seconds(process: psutil.Process) -> float:
    """Return what a process and its children have used."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


class Events:
    """The events of a server, as they come."""

    def __init__(self, url: str, previews: bool = False) -> None:
        self.ended: dict[str, float] = {}
        self.first: dict[tuple[str, str], float] = {}
        self.states: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self._came = threading.Condition()
        listening = threading.Event()
        threading.Thread(target=self._read, args=(url, previews, listening), daemon=True).start()
        listening.wait(10)

    def _read(self, url: str, previews: bool, listening: threading.Event) -> None:
        # A large client's own time is not the server's.
        with closing(http.client.HTTPConnection(url.removeprefix("http://"))) as connection:
            connection.request("GET", f"/api/events?previews={str(previews).lower()}")
            for line in connection.getresponse():
                now = time.perf_counter()
                listening.set()
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                with self._came:
                    self.first.setdefault((event["job"], event["type"]), now)
                    if event.get("preview"):
                        self.first.setdefault((event["job"], "preview"), now)
                    if event["type"] == "batch":
                        self.seconds[event["job"]] = event["seconds"]
                    if event["type"] in ("done", "failed", "cancelled"):
                        self.ended[event["job"]], self.states[event["job"]] = now, event["type"]
                        self._came.notify_all()

    def wait(self, *jobs: str, timeout: float = 600) -> None:
        """Wait until all jobs have ended."""
        with self._came:
            assert self._came.wait_for(lambda: all(job in self.ended for job in jobs), timeout), "a job was lost"


@dataclass(frozen=True)
class Pair:
    """A picture, drawn by this process and by the server, in milliseconds."""

    own: float
    own_drawing: float
    served: float
    served_drawing: float

    @property
    def around(self) -> float:
        """What the server adds before and behind the drawing."""
        return self.served - self.served_drawing - (self.own - self.own_drawing)

    @property
    def share(self) -> float:
        """What it adds in all, as a percentage."""
        return 100 * (self.served / self.own - 1)


def with_doubt(values: Sequence[float], unit: str) -> str:
    """Return the median, and between which two of the values that of endless ones is at 95 %, by the binomial law."""
    ordered = sorted(values)
    out = max(0, round((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2 - 1))
    return f"{statistics.median(ordered):.1f} {unit} ({ordered[out]:.1f} to {ordered[-1 - out]:.1f})"


def what_it_adds(folder: Path, pictures: int, threads: int) -> None:
    from olivelike.runtime.jobs.job_notes import picture_record
    from olivelike.runtime.pictures import PictureWriter
    from olivelike.runtime.pictures.picture_record import encode_picture
    from olivelike.runtime.pipeline.pipeline import open_pipeline
    from olivelike.runtime.pipeline.request import NO_PICTURES, Request
    from olivelike.runtime.sessions.session_settings import SessionSettings

    pipeline = open_pipeline(folder, SessionSettings(intra_threads=threads))
    options = ("--warm", "--threads", str(threads)) if threads else ("--warm",)
    print(f"medians of {pictures} pictures of {ORDER['steps']} steps, each by both in turn; 95 % in parentheses")
    print(f"{'':32}   whole  drawing  all but drawing  processor, mean")
    for variant, previews, saved in (("", False, True), (", not kept", False, False), (", previews", True, True)):
        with (
            tempfile.TemporaryDirectory() as scratch,
            server(folder, Path(scratch, "gallery"), *options) as (url, process),
            connected(url) as client,
        ):
            writer, events = PictureWriter(Path(scratch, "own")), Events(url, previews)

            def own(seed: int, writer: PictureWriter = writer, saved: bool = saved) -> tuple[float, float, float]:
                began, used = time.perf_counter(), time.process_time()
                request = pipeline.resolve_defaults(Request((ORDER["prompt"],), steps=ORDER["steps"], seed=seed))
                (batch,) = pipeline.batches(request)
                image, record = batch.pictures[0].image, picture_record(request, pipeline.folder, NO_PICTURES, ())
                if saved:
                    writer.save(image, record)
                else:  # What a client is sent then.
                    encode_picture(image, ".png", record)
                return time.perf_counter() - began, batch.seconds, time.process_time() - used

            def served(
                seed: int,
                events: Events = events,
                client: socket.socket = client,
                saved: bool = saved,
                head: str = f"Host: {url.removeprefix('http://')}\r\nContent-Type: application/json\r\n",
            ) -> tuple[float, float]:
                order = json.dumps({**ORDER, "seed": seed, "save": saved}).encode()
                sent = f"POST /api/jobs HTTP/1.1\r\n{head}Content-Length: {len(order)}\r\n\r\n".encode() + order
                began = time.perf_counter()
                client.sendall(sent)  # In one piece, as browsers send a short body.
                answer = http.client.HTTPResponse(client)
                answer.begin()
                job = json.loads(answer.read())["id"]
                events.wait(job)
                return events.first[job, "picture"] - began, events.seconds[job]

            for seed in range(5):
                own(seed), served(seed)
            before, pairs, here = processor_seconds(process), [], 0.0
            for seed in range(pictures):
                first = served(seed) if seed % 2 else None  # What comes first may be slower, or faster.
                whole, drawing, used = own(seed)
                pairs.append(Pair(*(1000 * one for one in (whole, drawing, *(first or served(seed))))))
                here += 1000 * used / pictures
            there = 1000 * (processor_seconds(process) - before) / pictures
        for name, whole, drawing, used in (
            ("one process", "own", "own_drawing", here),
            ("the server", "served", "served_drawing", there),
        ):
            wholes, drawings = ([getattr(pair, part) for pair in pairs] for part in (whole, drawing))
            rest = statistics.median(map(operator.sub, wholes, drawings))
            print(
                f"{name + variant:32}{statistics.median(wholes):8.1f} {statistics.median(drawings):8.1f} "
                f"{rest:16.1f} {used:16.1f} ms"
            )
        around = [pair.around for pair in pairs]
        print(
            f"it adds {with_doubt(around, 'ms')} around the drawing, "
            f"{statistics.quantiles(around, n=4)[0]:.1f} ms in the lower quartile; "
            f"{with_doubt([pair.served_drawing - pair.own_drawing for pair in pairs], 'ms')} while it draws; "
            f"{with_doubt([pair.share for pair in pairs], '%')} of the whole; "
            f"processor {there - here:.1f} ms, {there / here - 1:.1%}"
        )


def first_preview(folder: Path, jobs: int = 10) -> None:
    with tempfile.TemporaryDirectory() as scratch, server(folder, Path(scratch, "gallery"), "--warm") as (url, _):
        events, waits = Events(url, previews=True), []
        with httpx.Client(timeout=60) as client:
            for seed in range(jobs):
                job = client.post(f"{url}/api/jobs", json={**ORDER, "seed": seed}).json()["id"]
                events.wait(job)
                waits.append((events.first[job, "preview"] - events.first[job, "started"]) * 1000)
    print(f"first preview {statistics.median(waits):7.1f} ms after the job began, at most {max(waits):.1f} ms")


def many_clients(folder: Path, clients: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, server(folder, Path(scratch, "gallery"), "--warm") as (url, _):
        events, answers = Events(url), []
        began = time.perf_counter()

        def ask(number: int) -> None:
            with httpx.Client(timeout=120) as client:
                answers.append(client.post(f"{url}/api/jobs", json={**ORDER, "steps": 5, "seed": number}))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asked = time.perf_counter() - began
        placed = [answer.json() for answer in answers if answer.status_code == 202]
        told = sum(job["position"] is not None or job["state"] != "queued" for job in placed)
        events.wait(*(job["id"] for job in placed))
        states = [events.states[job["id"]] for job in placed]
        print(
            f"{clients} clients at once: {len(placed)} taken within {asked:.1f} s, {told} told their place, "
            f"{states.count('done')} done, after {time.perf_counter() - began:.1f} s"
        )


def memory(folder: Path, pictures: int) -> None:
    early = 0.0
    with tempfile.TemporaryDirectory() as scratch, server(folder, Path(scratch, "gallery"), "--warm") as (url, _):
        events = Events(url)
        with httpx.Client(timeout=60) as client:
            for number in range(1, pictures + 1):
                job = client.post(f"{url}/api/jobs", json={**ORDER, "steps": 2, "seed": number}).json()["id"]
                events.wait(job)
                if number in (50, 100, 500, pictures):
                    figures = client.get(f"{url}/metrics").text
                    found = re.findall(r"olivelike_memory_bytes\{(.*)\} ([\d.e+]+)", figures)
                    whole = sum(float(value) for _, value in found) / 1e6
                    early = early or whole
                    parts = ", ".join(f"{name} {float(value) / 1e6:.1f}" for name, value in found)
                    print(f"memory after {number} pictures: {whole:.1f} MB ({whole / early - 1:+.1%}; {parts})")


def before_drawing(folder: Path, orders: int) -> None:
    """Print the processor time of an order until it is sent to be drawn: in one thread, so that load hardly counts.

    The process that draws is this one: it plans what it is asked to, and takes each drawing for done.
    """
    from olivelike.serve import ServeSettings
    from olivelike.serve.application import create_app
    from olivelike.serve.drawing import painter
    from olivelike.serve.drawing.painting import Painting

    spent: list[float] = []
    began = [0.0]

    class Child:
        pid = None

        def __init__(self, _module: str, _log: Path, hear: Callable[[dict[str, object]], None], _end: object) -> None:
            self._painting: Painting | None = None
            self._hear = hear

        def send(self, message: dict[str, object]) -> None:
            message = json.loads(json.dumps(message))
            # An order that finds nothing to wait for is planned and drawn by one message.
            arguments = message.get("arguments", {})
            draw = message.get("draw") or arguments.pop("draw", None)
            if self._painting is None:
                self._painting = Painting(message, lambda answer: self._hear(json.loads(json.dumps(answer))))
            elif message["do"] != "draw":
                self._painting.handle(message)
            if draw is not None:
                spent.append(time.process_time() - began[0])
                self._hear({"answer": "done", "job": draw.get("job") or arguments["job"], "folders": []})

        def stop(self) -> None:
            pass

    async def ask(scratch: str) -> None:
        app = create_app(ServeSettings(folders=(folder,), gallery=Path(scratch)))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
        ):
            for seed in range(orders):
                request = client.build_request("POST", "/api/jobs", json={**ORDER, "seed": seed})
                began[0] = time.process_time()
                job = (await client.send(request)).raise_for_status().json()["id"]
                while (await client.get(f"/api/jobs/{job}")).json()["state"] != "done":
                    await asyncio.sleep(0.001)

    painter.LoopChild = Child
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(ask(scratch))
    taken = sorted(1000 * one for one in spent[orders // 10 :])
    print(
        "processor time of an order until it is drawn: "
        f"least {taken[0]:.2f} ms, median {statistics.median(taken):.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=int, default=50)
    parser.add_argument("--steps", type=int, default=ORDER["steps"], help="of a picture; memory is measured with 2")
    parser.add_argument("--threads", type=int, default=0, help="of ONNX Runtime, here and there; 0 takes all cores")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--memory-pictures", type=int, default=1000)
    parser.add_argument("--only", choices=["adds", "preview", "clients", "memory", "before"])
    options = parser.parse_args()
    ORDER["steps"] = options.steps
    print(f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB")
    parts = {
        "adds": lambda: what_it_adds(options.folder, options.pictures, options.threads),
        "preview": lambda: first_preview(options.folder),
        "clients": lambda: many_clients(options.folder, options.clients),
        "memory": lambda: memory(options.folder, options.memory_pictures),
        "before": lambda: before_drawing(options.folder, 20 * options.pictures),
    }
    for name, measure in parts.items():
        if options.only in (None, name):
            measure()


if __name__ == "__main__":
    main()
