"""configs/kubernetes, configs/systemd, compose.yaml: valid by their schemas, and true of this service.

Commands exist with their options, settings and variables are real, ports, users, paths and times agree.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from jobs.cli import COMMANDS, cli
from jobs.cluster.machine import Machine
from jobs.serving.service import CLOSING_S, require_private
from retrieval.access.auth import Keys
from retrieval.base.config import ignored_variables, load_config
from retrieval.base.settings import Config, ServerSection
from retrieval.server.routes import ROUTES

ROOT = Path(__file__).parents[2]
KUBERNETES, SYSTEMD = ROOT / "configs" / "kubernetes", ROOT / "configs" / "systemd"
REPLICAS = ROOT / "configs" / "kubernetes-replicas"
CRONTAB = ROOT / "configs" / "schedules" / "crontab"
GUIDE = (ROOT / "docs" / "deploy.md").read_text()
COMPOSE_FILES = ("compose.yaml", "configs/compose-store.yaml")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
WITH_STORE: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "compose-store.yaml").read_text())
# The oldest version of Kubernetes that its makers still mended when this was written, and the newest.
VERSIONS = ["1.33", kubernetes_validate.latest_version()]
CRON_FIELD = re.compile(r"\*|[0-9]+(-[0-9]+)?(,[0-9]+)*|\*/[0-9]+")
OURS = {"/opt/nearline/.venv/bin/nearline", ".venv/bin/nearline", "nearline", "$NEARLINE"}
ENDS = {"&&", "||", ">", "|", ";"}
CONFIG = Config()


def objects() -> list[dict[str, Any]]:
    """Those that the kustomization names, in its order."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in objects() if one["kind"] == kind]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in objects():
        if one["kind"] == "StatefulSet":
            yield "statefulset", one["spec"]["template"]
        if one["kind"] == "CronJob":
            yield one["metadata"]["name"], one["spec"]["jobTemplate"]["spec"]["template"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods():
        for one in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            yield f"{name}, {one['name']}", one


def service() -> dict[str, Any]:
    (stateful,) = of_kind("StatefulSet")
    pod: dict[str, Any] = stateful["spec"]["template"]["spec"]
    return pod


def lines_of(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.+)$", unit.read_text(), re.MULTILINE)


def in_shell(script: str) -> Iterator[list[str]]:
    """The arguments of each `nearline` in a line of shell."""
    words = shlex.split(
        script.replace("$$", "$").replace(r"\%", "%").replace("%%", "%").replace("$(date +", "$(date+")
    )
    for place, word in enumerate(words):
        if word in OURS:
            end = next((at for at, one in enumerate(words) if at > place and one in ENDS), len(words))
            yield words[place + 1 : end]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command line of ours, with where it is."""
    for line in CRONTAB.read_text().splitlines():
        if "nearline  $NEARLINE" in line:
            for words in in_shell(line.partition("  nearline  ")[2]):
                yield "crontab", words
    for unit in sorted(SYSTEMD.glob("*.service")):
        for line in lines_of(unit, "ExecStart(?:Pre)?"):
            words = shlex.split(line)
            inner = in_shell(words[2]) if words[0] == "/bin/sh" else in_shell(line)
            for found in inner:
                yield unit.name, found
    for where, one in containers():
        given = one.get("command", ["nearline"]) + one.get("args", [])
        for words in in_shell(given[2]) if given[0] == "sh" else [given[1:]]:
            yield where, words
    for words in in_shell(COMPOSE["services"]["require-keys"]["command"][0]):
        yield "compose", words
    yield from shown()


def shown() -> Iterator[tuple[str, list[str]]]:
    """Those of docs/deploy.md, also inside of containers."""
    line = r"^ {4}(?:KEY=\$\()?((?:sudo|docker|kubectl|\.venv).+?)\)?$"
    for script in re.findall(line, GUIDE, re.MULTILINE):
        for words in in_shell(script):
            if words and words[0] in COMMANDS:
                yield "deploy.md", words


def parsed(words: list[str]) -> click.Context:
    command: click.Command | None = cli
    context = click.Context(cli)
    words = list(words)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    assert command is not None
    return command.make_context(str(command.name), words)


@pytest.mark.parametrize(
    ("where", "words"), [pytest.param(*one, id=f"{one[0]}, {one[1][0]}") for one in commands()]
)
def test_commands_are_understood(where: str, words: list[str]) -> None:
    """The command line parses: the subcommand exists, and so do its options."""
    assert parsed(words).params, where


def test_every_way_has_the_same_schedules() -> None:
    """Cron, systemd and Kubernetes evaluate, learn, back up and rebuild; two more commands start the service."""
    schedules = ["backup", "evaluate", "learn", "reindex"]
    found = list(commands())
    assert sorted(words[0] for where, words in found if where == "crontab") == schedules
    for group in ("service", ","):
        words = sorted(words[0] for where, words in found if group in where)
        assert words == sorted([*schedules, "keys", "serve"])


FIRST_STARTS = {
    "systemd": (lines_of(SYSTEMD / "nearline.service", "ExecStartPre")[0], "%S/nearline/data"),
    "compose": (COMPOSE["services"]["require-keys"]["command"][0], "/data"),
    "kubernetes": (service()["initContainers"][0]["command"][2], "/data/nearline"),
}


@pytest.mark.parametrize("way", FIRST_STARTS)
def test_the_first_start_requires_keys(way: str, tmp_path: Path) -> None:
    """It makes a key that nobody saw and that ends at once, one time only; what listens for others then needs one."""
    script, data = FIRST_STARTS[way]
    script = shlex.split(script)[2] if way == "systemd" else script
    assert script.startswith(f"test -f {data}/keys.json ||")
    script = script.replace("/opt/nearline/.venv/bin/nearline ", "nearline ")
    script = script.replace(data, str(tmp_path / "data")).replace(
        "nearline keys", f"{sys.executable} -m jobs.cli keys"
    )
    for _ in range(2):
        ended = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
        assert ended.stdout == ""
    keys = Keys(tmp_path / "data")
    (key,) = keys.all()
    assert key.scopes == ["metrics"]
    assert key.expires_ms is not None
    assert key.expires_ms - key.created_ms < 10_000
    require_private(Config(server=ServerSection(host="0.0.0.0")).server, keys=keys.required)


# --- Kubernetes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "one", [pytest.param(one, id=f"{one['kind']} {one['metadata']['name']}") for one in objects()]
)
def test_kubernetes_takes_it(one: dict[str, Any], version: str) -> None:
    """By the schema of the API, without unknown fields."""
    kubernetes_validate.validate(one, version, strict=True)


def replicas() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((REPLICAS / "replicas.yaml").read_text()))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_replicas(version: str) -> None:
    for one in replicas():
        kubernetes_validate.validate(one, version, strict=True)


def test_replicas_are_like_the_writer() -> None:
    """Their pods differ from the writer's in what a replica is: its arguments, the store, a volume that may go. The
    patches fit what they patch, and variables are those that the service has."""
    deployment, front = replicas()
    pod, writer = deployment["spec"]["template"]["spec"], service()
    (mine,), (theirs,) = pod["containers"], writer["containers"]
    assert [one for one in mine["args"] if one != "--replica"] == theirs["args"]
    assert parsed(mine["args"]).params["replica"] is True
    for key in ("ports", "readinessProbe", "livenessProbe", "lifecycle", "securityContext", "volumeMounts"):
        assert mine[key] == theirs[key], key
    for key in ("securityContext", "initContainers", "terminationGracePeriodSeconds"):
        assert pod[key] == writer[key], key
    patch, network = (yaml.safe_load((REPLICAS / one).read_text()) for one in ("writer.yaml", "network.yaml"))
    (patched,) = patch["spec"]["template"]["spec"]["containers"]
    shared = len(patched["env"])
    assert patched["env"] == mine["env"][:shared]
    assert not ignored_variables({one["name"]: "s3://a/b" for one in mine["env"]})
    own = {one["name"]: one["value"] for one in mine["env"][shared:] if "value" in one}
    settings = load_config(None, {**own, "NEARLINE_STORE_URL": "s3://a/b"})
    assert settings.server.hosts == [front["metadata"]["name"]]
    (policy,) = of_kind("NetworkPolicy")
    (address,) = of_kind("Service")
    port = address["spec"]["ports"][0]["port"]
    assert settings.store.writer == f"http://{address['metadata']['name']}:{port}"
    let_in = [
        one["podSelector"]["matchLabels"]
        for one in policy["spec"]["ingress"][0]["from"]
        if "podSelector" in one
    ]
    pods = deployment["spec"]["template"]["metadata"]["labels"]
    assert any(one.items() <= pods.items() for one in let_in)
    assert network["spec"]["egress"][:2] == policy["spec"]["egress"]
    selected = deployment["spec"]["selector"]["matchLabels"]
    assert front["spec"]["selector"] == selected
    assert selected.items() <= pods.items()
    whole = yaml.safe_load((REPLICAS / "kustomization.yaml").read_text())
    named = {*whole["resources"], *(one["path"] for one in whole["patches"]), "kustomization.yaml"}
    assert named == {"../kubernetes", *(path.name for path in REPLICAS.iterdir())}


def test_machines_of_a_cluster_are_pods_of_kuberay() -> None:
    """No schema of RayCluster is on a package index, so its pods are checked as those of a Deployment. Commands and
    variables are real, ports and the version of Ray agree, and the other pods are like the first one."""
    (cluster,) = yaml.safe_load_all((ROOT / "configs/kubernetes-ray/raycluster.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert group.keys() == {
        "groupName",
        "replicas",
        "minReplicas",
        "maxReplicas",
        "rayStartParams",
        "template",
    }
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "cluster"
    ]
    assert f"ray=={cluster['spec']['rayVersion']}" in extra
    contexts = []
    for template in (cluster["spec"]["headGroupSpec"]["template"], group["template"]):
        labels = template["metadata"]["labels"]
        spec = {"selector": {"matchLabels": labels}, "template": template}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}
        for version in VERSIONS:
            kubernetes_validate.validate(deployment, version, strict=True)
        (one,) = template["spec"]["containers"]
        context = parsed([*one["command"][1:], *one["args"]])
        assert context.params["foreground"] is True
        contexts.append(context.params)
        given = {entry["name"]: "x" for entry in one["env"]}
        assert not ignored_variables(given)
        assert one["securityContext"] == service()["containers"][0]["securityContext"]
    first, other = contexts
    assert first["address"] is None
    assert (
        other["address"]
        == f"{cluster['metadata']['name']}-head-svc:{Machine('', '', '', head=True).ray_port}"
    )
    assert first["folder"] == other["folder"]


def test_the_kustomization_is_whole(tmp_path: Path) -> None:
    """It names every file, its image is that of all containers, and kubectl, where it is installed, builds it."""
    whole = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert {*whole["resources"], "kustomization.yaml"} == {path.name for path in KUBERNETES.iterdir()}
    assert {one["image"] for _, one in containers()} == {image["name"] for image in whole["images"]}
    if kubectl := shutil.which("kubectl"):
        ended = subprocess.run(
            [kubectl, "kustomize", str(KUBERNETES)], check=True, capture_output=True, text=True
        )
        assert len(list(yaml.safe_load_all(ended.stdout))) == len(objects())


@pytest.mark.parametrize(("name", "pod"), [pytest.param(*one, id=one[0]) for one in pods()])
def test_pods_meet_the_restricted_standard(name: str, pod: dict[str, Any]) -> None:
    """Pod Security's "restricted", the user of the image, a read-only root file system, bounded memory."""
    spec = pod["spec"]
    as_user = spec["securityContext"]
    assert as_user["runAsNonRoot"] is True
    assert as_user["seccompProfile"] == {"type": "RuntimeDefault"}
    image_user = re.search(r"^USER (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert image_user
    assert f"{as_user['runAsUser']}:{as_user['runAsGroup']}" == image_user[1]
    assert as_user["fsGroup"] == as_user["runAsGroup"]
    assert spec["automountServiceAccountToken"] is False
    for one in [*spec.get("initContainers", []), *spec["containers"]]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["limits"]["memory"]
        assert "/tmp" in {mount["mountPath"] for mount in one["volumeMounts"]}, "child processes need one"
        declared = {volume["name"] for volume in spec["volumes"]} | {"data"}
        assert {mount["name"] for mount in one["volumeMounts"]} <= declared


def test_the_pod_has_time_to_stop() -> None:
    """What comes before SIGTERM, the grace of requests, and the end of the process fit into what Kubernetes gives."""
    (one,) = service()["containers"]
    command, seconds = one["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    needed = float(seconds) + CONFIG.server.shutdown_grace_s + CLOSING_S
    assert service()["terminationGracePeriodSeconds"] > needed


def test_the_pod_is_the_service() -> None:
    """Ports, probes, configuration and variables are those that the service has."""
    (one,) = service()["containers"]
    (port,) = one["ports"]
    assert port == {"name": "http", "containerPort": CONFIG.server.port}
    (front,) = of_kind("Service")
    assert front["spec"]["ports"] == [{"name": "http", "port": CONFIG.server.port, "targetPort": "http"}]
    public = {route.path for route in ROUTES if route.scope == "public"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert one[probe]["httpGet"]["path"] in public
        assert one[probe]["httpGet"]["port"] == "http"
    (config,) = of_kind("ConfigMap")
    mount = next(mount for mount in one["volumeMounts"] if mount["name"] == "config")
    params = parsed(one["args"]).params
    assert params["insecure"] is False
    assert str(params["config"]) in {f"{mount['mountPath']}/{name}" for name in config["data"]}


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    """nearline.toml of the ConfigMap loads, with every variable that containers are given."""
    (config,) = of_kind("ConfigMap")
    path = tmp_path / "nearline.toml"
    path.write_text(config["data"]["nearline.toml"])
    samples = {"NEARLINE_REDIS_URL": "redis://redis:6379/0", "NEARLINE_AUTH_GROUPS_SECRET": "x" * 32}
    for where, one in containers():
        given = {
            entry["name"]: entry.get("value", samples.get(entry["name"], "x")) for entry in one.get("env", [])
        }
        assert not ignored_variables(given), where
        client = {"NEARLINE_URL", "NEARLINE_KEY"}
        load_config(path, {name: value for name, value in given.items() if name not in client})
    names = {"nearline", "nearline.example.com"}
    assert set(load_config(path, {}).server.hosts) == names


def test_who_reaches_the_pod() -> None:
    """Selectors find the pod of the service alone; pods that ask it have the label that the policy wants."""
    (stateful,), (policy,), (budget,) = (
        of_kind("StatefulSet"),
        of_kind("NetworkPolicy"),
        of_kind("PodDisruptionBudget"),
    )
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("Service")[0]["spec"]["selector"] == labels
    allowed = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    for name, pod in pods():
        mine = pod["metadata"]["labels"]
        assert (mine == labels) == (name == "statefulset")
        asks = any(
            entry["name"] == "NEARLINE_URL"
            for one in pod["spec"]["containers"]
            for entry in one.get("env", [])
        )
        assert not asks or mine == allowed


def test_kubernetes_jobs_are_whole() -> None:
    """Each is a CronJob that never runs beside itself and restarts nothing by accident. A low recall is not measured
    again, an outage is."""
    jobs = of_kind("CronJob")
    for job in jobs:
        assert all(CRON_FIELD.fullmatch(time) for time in job["spec"]["schedule"].split())
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    evaluating = jobs[0]["spec"]["jobTemplate"]["spec"]
    (rule,) = evaluating["podFailurePolicy"]["rules"]
    assert evaluating["backoffLimit"] > 0
    assert rule == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}


def test_the_backup_reads_the_volume_of_the_pod() -> None:
    """It mounts the claim that the StatefulSet makes, at the same place, on the same node."""
    (stateful,) = of_kind("StatefulSet")
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    (job,) = (pod for name, pod in pods() if name == "nearline-backup")
    volume = next(one for one in job["spec"]["volumes"] if one["name"] == "data")
    name = f"{claim['metadata']['name']}-{stateful['metadata']['name']}-0"
    assert volume["persistentVolumeClaim"]["claimName"] == name
    (rule,) = job["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"] == stateful["spec"]["selector"]
    folders = {
        parsed(words).params["data"]
        for where, words in commands()
        if "," in where and parsed(words).params.get("data")
    }
    assert folders == {Path("/data/nearline")}


# --- compose --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_compose_takes_it(name: str) -> None:
    """By the schema of the Compose specification."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ended = subprocess.run([*command, str(ROOT / name)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_compose_is_the_service() -> None:
    """Its variables are settings, its time to stop is enough, and the keys are in the folder that it serves."""
    one = COMPOSE["services"]["nearline"]
    given = {name: value for name, value in one["environment"].items() if name.startswith("NEARLINE_")}
    assert not ignored_variables(given)
    given["NEARLINE_REDIS_URL"] = re.sub(r"\$\{[^}]*\}", "password", given["NEARLINE_REDIS_URL"])
    assert load_config(None, given).server.hosts == ["nearline"]
    assert float(one["stop_grace_period"].removesuffix("s")) > CONFIG.server.shutdown_grace_s + CLOSING_S
    assert one["volumes"] == COMPOSE["services"]["require-keys"]["volumes"] == ["data:/data"]


def test_compose_with_a_store_is_the_service() -> None:
    """What it adds to the environment are settings, and the replica is one that passes writes on."""
    services = WITH_STORE["services"]
    for name in ("nearline", "replica"):
        given = {
            one: value for one, value in services[name]["environment"].items() if one.startswith("NEARLINE_")
        }
        assert not ignored_variables(given)
        assert load_config(None, given).store.url == "s3://nearline/data"
    words = services["replica"]["command"]
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    assert command.make_context(words[0], words[1:]).params["replica"] is True


@pytest.mark.parametrize("name", [*COMPOSE["services"], *WITH_STORE["services"]])
def test_compose_services_are_confined(name: str) -> None:
    """Read-only root file systems, no capabilities, bounded memory, and ports for this machine alone."""
    one = COMPOSE["services"].get(name) or WITH_STORE["services"][name]
    assert (one["read_only"], one["cap_drop"]) == (True, ["ALL"])
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert one["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in one.get("ports", []))
    for kind in ("networks", "volumes", "secrets", "configs"):
        for entry in one.get(kind, []):
            name, _, _ = (entry["source"] if isinstance(entry, dict) else entry).partition(":")
            if name.startswith("./"):
                assert (ROOT / name).exists(), name
            else:
                assert name in {**COMPOSE, **WITH_STORE}[kind] or name in COMPOSE[kind]


def test_prometheus_finds_the_key() -> None:
    """compose.yaml puts it where prometheus.yml looks, which scrapes a name that Nearline answers to."""
    (scrape,) = yaml.safe_load((ROOT / "configs" / "prometheus" / "prometheus.yml").read_text())[
        "scrape_configs"
    ]
    (secret,) = COMPOSE["services"]["prometheus"]["secrets"]
    assert scrape["authorization"]["credentials_file"] == secret["target"]
    assert scrape["static_configs"] == [{"targets": [f"nearline:{CONFIG.server.port}"]}]


def test_compose_has_no_secrets() -> None:
    """Passwords come from .env, keys from secrets/, and git takes neither."""
    text = (ROOT / "compose.yaml").read_text()
    assert set(re.findall(r"PASSWORD: (.{2})|requirepass\n +- (.{2})", text)) <= {("${", ""), ("", "${")}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/secrets/"} <= set(ignored)
    assert all(one["file"].startswith("./secrets/") for one in COMPOSE["secrets"].values())


# --- systemd --------------------------------------------------------------------------------------------------------


def test_every_timer_has_its_service() -> None:
    """A timer starts the unit of its own name, at a time that systemd can read (where systemd is here to ask)."""
    for timer in SYSTEMD.glob("*.timer"):
        assert timer.with_suffix(".service").is_file()
        (times,) = lines_of(timer, "OnCalendar")
        if analyze := shutil.which("systemd-analyze"):
            subprocess.run([analyze, "calendar", times], check=True, capture_output=True)


def test_units_are_understood() -> None:
    """systemd knows every line; that nothing is installed in /opt here is not the units' fault."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    units = sorted(str(path) for path in SYSTEMD.iterdir())
    ended = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    faults = [line for line in ended.stderr.splitlines() if "is not executable: No such file" not in line]
    assert not [line for line in faults if "nearline" in line]


@pytest.mark.parametrize(("unit", "most"), [("nearline.service", 15), ("nearline-backup.service", 30)])
def test_units_are_confined(unit: str, most: int) -> None:
    """By systemd's own count of what a unit may do, from 0 (nothing) to 100."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    command = [analyze, "security", "--offline=true", f"--threshold={most}", str(SYSTEMD / unit)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in ended.stderr:
        pytest.skip("this systemd judges running units only")
    assert ended.returncode == 0, ended.stdout[-500:]


def test_the_unit_is_the_service() -> None:
    """It has time to stop, reloads by signal, and its variables are settings."""
    unit = SYSTEMD / "nearline.service"
    (seconds,) = lines_of(unit, "TimeoutStopSec")
    assert float(seconds) > CONFIG.server.shutdown_grace_s + CLOSING_S
    assert lines_of(unit, "ExecReload") == ["/bin/kill -HUP $MAINPID"]
    given = dict(line.split("=", 1) for line in lines_of(unit, "Environment"))
    assert not ignored_variables(given)
    assert load_config(None, given).models.folder == "/opt/nearline/models"


def test_paths_of_systemd_and_cron_agree() -> None:
    """Both find the service's data where it keeps them."""
    state = "/var/lib"
    folders = {
        str(parsed(words).params["data"]).replace("%S", state)
        for where, words in commands()
        if where == "crontab" or where.endswith(".service")
        if parsed(words).params.get("data")
    }
    assert folders == {f"{state}/nearline/data"}
    backups = {str(parsed(words).params["target"].parent) for _, words in commands() if words[0] == "backup"}
    assert backups == {"/var/backups/nearline", "/backups"}


# --- the guide ------------------------------------------------------------------------------------------------------


def test_the_guide_names_what_is_here() -> None:
    """Its commands make keys in every way, its paths are those of the units, and its proxy has the service's limits."""
    keys = [parsed(words).params["data"] for _, words in shown() if words[:2] == ["keys", "create"]]
    assert {str(folder) for folder in keys} == {"/var/lib/nearline/data", "/data", "/data/nearline"}
    for path in re.findall(r"`?(configs/[a-z/.]+[a-z])`?", GUIDE):
        assert (ROOT / path).exists(), path
    for unit in re.findall(r"nearline-[a-z]+\.timer", GUIDE):
        assert (SYSTEMD / unit).is_file(), unit
    (megabytes,) = re.findall(r"client_max_body_size +(\d+)m;", GUIDE)
    assert int(megabytes) << 20 == CONFIG.server.body_bytes_max
    (seconds,) = re.findall(r"proxy_read_timeout +(\d+)s;", GUIDE)
    assert int(seconds) > CONFIG.llm.timeout_s
    assert f"proxy-body-size: {megabytes}m" in GUIDE
    for folder in ("/var/backups/nearline", "/etc/nearline/jobs.env", "/etc/nearline/nearline.toml"):
        assert folder in GUIDE
        assert any(folder in unit.read_text() for unit in SYSTEMD.glob("*.service"))
