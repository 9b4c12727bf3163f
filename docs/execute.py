"""Run the notebooks for the site and for their committed outputs: `make docs`, `make notebooks`."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import html
import io
import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbclient import NotebookClient
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyter_cache.base import JupyterCacheAbstract

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOURCES = (
    ROOT / "optsched",
    ROOT / "papers" / "optsched_papers",
    ROOT / "serving" / "optsched_serving",
)
#: What notebooks have in their code that need a distribution of its own.
_SIGNS = {"optsched_papers": ("optsched_papers",), "optsched_serving": ('\\"vllm', "capacity(")}
KEPT = ROOT / "build" / "notebooks"
TIMEOUT = 600  # seconds for a cell

_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?[%x]?")
_HEAD = re.compile(r"<thead>(.*?)</thead>", flags=re.DOTALL)
_CELL = re.compile(r"<th[^>]*>(.*?)</th>", flags=re.DOTALL)
_GAP = re.compile(r" {2,}")


def stamp(sources: Iterable[Path] = SOURCES) -> str:
    """Name what outputs depend on beside a notebook: our sources, and all that is installed."""
    found = hashlib.sha256(sys.version.encode())
    for folder in sources:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(folder)} ".encode() + path.read_bytes())
    installed = {f"{each.name} {each.version}" for each in metadata.distributions()}
    found.update("\n".join(sorted(installed)).encode())
    return found.hexdigest()[:16]


def runnable() -> list[Path]:
    """Return the notebooks for which everything is installed."""
    absent = [_SIGNS[package] for package in _SIGNS if find_spec(package) is None]
    signs = tuple(chain.from_iterable(absent))
    return [
        path
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
        if not any(sign in path.read_text(encoding="utf-8") for sign in signs)
    ]


def run(notebook: nbformat.NotebookNode, **environment: str) -> float:
    """Run a notebook in a kernel and a folder of its own, and return the seconds it took."""
    began = time.monotonic()
    # The synthetic data is what everybody has; tests run with real data.
    inherited = {key: value for key, value in os.environ.items() if key != "OPTSCHED_DATA"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # it warns of its own sockets
        )
        asyncio.run(client.async_execute(env=inherited | environment))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(_lasting(cell.outputs))
    return time.monotonic() - began


def _lasting(outputs: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Yield what is the same on any machine: no bars gone by, and what is printed in one piece."""
    printed = None
    for output in outputs:
        if output.get("name") == "stderr":  # that kernels are compiled
            continue
        if output.output_type == "stream" and printed is not None:
            printed.text += output.text
        elif any(output.get("data", {"": "-"}).values()):
            printed = output if output.output_type == "stream" else None
            if "image/png" in (data := output.get("data", {})):
                data["image/png"] = _smaller(data["image/png"])
            yield output


def _smaller(png: str) -> str:
    """Draw a picture, as base64, in few colours, which takes a third of the room."""
    drawn = io.BytesIO()
    full = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    palette = full.quantize(128, Image.Quantize.FASTOCTREE)
    palette.save(drawn, "PNG", optimize=True)
    return base64.b64encode(drawn.getvalue()).decode()


def run_all(paths: list[Path], cache: JupyterCacheAbstract, jobs: int | None = None) -> list[str]:
    """Run those whose outputs are not known, several at once, and return what went wrong."""
    failed = []
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as threads:
        running = {}
        for path in reversed(paths):  # the last one takes longest
            notebook = nbformat.read(path, as_version=4)
            try:
                cache.match_cache_notebook(notebook)
            except KeyError:
                running[threads.submit(run, notebook)] = path, notebook
        for done in as_completed(running):
            path, notebook = running[done]
            if error := done.exception():
                failed.append(f"{path.name} fails: {error}")
                continue
            print(f"{path.name} took {done.result():.0f} s", flush=True)
            data = {"execution_seconds": done.result()}
            cache.cache_notebook_bundle(
                CacheBundleIn(notebook, str(path), data=data), check_validity=False, overwrite=True
            )
    return failed


def columns(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, ...]]:
    """Yield the heads of all tables that a notebook shows: lines of names above one of numbers."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            if heads := _HEAD.findall(shown.get("text/html", "")):
                yield from (tuple(map(html.unescape, _CELL.findall(head))) for head in heads)
                continue
            lines = [_GAP.split(line.strip()) for line in shown.get("text/plain", "").splitlines()]
            lines = [line for line in lines if not set("".join(line)) <= set("─")]
            for head, *below in zip(lines, lines[1:], [*lines[2:], []], strict=False):
                numbers = [cell for line in below for cell in line if _NUMBER.fullmatch(cell)]
                if numbers and len(head) > 1 and not any(map(_NUMBER.fullmatch, head)):
                    yield tuple(head)


def compare(path: Path, known: nbformat.NotebookNode, now: nbformat.NotebookNode) -> Iterator[str]:
    """Yield where the tables of the committed outputs have other columns than those of now."""
    before, after = list(columns(known)), list(columns(now))
    for old, new in zip(before, after, strict=False):
        if old != new:
            yield f"{path.name} shows a table of {new}, where {old} is committed"
            return
    if len(before) != len(after):
        yield f"{path.name} shows {len(after)} tables, where {len(before)} are committed"


def main(write: bool) -> None:
    """Run what must be run; then write the outputs, or compare the columns of their tables."""
    folder = KEPT / stamp()
    for old in KEPT.glob("*"):
        if old != folder:
            shutil.rmtree(old)
    cache = get_cache(folder)
    paths = runnable()
    wrong = run_all(paths, cache)
    if not wrong:
        for path in paths:
            known = nbformat.read(path, as_version=4)
            _, now = cache.merge_match_into_notebook(copy.deepcopy(known))
            wrong += [] if write else compare(path, known, now)
            if write and now != known:
                nbformat.write(now, path)
                print(f"{path.name} has other outputs")
        wrong += ["run `make notebooks`, and look at what it changes"] if wrong else []
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    try:
        main(write="--write" in sys.argv[1:])
    except KeyboardInterrupt:
        os._exit(130)  # threads wait for their kernels, which end with this process
