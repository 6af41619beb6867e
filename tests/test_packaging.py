"""The lock, the Makefile and CI agree with pyproject.toml and name nothing of any one machine."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
LOCK = (ROOT / "requirements.lock").read_text()
# What only some builds of torch ask for; pip takes their versions from torch's own exact pins.
BUILD_SPECIFIC = re.compile(r"nvidia|cuda|triton")


def read_pins(lock: str) -> dict[str, Version]:
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    return {canonicalize_name(pin[1]): Version(pin[2]) for pin in pins if pin}


PINS = read_pins(LOCK)


@pytest.fixture(scope="module")
def locked_environment() -> None:
    """Skip unless this interpreter's environment was made by `make env` from the lock as it is now."""
    stamp = Path(sys.prefix, "requirements.lock")
    if not stamp.exists():
        pytest.skip("this environment was not made by `make env`")
    if stamp.read_text() != LOCK:
        pytest.skip("this environment was made from another requirements.lock: run `make env`")


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_lock_satisfies_pyproject(requirement: Requirement) -> None:
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_lock_has_no_malicious_lightning() -> None:
    bad = {Version("2.6.2"), Version("2.6.3")}
    for name in ("lightning", "pytorch-lightning"):
        assert PINS[name] not in bad
    (bound,) = [requirement.specifier for requirement in REQUIREMENTS if requirement.name == "lightning"]
    assert not any(bound.contains(version) for version in bad)


def test_lock_fits_every_build_of_torch() -> None:
    assert not [name for name in PINS if BUILD_SPECIFIC.match(name)]
    assert PROJECT["name"] not in PINS


@pytest.mark.usefixtures("locked_environment")
def test_installed_versions_are_the_locked_ones() -> None:
    # A local suffix such as torch's +cpu names the build, not the version.
    installed = {name: Version(Version(importlib.metadata.version(name)).public) for name in PINS}
    assert installed == PINS


@pytest.mark.usefixtures("locked_environment")
def test_everything_required_is_locked() -> None:
    """Walk the requirements of requirements: whatever the lock leaves out would float."""
    todo, seen = [(requirement, "") for requirement in REQUIREMENTS], set()
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not wanted or name == "setuptools" or BUILD_SPECIFIC.match(name):
            continue
        assert name in PINS, f"{name} is required but not in requirements.lock: run `make lock`"
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += [(Requirement(line), extra) for line in importlib.metadata.requires(name) or []]


@pytest.mark.parametrize("file", ["requirements.lock", "Makefile", ".ci/run"])
def test_nothing_of_one_machine(file: str) -> None:
    text = (ROOT / file).read_text().removeprefix("#!/usr/bin/env bash\n").replace("/dev/null", "")
    assert "://" not in text
    assert not re.search(r"index-url|find-links|\bpypi\b", text, re.IGNORECASE)
    # A slash that starts a word starts an absolute path; in awk and sed it is followed by ^ or a group.
    assert not re.findall(r"(?:^|[\s\"'=:])(/\w[^\s\"']*)", text, re.MULTILINE)


def test_make_help_lists_every_target() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    shown = subprocess.run([make, "-C", str(ROOT), "help"], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\S+) +\S", shown, re.MULTILINE)) == set(phony.split())
    assert set(re.findall(r"^([a-z-]+):", text, re.MULTILINE)) == set(phony.split())


def test_citation_names_this_version() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
