"""Ctrl-C at random times: an answer or one line within a second, and nothing that goes on after it.

    python benchmarks/interrupts.py [COUNT] [SEED] [CALL or DOOR ...]

Each of COUNT cases (default 1,000) calls one of CALLS at a door: a process that has called before
(`warm`), a new one (`cold`), or the command line (`line`). Ctrl-C comes from 0 to 3 s after the
call begins, at the command line after Python itself has started, and to the whole process group, as
from a terminal. A case fails that ends a second later or more, in anything but an answer or
KeyboardInterrupt (at the command line: a last line and code 130), that prints anything else on
standard error, or whose threads or children are there a second after its end. Prints the failures,
then counts by call and door; the exit code is 1 where there is a failure.
"""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

LATEST, SOON = 3.0, 1.0  # seconds to Ctrl-C, and from there to the end
MARK = "INTERRUPTED_CASE"  # in the environment of all that a case starts
QUIET = ("optsched: compiling kernels", "optsched: interrupted")  # with which lines may begin
CONFIG = """
seeds = 20
[[instances]]
family = "chat-and-summaries"
n = [500, 5000]
[[policies]]
name = ["mc-sf", "area", "fcfs"]
"""
LONG = "family:chat-and-summaries,n=20000"
DIED = "FAILED: died"
DOORS = ["warm", "warm", "warm", "cold", "line", "line", "line"]
#: What is called, in words of the command line and as code.
CALLS = {
    "solve": [
        ("family:uniform,n=60 --time-limit 20", "solve(family('uniform', n=60), time_limit=20)"),
        ("family:uniform,n=30 --workers 3", "solve(family('uniform', n=30), workers=3)"),
        (
            "family:uniform,n=14 --method cp-sat --threads 2",
            "solve(family('uniform', n=14), method='cp-sat', params=SolveParams(threads=2))",
        ),
        (
            "family:uniform,n=14 --method highs",
            "solve(HindsightProgram(family('uniform', n=14)), method='highs')",
        ),
        (
            f"{LONG} --method search --time-limit 20",
            "solve(HindsightProgram(family('uniform', n=14)), params=SolveParams(in_child=True))",
        ),
        (
            "family:uniform,n=30 --objective makespan --time-limit 9",
            "solve(HindsightProgram(family('uniform', n=14)), method='cbc')",
        ),
    ],
    "sweep": [
        ("{config} --out {out} --jobs 1", "sweep({config!r}, {out!r}, jobs=1)"),
        ("{config} --out {out}", "sweep({config!r}, {out!r})"),
    ],
    "regret": [
        ("family:chat-and-summaries --seeds 9", "regret('family:chat-and-summaries', seeds=9)"),
        (
            "family:equal-prompts --horizons 1000,9000 --jobs 2",
            "regret(horizons=[1000, 9000], jobs=2)",
        ),
        ("family:equal-prompts --threshold --seeds 2", "regret(seeds=9, time_limit=5)"),
    ],
    "capacity": [
        (
            "family:chat-and-summaries,n=9000,load=9 --slo latency:p95<=900steps",
            "capacity(family('chat-and-summaries', n=9000, load=9), 'latency:p95<=900steps')",
        ),
        (
            "family:chat,n=3000,rate=30 --clock llama-2-70b-2xa100 --slo ttft:p90<=9s",
            "capacity(family('chat', n=3000, rate=30, seconds_per_step=1), 'ttft:p90<=9s', "
            "clock='llama-2-70b-2xa100')",
        ),
    ],
}


