"""Settings: what the default file promises, who overrides whom, and how refusals speak."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from indexes.base.errors import InvalidInput
from retrieval.base.config import Config, ignored_variables, load_config, take_over
from retrieval.base.settings import RESTART

DEFAULT_TOML = Path(__file__).parents[2] / "configs" / "default.toml"


def keys_and_values(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "nearline.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path | None, environ: dict[str, str]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        load_config(path, environ)
    assert "\n" not in caught.value.message
    return caught.value


def test_default_file_and_code_agree() -> None:
    """Every key of configs/default.toml is in the code with the same value and type, and no other is."""
    in_file = keys_and_values(tomllib.loads(DEFAULT_TOML.read_text(encoding="utf-8")))
    in_code = keys_and_values(msgspec.to_builtins(Config()))
    assert in_file == in_code
    assert {key: type(value) for key, value in in_file.items()} == {
        key: type(value) for key, value in in_code.items()
    }


def test_default_file_explains_every_key() -> None:
    """Each key line of configs/default.toml carries a comment."""
    for line in DEFAULT_TOML.read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            assert " # " in line, line


def test_default_file_loads_as_the_defaults() -> None:
    """Giving the default file changes nothing."""
    assert load_config(DEFAULT_TOML, {}) == load_config(None, {}) == Config()


def test_environment_overrides_file_overrides_default(tmp_path: Path) -> None:
    """The environment wins over the file, the file over the code; what neither names keeps its default."""
    path = write(tmp_path, '[server]\nport = 9000\nhost = "0.0.0.0"\n[search]\nmode = "dense"\n')
    config = load_config(path, {"NEARLINE_SERVER_PORT": "9001", "PORT": "1", "HOME": "/root"})
    assert (config.server.port, config.server.host, config.search.mode) == (9001, "0.0.0.0", "dense")
    assert config.server.body_timeout_s == 15.0


@pytest.mark.parametrize(
    ("variable", "text", "section", "key", "value"),
    [
        ("NEARLINE_REDIS_URL", "redis://cache:6379/1", "redis", "url", "redis://cache:6379/1"),
        ("NEARLINE_REDIS_URL", "", "redis", "url", ""),
        *(
            ("NEARLINE_REDIS_URL", url, "redis", "url", url)
            for url in (
                "rediss://one",
                "unix:///path",
                "redis+sentinel://one,two/mymaster",
                "rediss+cluster://one:1",
            )
        ),
        ("NEARLINE_REDIS_PREFIX", "0123", "redis", "prefix", "0123"),
        ("NEARLINE_SERVER_PORT", "0", "server", "port", 0),
        ("NEARLINE_SERVER_BODY_TIMEOUT_S", "2", "server", "body_timeout_s", 2.0),
        ("NEARLINE_SEARCH_WEIGHT_DENSE", "0.25", "search", "weight_dense", 0.25),
        ("NEARLINE_CONTEXT_MIN_SIMILARITY", "0.3", "context", "min_similarity", 0.3),
        ("NEARLINE_LOG_FORMAT", "json", "log", "format", "json"),
        ("NEARLINE_MODELS_FOLDER", "some/where", "models", "folder", "some/where"),
    ],
)
def test_variables_are_read_by_the_type_of_their_key(
    variable: str, text: str, section: str, key: str, value: object
) -> None:
    """Text from the environment becomes what the key holds: digits stay text where the key is text."""
    found = getattr(getattr(load_config(None, {variable: text}), section), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "param", "fragments"),
    [
        ("[server]\nprot = 1\n", "server.prot", ["[server]", "'prot'", "did you mean 'port'"]),
        ("[sever]\nport = 1\n", "sever", ["[sever]", "did you mean 'server'"]),
        ("server = 3\n", "server", ["expected a section [server]", "found 3"]),
        ('[server]\nport = "80"\n', "server.port", ["[server] port", "expected int", "found '80'"]),
        ("[server]\nport = true\n", "server.port", ["expected int", "found True"]),
        ("[server]\nport = 65536\n", "server.port", ["expected int <= 65535", "found 65536"]),
        ("[search]\nk = 0\n", "search.k", ["expected int >= 1", "found 0"]),
        ("[search]\nk = 1.5\n", "search.k", ["expected int", "found 1.5"]),
        ("[search]\nweight_dense = nan\n", "search.weight_dense", ["expected float >= 0", "found nan"]),
        ("[server]\nbody_timeout_s = inf\n", "server.body_timeout_s", ["expected float", "found inf"]),
        ('[search]\nmode = "fast"\n', "search.mode", ['"hybrid", "dense", "lexical"', "found 'fast'"]),
        ("[search]\nmode = []\n", "search.mode", ['"hybrid"', "found []"]),
        (
            '[context]\nmin_similarity = "low"\n',
            "context.min_similarity",
            ['a cosine from -1 to 1, or "model"', "found 'low'"],
        ),
        (
            '[cluster]\nnodes = { a = ["localhost:8080"] }\n',
            "cluster.nodes",
            ["the addresses of their services", "found {'a': ['localhost:8080']}"],
        ),
        ('[llm]\nbase_url = "http://a b"\n', "llm.base_url", ["begins with http", "found 'http://a b'"]),
        ('[models]\nfolder = ""\n', "models.folder", ["length >= 1", "found ''"]),
        ("[server]\nport = \n", "config", ["not valid TOML", "line 2"]),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, param: str, fragments: list[str]) -> None:
    """The refusal names the file, the key, what was expected and what was found."""
    path = write(tmp_path, text)
    error = refused(path, {})
    assert error.param == param
    for fragment in [str(path), *fragments]:
        assert fragment in error.message


@pytest.mark.parametrize(
    ("variable", "text", "fragments"),
    [
        ("NEARLINE_SERVER_PORT", "http", ["[server] port", "expected int", "found 'http'"]),
        ("NEARLINE_SERVER_PORT", "", ["expected int", "found ''"]),
        ("NEARLINE_SERVER_PORT", "-1", ["expected int >= 0", "found '-1'"]),
        ("NEARLINE_SEARCH_WEIGHT_DENSE", "nan", ["expected float >= 0"]),
        ("NEARLINE_CACHE_TTL_S", "1e999", ["[cache] ttl_s"]),
        ("NEARLINE_LOG_LEVEL", "loud", ['"debug", "info", "warning", "error"', "found 'loud'"]),
        ("NEARLINE_SERVER_PROT", "1", ["'prot'", "did you mean 'port'"]),
    ],
)
def test_a_bad_variable_is_refused_by_name(variable: str, text: str, fragments: list[str]) -> None:
    """The refusal names the variable instead of a file."""
    error = refused(None, {variable: text})
    for fragment in [variable, *fragments]:
        assert fragment in error.message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A missing file and one that is not UTF-8 are refused with their path."""
    missing = tmp_path / "none.toml"
    assert str(missing) in refused(missing, {}).message
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'[models]\nfolder = "mod\xe8les"\n')
    assert str(latin) in refused(latin, {}).message


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("[passages]\ntokens_max = 64\noverlap_tokens = 33\n", "passages.overlap_tokens"),
        ("[search]\nk = 1001\n", "search.k"),
        ("[search]\nweight_dense = 0\nweight_lexical = 0\n", "search.weight_dense"),
        ("[server]\nbody_bytes_max = 1000\n", "limits.document_bytes_max"),
    ],
)
def test_values_that_contradict_each_other_are_refused(tmp_path: Path, text: str, param: str) -> None:
    """Values that are each in range but cannot work together stop the start."""
    assert refused(write(tmp_path, text), {}).param == param


