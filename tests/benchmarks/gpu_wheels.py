"""Wheels of `make gpu-day` for a machine without a network whose Python has torch, as an image or a site's module has.

    python -m tests.benchmarks.gpu_wheels --output DIR

On that machine: `python3 -m pip install --no-index --no-deps DIR/*.whl`. The wheels are those of pyproject.toml's
dependencies, its extras and test plugins below, and of what these need. PRESENT is what the machine has. Every
requirement is then looked up among the wheels and PRESENT, so that nothing is missing there, and the total is printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PYTHON = "3.12"
PLATFORMS = tuple(f"manylinux{version}_x86_64" for version in ("_2_28", "_2_27", "_2_24", "_2_17", "2014"))
LIMIT_BYTES = 64 * 2**20
EXTRAS = ("train", "liger", "float8", "deepspeed")
TEST_PLUGINS = {"pytest", "pytest-randomly", "pytest-timeout", "pytest-xdist", "hypothesis"}
# On the machine, with their own dependencies.
PRESENT = {
    "torch", "triton", "numpy", "pandas", "scipy", "transformers", "peft", "accelerate", "pillow",
    # of deepspeed
    "einops", "msgpack", "ninja", "py-cpuinfo",
    # of torch
    "filelock", "fsspec", "jinja2", "markupsafe", "networkx", "setuptools", "sympy", "typing-extensions",
    # of transformers
    "huggingface-hub", "packaging", "psutil", "pytorch-lightning", "pyyaml", "requests", "safetensors",
    "tokenizers", "tqdm",
}  # fmt: skip
# Only the report's page needs it.
LEFT_OUT = {"plotly"}
# What the wheels need besides, until nothing is missing.
FURTHER = {
    "annotated-types", "antlr4-python3-runtime", "attrs", "cloudpickle", "docstring-parser", "execnet", "hjson",
    "importlib-resources", "iniconfig", "jsonargparse", "lightning-utilities", "markdown-it-py", "mdurl", "narwhals",
    "pluggy", "pydantic", "pydantic-core", "pygments", "sortedcontainers", "torchmetrics", "typeshed-client",
    "typing-inspection",
}  # fmt: skip
# Published as source only.
SOURCES = {
    "antlr4-python3-runtime": "antlr4-python3-runtime==4.9.3",
    "deepspeed": "deepspeed>=0.19.8,<0.20",
}


def wanted() -> list[str]:
    """Return the requirements to carry, with the versions of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    given = [*project["dependencies"], *(each for extra in EXTRAS for each in optional[extra]), *sorted(FURTHER)]
    given += [each for each in optional["dev"] if canonicalize_name(Requirement(each).name) in TEST_PLUGINS]
    left = PRESENT | LEFT_OUT | SOURCES.keys()
    return [each for each in given if canonicalize_name(Requirement(each).name) not in left]


def fetch(output: Path) -> None:
    """Download the wheels for the other machine, and build those that are published as source."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    other = [f"--python-version={PYTHON}", *platforms, "--only-binary=:all:"]
    subprocess.run([*pip, "download", "--quiet", "--no-deps", *other, f"--dest={output}", *wanted()], check=True)
    wheel = [*pip, "wheel", "--quiet", "--no-deps", f"--wheel-dir={output}"]
    subprocess.run([*wheel, *SOURCES.values()], check=True)


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def missing(packages: Iterable[Message]) -> list[str]:
    """Return the requirements of packages that neither they nor the machine have, from their metadata."""
    found, asked = set(PRESENT | LEFT_OUT), []
    for package in packages:
        name = canonicalize_name(package["Name"])
        found.add(name)
        asked += [(name, Requirement(text)) for text in package.get_all("Requires-Dist", [])]
    there = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}

    def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
        marker = requirement.marker
        return marker is None or any(marker.evaluate(there | {"extra": extra}) for extra in ("", *extras))

    # Those that a requirement names, as jsonargparse[signatures].
    extras: defaultdict[str, set[str]] = defaultdict(set)
    for _, requirement in asked:
        if applies(requirement, ()):
            extras[canonicalize_name(requirement.name)] |= requirement.extras
    return [
        f"{requirement}, for {package}"
        for package, requirement in asked
        if canonicalize_name(requirement.name) not in found and applies(requirement, extras[package])
    ]


def main() -> None:
    """Fetch the wheels, check them, and print their sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of the wheels")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    fetch(output)
    wheels = sorted(output.glob("*.whl"))
    total_bytes = sum(wheel.stat().st_size for wheel in wheels)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:8.2f} MiB  {wheel.name}")
    print(f"{total_bytes / 2**20:8.2f} MiB in all, of {LIMIT_BYTES / 2**20:.0f} at most")
    if lacking := missing(map(metadata_of, wheels)):
        sys.exit("\n".join(["missing, to be added to FURTHER or PRESENT:", *lacking]))
    if total_bytes > LIMIT_BYTES:
        sys.exit("The wheels are larger than that: leave out what no stage needs.")


if __name__ == "__main__":
    main()
