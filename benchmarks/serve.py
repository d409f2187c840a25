"""What `olivelike serve` adds to a picture, how soon its first preview comes, how it bears 100 clients, and its memory.

    olivelike run workflows/demo.yaml
    python benchmarks/serve.py models/demo

A picture of the server is timed from the request to the event that says that it is in its file. In turn with it, the
server's process that draws makes the same one straight (`served_child.py`), as a program with `open_pipeline` does: so
both have the same luck with the machine. Routes that answer with the picture are compared with a bare server in that
process (`bare_server.py`): what it adds, any server does. Clients and server are on one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import httpx
import psutil
from served_child import ADDRESS, WAIT, Drawn, Straight

ORDER = {"prompt": "a green triangle", "steps": 50}
"""As many steps as `generate` takes by default; a picture that the demo's safety checker lets through."""


@contextmanager
def server(
    folder: Path,
    gallery: Path,
    *options: str,
    command: Sequence[str] = (sys.executable, "-m", "olivelike"),
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, psutil.Process]]:
    command = [*command, "serve", str(folder), "--port", "0", "--gallery", str(gallery)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
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
        self._waited: set[str] = set()
        self._came = threading.Condition()
        self._connection = connected(url)
        listening = threading.Event()
        threading.Thread(target=self._read, args=(url, previews, listening), daemon=True).start()
        listening.wait(10)

    def _read(self, url: str, previews: bool, listening: threading.Event) -> None:
        # A large client's own time is not the server's.
        head = f"Host: {url.removeprefix('http://')}\r\n\r\n"
        self._connection.sendall(f"GET /api/events?previews={str(previews).lower()} HTTP/1.1\r\n{head}".encode())
        with http.client.HTTPResponse(self._connection) as response:
            response.begin()
            for line in response:
                now = time.perf_counter()
                listening.set()
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                with self._came:
                    self.first.setdefault((event["job"], event["type"]), now)
                    if event.get("preview"):
                        self.first.setdefault((event["job"], "preview"), now)
                    if event["type"] in ("done", "failed", "cancelled"):
                        self.ended[event["job"]], self.states[event["job"]] = now, event["type"]
                        self._came.notify_all()

    def close(self) -> None:
        """Hear nothing more."""
        self._connection.shutdown(socket.SHUT_RDWR)

    def wait_for_next(self) -> str:
        """Wait until another job has ended, and return it."""
        with self._came:
            assert self._came.wait_for(lambda: self.ended.keys() - self._waited, 600), "a job was lost"
            (job,) = self.ended.keys() - self._waited
            self._waited.add(job)
        return job

    def wait(self, *jobs: str, timeout: float = 600) -> None:
        """Wait until all jobs have ended."""
        with self._came:
            assert self._came.wait_for(lambda: all(job in self.ended for job in jobs), timeout), "a job was lost"


@dataclass(frozen=True)
class Variant:
    """How a picture is asked for."""

    name: str
    side: int = 64
    route: str = "/api/jobs"
    saved: bool = True
    previews: bool = False
    share: float = 1.0
    """Of `--pictures`, that are drawn."""

    @property
    def is_answered(self) -> bool:
        """Whether the answer has the picture, so that its client listens to no events."""
        return self.route in (TXT2IMG, OPENAI)

    def order(self, seed: int) -> dict[str, object]:
        """Return the body of a request."""
        order = {**ORDER, "seed": seed, "width": self.side, "height": self.side}
        if self.route == OPENAI:
            size = f"{self.side}x{self.side}"
            return {"prompt": order["prompt"], "num_inference_steps": order["steps"], "seed": seed, "size": size}
        return {**order, "save_images": True} if self.route == TXT2IMG else {**order, "save": self.saved}


TXT2IMG, OPENAI = "/sdapi/v1/txt2img", "/v1/images/generations"
"""Routes whose answers have the picture."""
VARIANTS = (
    Variant("a picture"),
    Variant("not kept", saved=False),
    Variant("with previews", previews=True),
    Variant("of A1111's API", route=TXT2IMG),
    Variant("of OpenAI's API", route=OPENAI),
    Variant("large", side=256, share=0.2),
    Variant("large, with previews", side=256, previews=True, share=0.2),
)


@dataclass(frozen=True)
class Pair:
    """A picture, drawn straight, by the server and, if that answers with it, by a bare one, in milliseconds."""

    straight: float
    straight_drawing: float
    served: float
    served_drawing: float
    bare: float = math.nan
    bare_drawing: float = math.nan

    @property
    def around(self) -> float:
        """What the server adds before the drawing, and behind the packing."""
        return self.served - self.served_drawing - (self.straight - self.straight_drawing)

    @property
    def around_bare(self) -> float:
        """What a bare server adds there."""
        return self.bare - self.bare_drawing - (self.straight - self.straight_drawing)


def with_quartiles(values: Sequence[float], unit: str, digits: int = 1) -> str:
    """Return the median, and the quartiles in parentheses."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}) {unit}"


class Measured:
    """A server whose process that draws does so straight, too."""

    def __init__(self, folder: Path, url: str, process: psutil.Process, straight: Connection, scratch: Path) -> None:
        self._folder, self._process, self._straight, self._scratch = folder, process, straight, scratch
        self._url, self._client = url, connected(url)
        self._bare = connected(f"http://127.0.0.1:{straight.recv()}")

    def _asked(self, variant: Variant, seed: int) -> Straight:
        written = str(self._scratch) if variant.saved else None
        size = (variant.side, variant.side)
        return Straight(str(self._folder.absolute()), ORDER["prompt"], seed, ORDER["steps"], size, written)

    def draw_straight(self, variant: Variant, seed: int) -> Drawn:
        """Have the process draw a picture as one without a server around it does."""
        self._straight.send(tuple(self._asked(variant, seed)))
        drawn = Drawn(*self._straight.recv())
        time.sleep(0.01)  # The server hears that its process is free, which no picture waits for.
        return drawn

    def draw_bare(self, variant: Variant, seed: int) -> tuple[float, float]:
        """Return what `draw_served` does, of the bare server."""
        return self._drawn(self._bare, "/", self._asked(variant, seed)._asdict(), None)

    def draw_served(self, variant: Variant, seed: int, events: Events | None) -> tuple[float, float]:
        """Return the seconds until the client has the picture, and those of drawing and packing it."""
        return self._drawn(self._client, variant.route, variant.order(seed), events)

    def _drawn(
        self, client: socket.socket, route: str, value: Mapping[str, object], events: Events | None
    ) -> tuple[float, float]:
        order = json.dumps(value).encode()
        head = f"Host: 127.0.0.1:{client.getpeername()[1]}\r\nContent-Type: application/json\r\n"
        sent = f"POST {route} HTTP/1.1\r\n{head}Content-Length: {len(order)}\r\n\r\n".encode() + order
        began = time.perf_counter()
        client.sendall(sent)  # In one piece, as browsers send a short body.
        answer = http.client.HTTPResponse(client)
        answer.begin()
        body = answer.read()
        came = time.perf_counter()
        assert answer.status < 300, body
        if events is not None:
            came = events.first[events.wait_for_next(), "picture"]
        self._straight.send(None)
        drawing: float = self._straight.recv()
        time.sleep(0.01)  # As above.
        return came - began, drawing

    def compare(self, variant: Variant, pictures: int) -> None:
        """Print what a variant takes by each, each picture by all in turn."""
        with nullcontext() if variant.is_answered else closing(Events(self._url, variant.previews)) as events:
            for seed in range(max(1, pictures // 10)):
                self.draw_straight(variant, seed)
                self.draw_bare(variant, seed)
                self.draw_served(variant, seed, events)
            pairs, straight_used, used = [], 0.0, 0.0
            for seed in range(pictures):
                bare, first = (math.nan, math.nan), None
                if variant.is_answered:
                    bare = self.draw_bare(variant, seed)
                before = processor_seconds(self._process)
                if seed % 2:  # What comes first may be slower.
                    first = self.draw_served(variant, seed, events)
                straight = self.draw_straight(variant, seed)
                served = first or self.draw_served(variant, seed, events)
                used += processor_seconds(self._process) - before - straight.processor
                pairs.append(Pair(*(1000 * one for one in (straight.whole, straight.drawing, *served, *bare))))
                straight_used += straight.processor
        print(f"{variant.name}: {ORDER['steps']} steps of {variant.side}x{variant.side} pixels, {pictures} by each")
        for name, side in (("straight", "straight"), ("by the server", "served")):
            wholes, drawings = ([getattr(pair, part) for pair in pairs] for part in (side, f"{side}_drawing"))
            drawn = with_quartiles(drawings, "ms")
            print(f"  {name:22}{with_quartiles(wholes, 'ms')}, of that drawing and packing {drawn}")
        around = [pair.around for pair in pairs]
        shares = [100 * pair.around / pair.straight for pair in pairs]
        print(
            f"  added around that     {with_quartiles(around, 'ms')}, {with_quartiles(shares, '%', 2)} of the picture"
        )
        if variant.is_answered:
            bare_around = [pair.around_bare for pair in pairs]
            ratio = statistics.median(around) / statistics.median(bare_around)
            print(f"  by a bare server      {with_quartiles(bare_around, 'ms')}; ours is {ratio:.2f} times that")
        more = [pair.served_drawing - pair.straight_drawing for pair in pairs]
        print(f"  added within that     {with_quartiles(more, 'ms')}")
        wholes = [100 * (pair.served / pair.straight - 1) for pair in pairs]
        print(f"  added in all          {with_quartiles(wholes, '%', 2)}, processor {used / straight_used - 1:+.1%}")


def what_it_adds(folder: Path, pictures: int, threads: int, side: int, wait: float) -> None:
    options = ("--warm", "--threads", str(threads)) if threads else ("--warm",)
    print("medians, quartiles in parentheses; one process draws both, in turns")
    with tempfile.TemporaryDirectory() as scratch, Listener(str(Path(scratch, "straight"))) as listener:
        command = [sys.executable, str(Path(__file__).parent / "served_child.py")]
        environment = {**os.environ, ADDRESS: str(listener.address), **({WAIT: f"{wait} {side}"} if wait else {})}
        with (
            server(folder, Path(scratch, "gallery"), *options, command=command, environment=environment) as served,
            listener.accept() as straight,
        ):
            measured = Measured(folder, *served, straight, Path(scratch))
            for variant in VARIANTS:
                if not side:
                    measured.compare(variant, max(2, round(variant.share * pictures)))
                elif variant.share == 1:
                    measured.compare(replace(variant, side=side), pictures)


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
    parser.add_argument("--side", type=int, default=0, help="of a picture in pixels, for other folders")
    parser.add_argument(
        "--wait", type=float, default=0, help="draw as a fast GPU does: wait so many seconds for a picture of noise"
    )
    parser.add_argument("--threads", type=int, default=0, help="of ONNX Runtime, here and there; 0 takes all cores")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--memory-pictures", type=int, default=1000)
    parser.add_argument("--only", choices=["adds", "preview", "clients", "memory", "before"])
    options = parser.parse_args()
    ORDER["steps"] = options.steps
    if options.wait and not options.side:
        parser.error("--wait takes --side")
    print(f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB")
    parts = {
        "adds": lambda: what_it_adds(options.folder, options.pictures, options.threads, options.side, options.wait),
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