def soon() -> float:
    """Return a second: of a busy machine as many as there are processes to a core."""
    return SOON * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def living(mark: str) -> set[str]:
    """Return all processes that carry a mark and are there, but for this one's."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            cleans = b"resource_tracker" in (folder / "cmdline").read_bytes()  # as Python ends
            if marked and state != "Z" and not cleans:
                found.add(f"process {folder.name}")
    return found - {f"process {os.getpid()}"}


def left(things: object, among: object) -> set[object]:
    """Return what of the things is there after a second for which nobody asked before."""
    until = time.perf_counter() + soon()
    while (rest := things() - among) and time.perf_counter() < until:
        time.sleep(0.02)
    return rest


def serve() -> None:
    """Carry out calls of standard input in this process: code and a delay, each as a line."""
    import optsched

    names = {name: getattr(optsched, name) for name in optsched.__all__}
    for line in sys.stdin:
        code, after = json.loads(line)
        threads, children = set(threading.enumerate()), living(os.environ[MARK])
        begun, done, struck = threading.Event(), threading.Event(), []

        def strike(begun=begun, done=done, struck=struck, after=after) -> None:
            begun.wait()
            if not done.wait(after):
                struck.append(time.perf_counter())
                os.killpg(0, signal.SIGINT)

        thread = threading.Thread(target=strike)
        thread.start()
        how = "answer"
        try:
            begun.set()
            eval(code, names)  # noqa: S307 - our own
        except KeyboardInterrupt:
            how = "KeyboardInterrupt"
        except BaseException as error:
            how = f"FAILED: {type(error).__name__}: {error}"
        finally:
            ended = time.perf_counter()
            done.set()
            thread.join()
        seconds = ended - struck[0] if struck else None
        rest = set()
        if struck:
            rest = left(lambda: set(threading.enumerate()), threads)
            rest |= left(lambda: living(os.environ[MARK]), children)
        print(json.dumps([how, seconds, sorted(map(str, rest))]), flush=True)


class Server:
    """A process that carries out calls."""

    def __init__(self) -> None:
        self.mark = os.urandom(8).hex()
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as this process
        self.process = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            env={**os.environ, MARK: self.mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )

    def call(self, code: str, after: float) -> tuple[str, float | None, list[str], str]:
        """Interrupt a call; return how it ended, how late, what is left and what was printed."""
        self.process.stdin.write(json.dumps([code, after]) + "\n")
        self.process.stdin.flush()
        told = self.process.stdout.readline()
        how, seconds, rest = json.loads(told) if told else (DIED, None, [])
        self.errors.seek(0)
        said = self.errors.read()
        self.errors.truncate(0)
        return how, seconds, rest, said

    def end(self) -> list[str]:
        """End the process; return what is left of it."""
        self.process.stdin.close()
        self.process.wait()
        return sorted(left(lambda: living(self.mark), set()))


def by_command(words: list[str], after: float) -> tuple[str, float | None, list[str], str]:
    """Interrupt a command; return the same as of a call."""
    mark = os.urandom(8).hex()
    code = "from optsched.__main__ import main; print('there', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    process.stdout.readline()
    try:
        out, said = process.communicate(timeout=after)
        seconds = None
    except subprocess.TimeoutExpired:
        struck = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
        out, said = process.communicate()
        seconds = time.perf_counter() - struck
    ends = {0: "answer", 1: "answer", 130: "answer, 130" if out.strip() else "one line"}
    how = ends.get(process.returncode, f"FAILED: code {process.returncode}")
    return how, seconds, sorted(map(str, left(lambda: living(mark), set()))), said


def judged(how: str, seconds: float | None, rest: list[str], said: str) -> tuple[str, str]:
    """Return the kind of an end, and what is wrong with it."""
    lines = [line for line in said.splitlines() if line and not line.startswith(QUIET)]
    wrong = [how] * how.startswith("FAILED")
    if seconds is not None and seconds > soon():
        wrong.append(f"{seconds:.1f} s late")
    if rest:
        wrong.append(f"left: {', '.join(rest)}")
    if any(not line.startswith("optsched: ") for line in lines) or "Traceback" in said:
        wrong.append("said: " + " | ".join(lines[-40:]))
    return "before Ctrl-C" if seconds is None else how, "; ".join(wrong)


def attempt(
    call: str, door: str, words: str, code: str, after: float, servers: list[Server]
) -> tuple[str, tuple[str, float | None, list[str], str]]:
    """Try a case; return what was called, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "sweep.toml")
        config.write_text(CONFIG)
        places = {"config": str(config), "out": f"{folder}/out"}
        if door == "line":
            words = words.format(**places)
            return words, by_command([call, *words.split()], after)
        code = code.format(**places)
        server = servers.pop() if door == "warm" and servers else Server()
        ended = server.call(code, after)
        if door == "warm" and ended[0] != DIED:
            servers.append(server)
        else:
            ended[2].extend(server.end())
        return code, ended


def main(count: int, seed: int, *chosen: str) -> int:
    """Try so many cases, or until Ctrl-C, and print what came of them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    rng, counts, servers = random.Random(seed), collections.Counter(), []
    cases, failures, latest = 0, 0, collections.defaultdict(float)
    calls = [call for call in CALLS if call in chosen] or [*CALLS]
    doors = [door for door in DOORS if door in chosen] or DOORS
    with suppress(KeyboardInterrupt):
        for cases in range(count):
            call, door = calls[cases % len(calls)], rng.choice(doors)
            after, pair = rng.uniform(0, LATEST), rng.choice(CALLS[call])
            what, ended = attempt(call, door, *pair, after, servers)
            kind, wrong = judged(*ended)
            counts[call, door, kind] += 1
            latest[call, door] = max(latest[call, door], ended[1] or 0.0)
            if wrong:
                failures += 1
                load = os.getloadavg()[0]
                print(f"{cases}: {door} {call} {what} at {after:.3f} s, load {load:.1f}: {wrong}")
                sys.stdout.flush()
        cases = count
    rest = servers[0].end() if servers else []
    print(f"{cases} cases, seed {seed}, {failures} failed; left at the end: {rest or 'nothing'}")
    for call, door in sorted(latest):
        kinds = {kind: n for (c, d, kind), n in sorted(counts.items()) if (c, d) == (call, door)}
        print(f"{call:8} {door:4}: {kinds}, latest {latest[call, door]:.2f} s")
    return int(bool(failures or rest))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        numbers = [int(word) for word in sys.argv[1:3]]
        sys.exit(main(*numbers, *[1000, 1][len(numbers) :], *sys.argv[3:]))