@pytest.mark.parametrize("text", ['secret = "too short"', "secret = 1234567890123456", 'secret = ["zebra"]'])
def test_a_secret_stays_out_of_the_message(tmp_path: Path, text: str) -> None:
    """A refused secret is not shown at all, wherever it came from."""
    error = refused(write(tmp_path, f"[redis]\n{text}\n"), {})
    assert "16 characters or more, or nothing, found a value that is not shown" in error.message
    assert not any(word in error.message for word in ("short", "1234", "zebra"))
    assert "short" not in refused(None, {"NEARLINE_REDIS_SECRET": "too short"}).message


def test_a_password_stays_out_of_the_message() -> None:
    """A refused Redis address is shown without its user and password."""
    error = refused(None, {"NEARLINE_REDIS_URL": "http://user:s3cret@cache:6379"})
    assert "s3cret" not in error.message
    assert "cache:6379" in error.message


def test_variables_of_kubernetes_services_are_no_settings() -> None:
    """A Service named nearline-redis or nearline puts variables in every pod; none is taken."""
    environ = {
        "NEARLINE_REDIS_SERVICE_HOST": "10.0.0.7",
        "NEARLINE_REDIS_SERVICE_PORT": "6379",
        "NEARLINE_REDIS_SERVICE_PORT_RESP": "6379",
        "NEARLINE_REDIS_PORT": "tcp://10.0.0.7:6379",
        "NEARLINE_REDIS_PORT_6379_TCP": "tcp://10.0.0.7:6379",
        "NEARLINE_REDIS_PORT_6379_TCP_ADDR": "10.0.0.7",
        "NEARLINE_SERVER_PORT": "tcp://10.0.0.8:8080",
        "NEARLINE_SERVICE_HOST": "10.0.0.9",
        "NEARLINE_PORT": "tcp://10.0.0.9:8080",
    }
    assert load_config(None, environ) == Config()
    assert ignored_variables(environ) == []


