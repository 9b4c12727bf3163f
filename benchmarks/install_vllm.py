"""Installs vLLM without a GPU, and optsched, into the environment that runs this.

What only GPUs need is left out, and so are lower bounds of versions: the newest comes anyway.
Its scheduler needs no more. Where that fails, one sentence says so, and the exit code is 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from tempfile import TemporaryDirectory

VLLM = "vllm==0.33.0"
TORCH = "torch==2.13.0"
FOR_GPUS = (
    "torch",  # and torchaudio, torchvision, torchcodec
    "nvidia",
    "flashinfer",
    "apache-tvm",
    "tilelang",
    "nvtx",
    "fastsafetensors",
    "instanttensor",
    "quack",
    "tokenspeed",
    "humming",
    "PyNv",
)
ROOT = Path(__file__).resolve().parents[1]


def needed(lines):
    """Return the requirements of vLLM that its scheduler may need, without lower bounds."""
    kept = (line for line in lines if "extra ==" not in line and not line.startswith(FOR_GPUS))
    return [re.sub(r",?>=[^,;]*", "", line) for line in kept]


def install(*arguments):
    """Install with pip, or end with one sentence."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (why[-1] if why else done.stderr.strip()[-200:]).removeprefix("ERROR: ")
        sys.exit(f"{VLLM} cannot be installed here, so nothing was validated: {reason}")


def main():
    """Install all of it."""
    install("--no-deps", VLLM)
    with TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(needed(requires("vllm"))), encoding="utf-8")
        install(TORCH, "--requirement", str(listed))
    install("--editable", str(ROOT))


if __name__ == "__main__":
    main()
