"""The table of engines of records, and the choice of one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rallypoint.config import RegisterConfig, is_secret, password_variable
from rallypoint.core.settings import BY_REGISTER, ENGINE_NAMES, FLAGS
from rallypoint.errors import UsageError
from rallypoint.register.engines import ENGINES, Engine, Use, find, make
from rallypoint.register.etcd.parameters import FIELDS
from rallypoint.register.kubernetes.parameters import KubernetesConfig
from rallypoint.wire.death_notice import RegisterAt

WHERE = {"file": "/shared/jobs", "etcd": "e1:2379", "kubernetes": "training"}
SETTINGS = {"kubernetes": (("server", "https://h:443"),)}


def chosen(name: str) -> Engine:
    return make(RegisterConfig(name, WHERE[name], SETTINGS.get(name, ())), Use("job"))


def test_the_two_tables_name_the_same_engines() -> None:
    assert tuple(ENGINES) == ENGINE_NAMES
    assert all(name in BY_REGISTER for name in ENGINE_NAMES)
    assert all(name in FLAGS["--rdzv-backend"].about for name in ENGINE_NAMES)


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_each_row_makes_an_engine_of_its_name(name: str) -> None:
    engine = chosen(name)
    assert engine.name == name
    assert WHERE[name] in engine.where or "https://h:443" in engine.where
    assert engine.wording().check
    assert engine.wording().same()
    engine.open("job", b"token")


def test_the_keys_of_a_row_are_those_that_its_engine_reads() -> None:
    assert set(ENGINES["etcd"].keys) == set(FIELDS)
    fields = set(KubernetesConfig.__struct_fields__) - {"namespace"}
    assert set(ENGINES["kubernetes"].keys) == fields
    assert all(set(row.files) <= set(row.keys) for row in ENGINES.values())


def test_a_name_that_is_unknown_is_told_with_the_known_ones() -> None:
    assert find("zookeeper") is None
    with pytest.raises(UsageError, match="'zookeeper': known are file, etcd, kubernetes"):
        make(RegisterConfig("zookeeper"), Use())


def test_no_password_is_shown() -> None:
    register = RegisterConfig("etcd", "e1", (("user", "u"), ("password", "secret")))
    for shown in (repr(register), repr(RegisterAt.of(register))):
        assert "secret" not in shown
        assert "etcd" in shown
    assert RegisterAt.of(register).config() == register


def test_F8_the_password_of_any_backend_is_a_secret() -> None:
    assert password_variable("etcd") == "RALLYPOINT_ETCD_PASSWORD"
    assert is_secret(password_variable("my-store"))
    assert not is_secret("RALLYPOINT_LEASE")
    assert not is_secret("PASSWORD")


def test_the_table_imports_no_engine() -> None:
    look = "import sys, rallypoint.register.engines; print(*sys.modules)"
    words = [sys.executable, "-c", look]
    imported = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in imported if name.startswith("rallypoint.register")} == {
        "rallypoint.register",
        "rallypoint.register.engines",
    }
    assert "importlib.metadata" not in imported