def test_variables_of_no_section_can_be_warned_of() -> None:
    """A slip in a section's name cannot be told from another program's variable: listed with the likely name, not
    refused."""
    names = "NEARLINE_SERCH_K NEARLINE_ULR NEARLINE_SERVER_PORT NEARLINE_VOLUME_OF_ANOTHER PATH"
    assert ignored_variables(dict.fromkeys(names.split(), "1")) == [
        "NEARLINE_SERCH_K (did you mean 'NEARLINE_SEARCH_K'?)",
        "NEARLINE_ULR (did you mean 'NEARLINE_URL'?)",
        "NEARLINE_VOLUME_OF_ANOTHER",
    ]


def test_settings_cannot_be_changed() -> None:
    """A loaded configuration is immutable, so that any thread may read it."""
    config = load_config(None, {})
    with pytest.raises(AttributeError):
        config.server.port = 1  # type: ignore[misc]


# --- a reload -------------------------------------------------------------------------------------------------


def test_every_key_reloads_or_needs_a_restart() -> None:
    """What the set of those that need a restart names exists, none of it twice; the guide's table names the same."""
    keys = keys_and_values(msgspec.to_builtins(Config()))
    whole = {name for name in RESTART if "." not in name}
    assert whole <= set(msgspec.to_builtins(Config()))
    named = RESTART - whole
    assert named <= keys.keys()
    assert not {name for name in named if name.partition(".")[0] in whole}
    guide = (DEFAULT_TOML.parents[1] / "docs" / "configuration.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("| `[")]
    told: set[str] = set()
    for row in rows:
        sections, needs = (re.findall(r"`\[?([a-z_.]+)\]?`", cell) for cell in row.strip("| ").split(" | "))
        of = {key for key in keys if key.partition(".")[0] in sections}
        listed = {one if "." in one else f"{sections[0]}.{one}" for one in needs}
        told |= of - listed if "all" in row.split("|")[2] else listed
    assert told == {key for key in keys if {key, key.partition(".")[0]} & RESTART}


def test_a_reload_changes_what_can_change_and_names_the_rest() -> None:
    """In the very sections that the parts of a service hold; secrets are not shown, only named."""
    current, fresh = Config(), load_config(None, {"NEARLINE_LIMITS_K_MAX": "70", "NEARLINE_SEARCH_K": "3"})
    limits = current.limits
    assert take_over(current, fresh) == (["limits.k_max", "search.k"], [])
    assert (limits.k_max, current.search.k) == (70, 3)
    other = load_config(None, {"NEARLINE_SERVER_PORT": "9", "NEARLINE_REDIS_SECRET": "s" * 16})
    assert take_over(current, other) == (["limits.k_max", "search.k"], ["server.port", "redis.secret"])
    assert (current.server.port, current.redis.secret, limits.k_max) == (8080, "", 1000)
