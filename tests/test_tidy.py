"""The rules of the house, held by reading the source (see ARCHITECTURE.md).

Every rule is a function `(path, source) -> complaints`; `path` is relative to the package or, for
tracked files, to the repository. Each has a self-test below that shows it one thing to catch and
one to let pass. An exception is an entry with its reason, never a loosened rule.
"""

from __future__ import annotations

import ast
import gc
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tools.measure_house import (
    Module,
    cycles,
    read_modules,
    small_for_one_package,
)

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rallypoint"

Rule = Callable[[str, str], list[str]]

PURE = ("core/", "wire/")
MACHINES_BESIDE_HOSTS = ("cli/launch/machine.py",)
"""Machines outside of core, of a command that most jobs have no use for."""
PURE_MODULES = (
    *MACHINES_BESIDE_HOSTS,
    "cli/run_options/empty_values.py",
    "cli/render.py",
    "cli/parser.py",
    "cli/values.py",
    "cli/verdict.py",
    "cli/run_options/rendezvous.py",
    "elastic/rendezvous/plug_in/exchange.py",
    "elastic/rendezvous/plug_in/one_round.py",
    "elastic/rendezvous/plug_in/part.py",
)
IMPURE_IMPORTS = frozenset(
    {"time", "random", "secrets", "uuid", "os", "socket", "threading", "asyncio", "logging"}
    | {"subprocess", "selectors", "multiprocessing"}
)
CLOCKS = frozenset({"datetime.now", "datetime.today", "datetime.utcnow", "date.today"})
THIRD_PARTY = frozenset({"msgspec", "rallypoint"})
LAYERS = (
    {"__main__"},
    {"elastic"},
    {"cli"},
    {"integrations"},
    {"agent"},
    {"coordinator"},
    {"register", "process"},
    {"worker"},
    {"store"},
    {"observe"},
    {"wire"},
    {"core"},
)
ANYWHERE = frozenset(
    {
        "errors",
        "config",
        "files",
        "file_systems",
        "lazy",
        "machine_name",
        "torch_versions",
        "clocks",
        "threads",
        "hashes",
        "",
    }
)
SPAWNING_MODULES = frozenset({"subprocess", "multiprocessing", "pty", "concurrent"})
SPAWNING_CALLS = re.compile(
    r"os\.(kill|killpg|fork|forkpty|system|popen|startfile|posix_spawnp?|(exec|spawn)[vlpe]+)"
    r"|signal\.(pidfd_send_signal|raise_signal|pthread_kill)"
    r"|asyncio\.(create_subprocess_(exec|shell)|subprocess)"
)
ENVIRON = re.compile(r"os\.(environb?|getenvb?|putenv|unsetenv)")
ENVIRON_READERS = (
    "agent/environ.py",
    "cli/access.py",
    "cli/launch/command.py",
    "cli/launch/host.py",  # sshd tells the command of a session its address, and what it inherits
    "cli/machine.py",
    "cli/shim/command.py",
    "cli/shim/in_process.py",
    "cli/shim/entries/sitecustomize.py",  # it decides by it whether it acts in a process
    "cli/options.py",
    "config.py",
    "machine_name.py",  # Kubernetes tells a pod on which machine it runs
    "process/prepared/bootstrap.py",
    "elastic/control_plane.py",  # torch's variable says whether its server is to run
    "elastic/multiprocessing/api.py",
    "elastic/multiprocessing/subprocess_handler/subprocess_handler.py",
    "elastic/rendezvous/etcd_server.py",  # torch's variable names the program
    "elastic/run.py",
    "elastic/utils/logging.py",
    "register/kubernetes/parameters.py",  # by it a pod is told where its API server is
    "worker/error_file.py",
    "cli/watch/terminal.py",  # NO_COLOR and TERM say what a terminal shows
    "cli/service.py",  # systemd tells a service where to say that it is ready
    "worker/environ.py",  # a worker is told its place by its environment
    "worker/shm.py",
)
PRINTING = re.compile(
    r"print\(|sys\.(__)?std(out|err)(__)?\.(buffer\.)?write|os\.write\([12]$|traceback\.print_"
)
WALL_CLOCK = re.compile(
    r"time\.(time|time_ns|localtime|gmtime)|datetime\.(now|utcnow|today)|date\.today"
)
CLOCK_READ = re.compile(
    r"(?:^|[._])(time|time_ns|monotonic|monotonic_ns|perf_counter|clock_gettime|boot_time|clock|now)$"
)
LIBRARY = re.compile(r"rallypoint\.elastic(\.|$)")
WRITING_MODE = re.compile(r"[rbtU]*[wax+][rwaxbt+]*")
READING_FLAGS = frozenset(
    {"O_RDONLY", "O_PATH", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"}
)
NO_FILE = re.compile(r"""os\.devnull|f?['"]/(dev/null['"]|proc/)""")
FILE_MAKERS = re.compile(
    r"\.(write_text|write_bytes|touch)$|^os\.(mkfifo|mknod)$|^tempfile\.(?!gettempdir$)"
)
UNSAFE_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "_pickle"})
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "manager", "common", "api", "misc"})
MODULE_LINES, FUNCTION_LINES, FILE_BYTES = 600, 60, 1_000_000

# (path, what) -> why the rule does not apply there
LONG_FUNCTIONS: dict[tuple[str, str], str] = {}
FLAT_MODULES, SUB_PACKAGE_MODULES = 16, 3
FLAT_FOLDERS: dict[str, str] = {
    "core/watch": "each answer to a person's question is a module",
}
"""Packages without sub-packages that have more modules than that."""
THIN_FOLDERS: dict[str, str] = {
    "cli/shim/entries": "a directory for PATH and PYTHONPATH, with a program and a module",
    "elastic/": "torch has these packages",
}
"""Sub-packages with fewer modules than that. A key that ends with / is for all below it."""
STATES_BESIDE_CLOCKS: dict[str, str] = {
    "agent/worker_shm.py WorkerShm": "the word that asks workers; the clock numbers requests",
    "elastic/agent/embedded/hook_workers.py HookWorkers": "dates failures for people",
}
"""Classes outside core that keep a state and read a clock: their decisions belong into core."""
CALLABLES_IN_CORE: dict[str, str] = {
    "core/session.py SessionRules": "an agent that leads asks how long it may",
    "core/sessions.py Sessions": "tests give it a machine that fails; dates for people",
    "core/watch/history.py JobHistory": "dates what people read",
}
"""Classes of core that store something to call: a machine is told the time and gives effects."""
HOSTS: dict[str, str] = {
    "cli/launch/job.py": "_state",
    "coordinator/gathering.py": "collection",
    "coordinator/leading/candidacy.py": "_machine",
    "coordinator/leading/candidates.py": "_standby",
    "coordinator/jobs.py": "_lives",
    "coordinator/leading/leader_search.py": "_search",
    "coordinator/leading/leadership.py": "duties",
    "coordinator/watching.py": "_requests",
    "elastic/rendezvous/plug_in/session.py": "_part",
}
"""Modules that host a machine, and the attribute with the state of that."""
SIDEWAYS: dict[tuple[str, str], str] = {}
SMALL_MODULES: dict[str, str] = {
    "agent/telemetry/trainer_requests.py": "imported when a TrainJob is told of its progress",
    "cli/watch/quoted_text.py": "two commands show names in the same way",
    "elastic/": "torch has these modules",
}
TORCHS_PATHS = "tests/compat/recorded/public_names.json"
"""Modules of the library that torch has are named as there, and cut as there."""
USES_OF_THE_LIBRARY: dict[str, str] = {
    "agent/membership.py": "a job over a plug-in's handler",
    "cli/machine.py": "the names of plug-ins",
    "cli/shim/in_process.py": "programs get it in the place of torch's modules",
    "integrations/torchrun.py": "the plug-in for stock torchrun makes a handler of the library",
    "worker/collectives.py": "a store for scripts",
}
"""The product imports `rallypoint.elastic` here, in functions or for its types."""
USES_AT_IMPORT: dict[str, str] = {
    "cli/shim/in_process.py": "programs import it, and the command does not",
    "integrations/torchrun.py": "stock torchrun imports it, and the command does not",
}
NAMES_OF_ENGINES: dict[str, str] = {
    "register/engines.py": "the table of engines",
    "core/settings.py": "the table of settings, with choices and help",
    "coordinator/client/discovery.py": "a line names a service of Kubernetes, which is no record",
    "torch_versions.py": "the keys and variables that torch's versions know",
    "cli/generate/command.py": "writes manifests of pods",
    "cli/migrate/translate.py": "an older name that torch has",
    "cli/generate/kubernetes.py": "writes manifests of pods",
    "cli/generate/rbac.py": "writes the rights of pods",
    "elastic/etcd/client.py": "a client for the store and the rendezvous of programs",
    "elastic/etcd/lease.py": "a client for the store and the rendezvous of programs",
    "elastic/rendezvous/api.py": "the library's own table of handlers",
    "elastic/rendezvous/etcd_rendezvous_backend.py": "torch's name",
    "elastic/rendezvous/etcd_server.py": "torch's name",
    "elastic/rendezvous/etcd_store.py": "torch's name",
}
"""Modules outside of the packages of engines that name one."""
ENGINE_WORDS = re.compile(r"etcd|kubernetes|--rdzv-backend file\b", re.IGNORECASE)
ENGINE_PACKAGES = re.compile(r"rallypoint\.register\.(directory|etcd|kubernetes)\b")
OPTIONAL_CLIENTS: dict[tuple[str, str], str] = {
    (
        "store/server_process.py",
        "uvloop",
    ): "a faster loop, where it is installed",
    (
        "integrations/jax.py",
        "jax",
    ): "the class that JAX asks is one of JAX's",
    (
        "elastic/control_plane.py",
        "torch",
    ): "the server that a worker's variable asks for is torch's",
    (
        "elastic/utils/data/elastic_distributed_sampler.py",
        "torch",
    ): "shuffles as torch's class does, and asks the process group for the rank",
}
WALL_CLOCK_READERS: dict[str, str] = {
    "cli/machine.py": "tells how far away the end of an allocation is, which is a time of day",
    "observe/records.py": "dates events for people",
    "agent/telemetry/dispatcher.py": "dates the ends of workers for whoever reads of them",
    "agent/hang.py": "dates a hang for people",
    "agent/worker_rounds.py": "dates failures for people",
    "elastic/agent/embedded/hook_workers.py": "dates failures for people",
    "clocks.py": "numbers lives of jobs (but for R6), dates lost nodes for people",
    "process/workers.py": "dates failures for people",
    "elastic/agent/server/health_check_server.py": "progress is told in unix seconds, as in torch",
    "elastic/multiprocessing/errors/__init__.py": "dates failures for people",
    "worker/error_file.py": "dates failures for people",
    "observe/event.py": "dates events for whoever reads them",
    "agent/telemetry/trainer_status.py": "dates progress for whoever reads it",
    "observe/metrics.py": "dates numbers for whoever reads them",
    "elastic/metrics/api.py": "tells how long it is since a time of day",
    "agent/timers.py": "turns what torch's clients date into what is left",
    "elastic/timer/api.py": "torch's requests of timers are dated by it",
    "elastic/timer/file_based_local_timer.py": "torch's requests of timers are dated by it",
    "elastic/timer/local_timer.py": "torch's requests of timers are dated by it",
    "elastic/timer/pipe/writing.py": "torch's requests of timers are dated by it",
}
SPAWNERS: dict[str, str] = {
    "cli/shim/command.py": "becomes the command of a person, and has nothing to supervise",
    "cli/shim/entries/sitecustomize.py": "becomes rallypoint, in an interpreter without it",
    "elastic/multiprocessing/subprocess_handler/subprocess_handler.py": "its Popen is torch's",
}
FILE_WRITERS: dict[tuple[str, str], str] = {
    (
        "process/prepared/calls.py",
        "tempfile.TemporaryFile",
    ): "it has no name, where memfd is missing",
}
PRINTERS: dict[str, str] = {
    "cli/shim/entries/sitecustomize.py": "runs in interpreters without rallypoint, and says so",
    "observe/printing.py": "the one place",
    "process/relay/client.py": "what the one place has made, when there is no relay to take it",
    "process/prepared/program.py": "exec'd with the standard library only; tells an error number",
}
UNSAFE_USES: dict[tuple[str, str], str] = {
    (
        path,
        "imports pickle",
    ): "a function's arguments and result, between an agent and its own child"
    for path in (
        "process/prepared/bootstrap.py",
        "process/prepared/calls.py",
        "process/prepared/calls.py",
    )
} | {("process/prepared/command_line.py", "calls exec"): "the worker's own script, in the worker"}


@cache
def modules_of_the_package() -> list[Module]:
    return read_modules(PACKAGE.parent)


@cache
def parsed(source: str) -> ast.Module:
    """Parsed once, however many rules read it."""
    return trees_of_the_package().get(source) or ast.parse(source)


@cache
def trees_of_the_package() -> dict[str, ast.Module]:
    return {module.source: module.tree for module in modules_of_the_package()}


@cache
def nodes(source: str) -> list[ast.AST]:
    """All of it, as `ast.walk` finds them."""
    return list(ast.walk(parsed(source)))


@cache
def calls(source: str) -> list[tuple[ast.Call, str]]:
    """Every call, with what is called as it is written."""
    found = [node for node in nodes(source) if isinstance(node, ast.Call)]
    return [(call, ast.unparse(call.func)) for call in found]


@cache
def imports(source: str) -> list[str]:
    """Every imported module, wherever it stands; `from a import b` gives both `a` and `a.b`."""
    return list(_imports(source))


def _imports(source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def dotted(source: str) -> list[str]:
    """Every `a.b` that the module says, by attribute or by `from a import b`."""
    return list(_dotted(source))


def _dotted(source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top(name: str) -> str:
    return name.partition(".")[0]


def pure_modules_import_no_world(path: str, source: str) -> list[str]:
    if not path.startswith(PURE) and path not in PURE_MODULES:
        return []
    found = [f"imports {name}" for name in imports(source) if top(name) in IMPURE_IMPORTS]
    return found + [f"uses {name}" for name in dotted(source) if name in CLOCKS]


def only_msgspec_comes_from_outside(path: str, source: str) -> list[str]:
    if path.startswith("integrations/"):
        return []
    return [
        f"imports {top(name)}"
        for name in imports(source)
        if top(name) not in sys.stdlib_module_names | THIRD_PARTY
        and (path, top(name)) not in OPTIONAL_CLIENTS
    ]


def spawning_and_signalling_live_in_process(path: str, source: str) -> list[str]:
    if path.startswith("process/") or path in SPAWNERS:
        return []
    modules = [f"imports {n}" for n in imports(source) if top(n) in SPAWNING_MODULES]
    return modules + [f"uses {n}" for n in dotted(source) if SPAWNING_CALLS.fullmatch(n)]


def environment_is_read_at_the_edge(path: str, source: str) -> list[str]:
    if path in ENVIRON_READERS or path.startswith("integrations/"):
        return []
    return [f"uses {name}" for name in dotted(source) if ENVIRON.fullmatch(name)]


def the_wall_clock_is_only_shown(path: str, source: str) -> list[str]:
    """Behaviour R6: where it is read at all, it dates something for a person."""
    if path in WALL_CLOCK_READERS:
        return []
    return [f"uses {name}" for name in dotted(source) if WALL_CLOCK.fullmatch(name)]


def the_programs_random_numbers_are_left_alone(path: str, source: str) -> list[str]:
    """Who has seeded them must draw the same with this library and without."""
    drawn = r"random\.(seed|random|uniform|randrange|randint|choices?|sample|shuffle|expovariate)"
    return [f"uses {name}" for name in dotted(source) if re.fullmatch(drawn, name)]


def nothing_is_unpickled_or_evaluated(path: str, source: str) -> list[str]:
    found = [f"imports {n}" for n in imports(source) if top(n) in UNSAFE_MODULES]
    found += [
        f"calls {node.func.id}"
        for node in nodes(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("eval", "exec", "compile", "__import__")
    ]
    return [what for what in found if (path, what) not in UNSAFE_USES]


def files_are_opened_for_writing_in_one_place(path: str, source: str) -> list[str]:
    """By `files.safe_open` or `files.open_named`, according to who chose the name."""
    if path == "files.py":
        return []
    found = [name for call, name in calls(source) if _writes_a_file(call, name)]
    return [f"calls {name}" for name in found if (path, name) not in FILE_WRITERS]


def _writes_a_file(call: ast.Call, name: str) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name == "os.open":
        flags = re.findall(r"\w+", ast.unparse(given[1]).replace("os.", ""))
        reads = READING_FLAGS.issuperset(flags)
        return not reads and not NO_FILE.match(ast.unparse(given[0]))
    if re.search(r"(^|\.)open$", name):
        modes = [each.value for each in given if isinstance(each, ast.Constant)]
        return any(WRITING_MODE.fullmatch(mode) for mode in modes if isinstance(mode, str))
    return FILE_MAKERS.search(name) is not None


def only_one_module_prints(path: str, source: str) -> list[str]:
    """There every text is made safe for a terminal, so that no new line can forget to."""
    if path in PRINTERS or path.startswith("testing/"):
        return []
    # Each as it is written, up to its first argument, where that matters.
    begun = [
        f"{name}({ast.unparse(call.args[0]) if name == 'os.write' and call.args else ''}"
        for call, name in calls(source)
    ]
    return [f"calls {text}...)" for text in begun if PRINTING.match(text)]


def a_module_is_short(path: str, source: str) -> list[str]:
    """`tools/measure_house.py` reports shorter ones that may hold more than one idea."""
    lines = len(source.splitlines())
    return [f"has {lines} lines, more than {MODULE_LINES}"] if lines > MODULE_LINES else []


def a_function_is_short(path: str, source: str) -> list[str]:
    found = []
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            limit = 80 if (path, node.name) in LONG_FUNCTIONS else FUNCTION_LINES
            if lines > limit:
                found.append(f"{node.name} has {lines} lines, more than {limit}")
    return found


def imports_point_down(path: str, source: str) -> list[str]:
    own = path.removesuffix(".py").partition("/")[0]
    height = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    found = []
    for name in sorted({n for n in imports(source) if top(n) == "rallypoint"}):
        parts = [*name.split("."), ""]
        other = parts[1]
        if other == "testing" and own != "testing":
            found.append("imports rallypoint.testing, which is for tests")
        if own not in height or other not in height or other in ANYWHERE:
            continue
        if other == "elastic":  # a rule of its own, with a list
            continue
        sideways = height[other] == height[own] and other != own
        if height[other] < height[own] or (sideways and (path, other) not in SIDEWAYS):
            found.append(f"{own} imports {name}")
    if own in ANYWHERE - {"config", "threads"}:
        found += [f"{own} imports {n}" for n in imports(source) if top(n) == "rallypoint"]
    return found


@cache
def torchs_paths() -> frozenset[str]:
    """The modules of the library that torch has, below the package."""
    modules = json.loads((ROOT / TORCHS_PATHS).read_text())["answers"]["all"]
    names = [f"elastic/{name.removeprefix('elastic.').replace('.', '/')}" for name in modules]
    return frozenset(each for name in names for each in (f"{name}.py", f"{name}/__init__.py"))


def a_file_name_is_an_idea(path: str, source: str) -> list[str]:
    if path in torchs_paths():
        return []
    names = path.removesuffix(".py").split("/")
    return [f"{name} says nothing" for name in names if name in VAGUE_NAMES]


def objects_are_complete_when_they_are_made(path: str, source: str) -> list[str]:
    """No callback is assigned to another object: its constructor takes it."""
    return [
        f"sets {ast.unparse(node)}"
        for node in nodes(source)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and re.match(r"_?on_", node.attr)
        and ast.unparse(node.value) != "self"
    ]


def what_is_public_has_a_docstring(path: str, source: str) -> list[str]:
    tree = parsed(source)
    module = ["the module"] if tree.body and ast.get_docstring(tree) is None else []
    bare = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    return [f"{name} has no docstring" for name in module + bare]


def engines_are_named_in_their_packages_and_tables(path: str, source: str) -> list[str]:
    """A text of several lines is help, which is documentation as docstrings are."""
    if ENGINE_PACKAGES.match("rallypoint." + path.replace("/", ".")) or path in NAMES_OF_ENGINES:
        return []
    docstrings = {
        id(node.value)
        for node in nodes(source)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    words = [name for name in imports(source) if ENGINE_PACKAGES.match(name)]
    for node in nodes(source):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            text = str(node.value)
            words += [text] if "\n" not in text and ENGINE_WORDS.search(text) else []
        else:
            name = getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "name", "")
            words += [name] if ENGINE_WORDS.search(str(name)) else []
    return [f"names an engine: {word}" for word in words]


# Each word is broken by a class of one letter, so that this file does not say what it forbids.
TEST_MODULE = re.compile(
    r"\b(?:from|import) (tests\.(?:\w+\.)*test_\w+)|\bfrom tests(?:\.\w+)* import .*\b(test_\w+)"
)


def no_test_imports_another(path: str, source: str) -> list[str]:
    """Also in the text of a program that a test runs."""
    if not path.startswith("tests/"):
        return []
    return [f"imports {found[1] or found[2]}" for found in TEST_MODULE.finditer(source)]


LATER_MARKS = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X)\b")
ELSEWHERE = re.compile(
    r"p[y]pi\.org|p[y]thonhosted\.org|a[r]tifactory|i[n]dex-url|registry\.n[p]mjs"
    r"|(?<![\w.~])/(w[o]rk|h[o]me|r[o]ot|U[s]ers)/\w"
)


def nothing_is_put_off_in_a_comment(path: str, source: str) -> list[str]:
    return [f"says {mark.group()}" for mark in LATER_MARKS.finditer(source)]


def no_host_or_path_of_one_machine(path: str, source: str) -> list[str]:
    return [f"names {place.group()}" for place in ELSEWHERE.finditer(source)]


PACKAGE_RULES: tuple[Rule, ...] = (
    pure_modules_import_no_world,
    only_msgspec_comes_from_outside,
    spawning_and_signalling_live_in_process,
    environment_is_read_at_the_edge,
    the_wall_clock_is_only_shown,
    the_programs_random_numbers_are_left_alone,
    nothing_is_unpickled_or_evaluated,
    files_are_opened_for_writing_in_one_place,
    only_one_module_prints,
    a_module_is_short,
    a_function_is_short,
    imports_point_down,
    a_file_name_is_an_idea,
    objects_are_complete_when_they_are_made,
    what_is_public_has_a_docstring,
    engines_are_named_in_their_packages_and_tables,
)
TEXT_RULES: tuple[Rule, ...] = (
    nothing_is_put_off_in_a_comment,
    no_host_or_path_of_one_machine,
    no_test_imports_another,
)


def crowded_folders(modules: list[Module]) -> dict[str, str]:
    """More modules than a reader can keep in mind: some of them make a package with a name."""
    counts = modules_of_folders(modules)
    return {
        folder: f"{folder} has {number} modules and no sub-packages"
        for folder, number in counts.items()
        if number > FLAT_MODULES and not any(other.startswith(f"{folder}/") for other in counts)
    }


def thin_folders(modules: list[Module]) -> dict[str, str]:
    """A sub-package of one or two modules hides them without making anything easier to find."""
    return {
        folder: f"{folder} has {number} modules"
        for folder, number in modules_of_folders(modules).items()
        if number < SUB_PACKAGE_MODULES and "/" in folder
    }


def modules_of_folders(modules: list[Module]) -> Counter[str]:
    """How many modules each package has, without its `__init__`."""
    folders = Counter({str(Path(module.path).parent): 0 for module in modules})
    folders.update(str(Path(m.path).parent) for m in modules if not is_package(m))
    return folders


def is_package(module: Module) -> bool:
    return module.path.endswith("__init__.py")


def small_modules(modules: list[Module]) -> dict[str, str]:
    """What has less than 60 lines, and importers of one package only, belongs into one of them."""
    return {
        path: f"{path} is small, and all that import it are in one package"
        for path in small_for_one_package(modules)
        if not path.endswith("__init__.py")
    }


def states_beside_clocks(modules: list[Module]) -> dict[str, str]:
    """A class outside core that keeps a state, one of an Enum, and reads a clock: a machine that
    can't be tested without time."""
    enums = {
        node.name
        for module in modules
        for node in nodes(module.source)
        if isinstance(node, ast.ClassDef)
        and any(re.search(r"(Enum|Flag)$", ast.unparse(base)) for base in node.bases)
    }
    return {
        f"{module.path} {node.name}": f"{module.path}: {node.name} keeps a state and reads a clock"
        for module in modules
        if not module.path.startswith(PURE)
        for node in nodes(module.source)
        if isinstance(node, ast.ClassDef) and _reads_a_clock(node) and _changes_state(node, enums)
    }


def _reads_a_clock(node: ast.ClassDef) -> bool:
    called = (ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(CLOCK_READ.search(name) for name in called)


def _changes_state(node: ast.ClassDef, enums: set[str]) -> bool:
    """Whether a method, but for the constructor, gives an attribute a member of an Enum."""
    for method in node.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for each in ast.walk(method) if method.name != "__init__" else ():
            stores = isinstance(each, ast.Assign) and any(
                isinstance(part, ast.Attribute)
                for target in each.targets
                for part in ast.walk(target)
            )
            if stores and any(_is_member(part, enums) for part in ast.walk(each)):
                return True
    return False


def _is_member(node: ast.AST, enums: set[str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in enums
    )


def callables_in_core(modules: list[Module]) -> dict[str, str]:
    """A machine that keeps a function or a clock can't be tested by its events alone."""
    core = [
        module
        for module in modules
        if module.path.startswith("core/") or module.path in MACHINES_BESIDE_HOSTS
    ]
    aliases = {
        target.id
        for module in core
        for node in module.tree.body
        if isinstance(node, ast.Assign) and "Callable[" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = re.compile(rf"\b({'|'.join(['Callable', 'partial', *sorted(aliases)])})\b")
    return {
        f"{module.path} {node.name}": f"{module.path}: {node.name} stores something to call"
        for module in core
        for node in nodes(module.source)
        if isinstance(node, ast.ClassDef) and _stores_a_callable(node, calls)
    }


def _stores_a_callable(node: ast.ClassDef, calls: re.Pattern[str]) -> bool:
    """In a field of the class, or by a method that stores a parameter, a lambda or a `partial`."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and calls.search(ast.unparse(part.annotation)):
            return True
        if not isinstance(part, ast.FunctionDef):
            continue
        given = [*part.args.args, *part.args.kwonlyargs]
        named = {a.arg for a in given if a.annotation and calls.search(ast.unparse(a.annotation))}
        for each in ast.walk(part):
            if isinstance(each, ast.AnnAssign) and _is_stored([each.target]):
                if calls.search(ast.unparse(each.annotation)):
                    return True
            elif isinstance(each, ast.Assign) and _is_stored(each.targets):
                values = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
                if any(_is_callable(value, named, calls) for value in values):
                    return True
    return False


def _is_stored(targets: list[ast.expr]) -> bool:
    parts = [part for target in targets for part in ast.walk(target)]
    return any(isinstance(part, ast.Attribute) for part in parts)


def _is_callable(value: ast.expr, named: set[str], calls: re.Pattern[str]) -> bool:
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return bool(calls.fullmatch(ast.unparse(value.func)))
    return any(isinstance(part, ast.Name) and part.id in named for part in ast.walk(value))


def hosts_that_decide(modules: list[Module]) -> dict[str, str]:
    """A host does what its machine says: no condition of it reads the state of the machine, be it
    by a local name. Which event it gives may depend on everything else."""
    return {
        f"{module.path} {found}": f"{module.path}: a condition reads {found}"
        for module in modules
        if module.path in HOSTS
        for node in nodes(module.source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for found in _state_in_conditions(node, HOSTS[module.path])
    }


def _state_in_conditions(function: ast.FunctionDef | ast.AsyncFunctionDef, state: str) -> set[str]:
    whole = re.compile(rf"(.*\.)?{state}$", re.S)
    called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.NamedExpr)]
    local: set[str] = set()

    def reads(part: ast.expr) -> list[str]:
        """What of the state is read there; a call of the machine returns effects."""
        return [
            ast.unparse(each)
            for each in ast.walk(part)
            if (isinstance(each, ast.Name) and each.id in local)
            or (
                isinstance(each, ast.Attribute)
                and id(each) not in called
                and whole.match(ast.unparse(each.value))
            )
        ]

    for node in assigned:
        if reads(node.value) or whole.match(ast.unparse(node.value)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for each in targets for part in ast.walk(each)]
            names = [part for part in parts if isinstance(part, ast.Name)]
            local |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return {
        found
        for node in ast.walk(function)
        for condition in _conditions(node)
        for found in reads(condition)
    }


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            return [node.test]
        case ast.Match():
            return [node.subject]
        case ast.match_case():
            return [] if node.guard is None else [node.guard]
        case ast.comprehension():
            return node.ifs
        case ast.BoolOp():
            return node.values
    return []


def uses_of_the_library(modules: list[Module]) -> dict[str, str]:
    """The product stands without the library: a module that names it is on the list."""
    return {
        module.path: f"{module.path} imports the library"
        for module in modules
        if not module.path.startswith(("elastic/", "testing/"))
        and any(map(LIBRARY.match, imports(module.source)))
    }


def uses_at_import(modules: list[Module]) -> dict[str, str]:
    """Those uses of the library that are no lazy ones: it would be imported at each start."""
    return {
        module.path: f"{module.path} imports the library outside of a function"
        for module in modules
        if not module.path.startswith(("elastic/", "testing/"))
        and any(map(LIBRARY.match, module.eager))
    }


def import_cycles(modules: list[Module]) -> dict[str, str]:
    """Also those that imports within functions hide."""
    found = cycles({m.name: m.eager | m.lazy for m in modules})
    return {group[0]: " <-> ".join(group) for group in found}


HOUSE_RULES: tuple[tuple[Callable[[list[Module]], dict[str, str]], dict[str, str]], ...] = (
    # rule of the whole package, its exceptions; it gives complaints by what may be excepted
    (crowded_folders, FLAT_FOLDERS),
    (thin_folders, THIN_FOLDERS),
    (small_modules, SMALL_MODULES),
    (states_beside_clocks, STATES_BESIDE_CLOCKS),
    (callables_in_core, CALLABLES_IN_CORE),
    (hosts_that_decide, {}),
    (uses_of_the_library, USES_OF_THE_LIBRARY),
    (uses_at_import, USES_AT_IMPORT),
    (import_cycles, {}),
)


def unexpected(found: dict[str, str], excepted: dict[str, str]) -> list[str]:
    """What was found and is not excepted, and which exceptions are not needed."""
    used = {key: row for key in found for row in excepted if is_for(row, key)}
    return [said for key, said in found.items() if key not in used] + [
        f"{row} is excepted without need" for row in excepted if row not in used.values()
    ]


def is_for(row: str, key: str) -> bool:
    """Whether this exception is for what the rule has found; one that ends with / for all below."""
    return key == row or (row.endswith("/") and key.startswith(row))


def complaints(rule: Rule, base: Path, files: list[Path]) -> list[str]:
    found = []
    for file in files:
        path = file.relative_to(base).as_posix()
        found += [f"{path}: {what}" for what in rule(path, text_of(file))]
    return found


@cache
def text_of(file: Path) -> str:
    return file.read_text("utf-8", "replace")


@cache
def tracked() -> list[Path]:
    """The text files that a clone would hold; in an unpacked archive without git, all those of the
    sources."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = [ROOT / name for name in listing.stdout.split("\0") if name]
    if listing.returncode:
        found = [path for part in ("src", "tests") for path in (ROOT / part).rglob("*")]
    return [path for path in found if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


@pytest.fixture(autouse=True, scope="module")
def no_search_for_garbage() -> Iterator[None]:
    """The trees stay, and to look through them for garbage takes longer than to make them."""
    gc.disable()
    yield
    for kept in (modules_of_the_package, parsed, trees_of_the_package, nodes, calls):
        kept.cache_clear()
    gc.enable()


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps(rule: Rule) -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    assert complaints(rule, PACKAGE, files) == []


@pytest.mark.parametrize(("rule", "excepted"), HOUSE_RULES)
def test_the_package_is_built_so_but_for_what_is_listed(
    rule: Callable[[list[Module]], dict[str, str]], excepted: dict[str, str]
) -> None:
    assert unexpected(rule(modules_of_the_package()), excepted) == []


def test_a_host_of_a_machine_has_its_state() -> None:
    sources = {path: (PACKAGE / path).read_text("utf-8") for path in HOSTS}
    assert [path for path in HOSTS if f".{HOSTS[path]}" not in sources[path]] == []


def test_a_module_that_may_name_an_engine_does() -> None:
    unneeded = [
        path
        for path in NAMES_OF_ENGINES
        if not ENGINE_WORDS.search((PACKAGE / path).read_text("utf-8"))
    ]
    assert unneeded == []


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_tracked_files_keep(rule: Rule) -> None:
    assert complaints(rule, ROOT, tracked()) == []


@pytest.mark.parametrize("folder", ["examples", "benchmarks", "tools"])
def test_programs_are_short_too(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert complaints(a_module_is_short, ROOT, files) == []
    assert complaints(a_function_is_short, ROOT, files) == []


DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
EXPERIMENTS = {"one-kind-of-job.md"}
"""Reports of experiments name modules as they were then."""


def test_the_list_of_design_pages_has_each_of_them() -> None:
    listed = set(
        re.findall(r"^\| \[([\w-]+\.md)\]", DESIGN[0].with_name("README.md").read_text(), re.M)
    )
    assert listed == {page.name for page in DESIGN} - {"README.md"}


@pytest.mark.parametrize(
    "path",
    [ROOT / "ARCHITECTURE.md", *(page for page in DESIGN if page.name not in EXPERIMENTS)],
    ids=lambda path: path.name,
)
def test_a_page_of_the_design_names_modules_that_exist(path: Path) -> None:
    named = set(re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", path.read_text("utf-8")))
    assert [
        path for path in sorted(named) if not any((b / path).exists() for b in (PACKAGE, ROOT))
    ] == []


def test_the_map_of_the_architecture_has_each_package_and_the_order_of_imports() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    (drawn,) = re.findall(r"```\n(src/rallypoint/ .*?)```", page, re.S)
    here = [path for path in PACKAGE.iterdir() if not path.name.startswith(("_", "py."))]
    names = [f"{path.name}/" if path.is_dir() else path.name for path in here]
    assert [name for name in names if not re.search(rf"(^|[ /]){name}", drawn, re.M)] == []
    top_down = [names for names in LAYERS if names != {"__main__"}]
    (order,) = re.findall(r"Imports point down: `([^`]+)`", page)
    assert [set(each.split(" | ")) for each in order.replace("\n", " ").split(" -> ")] == top_down


def test_no_large_file_is_tracked() -> None:
    assert [file.name for file in tracked() if file.stat().st_size > FILE_BYTES] == []


def test_no_two_tests_have_one_name() -> None:
    """Pytest can't collect them together."""
    names = Counter(file.name for file in tracked() if file.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_exception_has_a_reason_and_a_file() -> None:
    keyed = LONG_FUNCTIONS | SIDEWAYS | OPTIONAL_CLIENTS | UNSAFE_USES | FILE_WRITERS
    listed = [(path, why) for (path, _), why in keyed.items()]
    listed += [*WALL_CLOCK_READERS.items(), *PRINTERS.items(), *SPAWNERS.items()]
    listed += [(key.split()[0], why) for _, table in HOUSE_RULES for key, why in table.items()]
    listed += NAMES_OF_ENGINES.items()
    for path, reason in listed:
        assert reason.strip(), f"{path} is excepted without a reason"
        assert (PACKAGE / path).exists(), f"{path} is excepted but does not exist"


LONG_BODY = "def f() -> None:\n" + "    x = 1\n" * FUNCTION_LINES
SELF_TESTS: tuple[tuple[Rule, str, str, str], ...] = (
    # rule, path, what it must catch, what it must let pass
    (pure_modules_import_no_world, "core/a.py", "import time", "import enum"),
    (pure_modules_import_no_world, "wire/a.py", "def f():\n from os import path", "import hmac"),
    (pure_modules_import_no_world, "core/a.py", "datetime.now()", "from datetime import timezone"),
    (pure_modules_import_no_world, "cli/parser.py", "import asyncio.events", "import re"),
    (only_msgspec_comes_from_outside, "agent/a.py", "import torch.distributed", "import msgspec"),
    (only_msgspec_comes_from_outside, "core/a.py", "def f():\n import psutil", "import json"),
    (spawning_and_signalling_live_in_process, "agent/a.py", "import subprocess", "import signal"),
    (spawning_and_signalling_live_in_process, "cli/a.py", "os.killpg(1, 2)", "os.getpid()"),
    (spawning_and_signalling_live_in_process, "cli/a.py", "from os import kill", "os.open"),
    (spawning_and_signalling_live_in_process, "a.py", "asyncio.create_subprocess_exec()", "a.b"),
    (environment_is_read_at_the_edge, "cli/main.py", "os.environ['A']", "os.sep"),
    (environment_is_read_at_the_edge, "agent/a.py", "from os import getenv", "environ = {}"),
    (the_wall_clock_is_only_shown, "coordinator/a.py", "time.time()", "time.monotonic()"),
    (the_wall_clock_is_only_shown, "agent/a.py", "from time import time", "loop.time()"),
    (the_programs_random_numbers_are_left_alone, "a.py", "random.uniform(0, 1)", "a.uniform(0, 1)"),
    (nothing_is_unpickled_or_evaluated, "store/a.py", "import pickle", "import json"),
    (nothing_is_unpickled_or_evaluated, "store/a.py", "eval('1')", "model.eval()"),
    *(
        (files_are_opened_for_writing_in_one_place, "agent/a.py", bad, good)
        for bad, good in (
            ("open(path, 'w')", "open(path)"),
            ("open(path, mode='ab')", "open(path, 'rb')"),
            ("io.open(path, 'r+b')", "os.fdopen(fd, 'wb')"),
            ("Path(a).open('x')", "LogDir.open('logs')"),
            ("os.open(path, os.O_WRONLY)", "os.open(path, os.O_RDONLY | os.O_CLOEXEC)"),
            ("os.open(path, flags)", "os.open(os.devnull, os.O_RDWR)"),
            ("os.open(f'/tmp/{a}', flags=os.O_RDWR)", "os.open(f'/proc/{a}', os.O_WRONLY)"),
            ("path.write_text(a)", "path.read_text()"),
            ("os.mkfifo(path)", "make_pipe(path)"),
            ("tempfile.mkdtemp()", "tempfile.gettempdir()"),
        )
    ),
    (only_one_module_prints, "store/a.py", "print(1)", "say(1)"),
    (only_one_module_prints, "cli/a.py", "sys.stderr.write(a)", "sys.stderr.isatty()"),
    (only_one_module_prints, "cli/a.py", "os.write(2, a)", "os.write(fd, a)"),
    (a_module_is_short, "core/a.py", "x = 1\n" * 601, "x = 1\n" * 600),
    (
        a_function_is_short,
        "core/a.py",
        LONG_BODY,
        LONG_BODY.replace("    x = 1\n", "", 1),
    ),
    (objects_are_complete_when_they_are_made, "a.py", "a.on_lost = b", "self.on_lost = b"),
    (objects_are_complete_when_they_are_made, "a.py", "self.a._on_b: C = d", "A(on_lost=b)"),
    (imports_point_down, "core/a.py", "from rallypoint.wire import b", "import rallypoint.core.b"),
    (imports_point_down, "store/a.py", "import rallypoint.process.b", "import rallypoint.wire"),
    (
        imports_point_down,
        "process/a.py",
        "import rallypoint.coordinator",
        "import rallypoint.errors",
    ),
    (imports_point_down, "agent/a.py", "import rallypoint.testing", "import rallypoint.core"),
    (imports_point_down, "errors.py", "import rallypoint.core.b", "import enum"),
    (a_file_name_is_an_idea, "agent/utils.py", "", ""),
    (a_file_name_is_an_idea, "common/a.py", "", ""),
    (what_is_public_has_a_docstring, "core/a.py", "x = 1", '"""It says."""'),
    (
        what_is_public_has_a_docstring,
        "core/a.py",
        '"""M."""\nclass A: pass',
        '"""M."""\nclass _A: 0',
    ),
    (
        engines_are_named_in_their_packages_and_tables,
        "agent/a.py",
        "from rallypoint.register.etcd.store import EtcdEngine as Engine",
        '"""Of etcd."""\nHELP = "--rdzv-backend etcd\\n"',
    ),
    (
        engines_are_named_in_their_packages_and_tables,
        "cli/a.py",
        'if backend == "kubernetes": pass',
        'if backend == "tcp": pass',
    ),
    (nothing_is_put_off_in_a_comment, "README.md", "# TO" + "DO: later", "TODOS"),
    (
        no_test_imports_another,
        "tests/core/test_a.py",
        "from tests.core." + "test_b import c",
        "from tests.harness.b import c",
    ),
    (
        no_test_imports_another,
        "tests/harness/a.py",
        "def f():\n    from te" + "sts.core import a, test_b",
        "from tests.simulator import machine",
    ),
    (no_host_or_path_of_one_machine, "a.lock", "https://py" + "pi.org/simple", "PyPI"),
    (no_host_or_path_of_one_machine, "a.md", "cd /wo" + "rk/tree", "docs/work/a"),
)


@pytest.mark.parametrize(("rule", "path", "bad", "good"), SELF_TESTS)
def test_each_rule_catches_what_it_forbids(rule: Rule, path: str, bad: str, good: str) -> None:
    assert rule(path, bad) != []
    right_place = "agent/liveness.py" if rule is a_file_name_is_an_idea else path
    assert rule(right_place, good) == []


def modules_of(folder: Path, files: dict[str, str]) -> list[Module]:
    for name, text in files.items():
        file = folder / "rallypoint" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return read_modules(folder)


LINE = "x = 1\n"
STATE = """class Phase(Enum):
    OPEN = 1
class Host:
    def __init__(self): self.phase = Phase.OPEN
    def shut(self): self.phase, self.at = Phase.OPEN, self._loop.time()
"""
HOUSE_SELF_TESTS: tuple[
    tuple[Callable[[list[Module]], dict[str, str]], dict[str, str], str, dict[str, str]], ...
] = (
    # rule, a tree in which it must find this; what to write or (None) remove so that it does not
    (crowded_folders, {f"a/m{n}.py": "" for n in range(17)}, "a", {"a/b/c.py": ""}),
    (thin_folders, {"a/b/m1.py": "", "a/b/m2.py": ""}, "a/b", {"a/b/m3.py": ""}),
    (
        small_modules,
        {"a/s.py": LINE * 59, "a/b.py": "import rallypoint.a.s", "c/d.py": ""},
        "a/s.py",
        {"c/d.py": "import rallypoint.a.s"},
    ),
    (
        small_modules,
        {"a/s.py": LINE * 59, "a/b.py": "import rallypoint.a.s"},
        "a/s.py",
        {"a/s.py": LINE * 60},
    ),
    (states_beside_clocks, {"a.py": STATE}, "a.py Host", {"a.py": STATE.replace("time()", "x()")}),
    (
        states_beside_clocks,
        {"a.py": STATE},
        "a.py Host",
        {"a.py": STATE.replace("= Phase.OPEN, ", "= 1, ")},
    ),
    *(
        (callables_in_core, {"core/a.py": f"class A:\n{bad}"}, "core/a.py A", {"core/a.py": good})
        for bad, good in (
            (" f: Callable[[], int]", "class A:\n def f(self, g: Callable[[], int]): g()"),
            (" def __init__(self, f: Callable[[], int]): self.f = f", "class A:\n f: int"),
            (" def __init__(self, f: A | None): self.a, self.f = 1, f\nA = Callable[[], int]", ""),
            (" def f(self): self.g = partial(g, 1)", "class A:\n def f(self): self.g = h(1)"),
            (" def f(self): self.g = lambda: 1", "class A:\n def f(self): g = lambda: 1"),
        )
    ),
    (
        callables_in_core,
        {"cli/launch/machine.py": "class A:\n f: Callable[[], int]"},
        "cli/launch/machine.py A",
        {"cli/launch/machine.py": "class A:\n f: int"},
    ),
    *(
        (
            hosts_that_decide,
            {"coordinator/jobs.py": f"def f(self):\n {bad}"},
            f"coordinator/jobs.py {found}",
            {"coordinator/jobs.py": f"def f(self):\n {good}"},
        )
        for bad, found, good in (
            ("if self._lives.waits: g()", "self._lives.waits", "g(self._lives.waits)"),
            ("while not a.b._lives.c[1]: g()", "a.b._lives.c", "for each in self._lives.c: g()"),
            ("a = self._lives\n if a.b: g()", "a", "a = self._lives\n g(a.b)"),
            ("a = 1 + self._lives.b\n return g if a else h", "a", "a = self.b\n return a or g"),
            (
                "return self._lives.b and g()",
                "self._lives.b",
                "self.a = self._lives.b\n return self or g",
            ),
            ("[g for each in h if self._lives.b]", "self._lives.b", "g(*(self._lives.b))"),
            ("match self._lives.b:\n  case 1: g()", "self._lives.b", "if step(self._lives): g()"),
        )
    ),
    (
        uses_of_the_library,
        {"a.py": "def f():\n    from rallypoint.elastic import timer", "elastic/timer.py": ""},
        "a.py",
        {"a.py": "def f():\n    from rallypoint import elastically"},
    ),
    (
        uses_at_import,
        {
            "a.py": "import rallypoint.elastic.timer",
            "elastic/timer.py": "",
            "elastic/__init__.py": "",
        },
        "a.py",
        {"a.py": "def f():\n    import rallypoint.elastic.timer"},
    ),
    (
        import_cycles,
        {"a.py": "def f():\n    import rallypoint.b\n", "b.py": "import rallypoint.a\n"},
        "rallypoint.a",
        {"a.py": ""},
    ),
)


@pytest.mark.parametrize(("rule", "files", "found", "mended"), HOUSE_SELF_TESTS)
def test_rules_of_the_whole_package_catch_what_they_forbid(
    rule: Callable[[list[Module]], dict[str, str]],
    files: dict[str, str],
    found: str,
    mended: dict[str, str],
    tmp_path: Path,
) -> None:
    assert list(rule(modules_of(tmp_path, files))) == [found]
    assert found not in rule(modules_of(tmp_path, mended))


def test_an_exception_is_refused_when_it_is_not_needed_any_more() -> None:
    found = {"a/b.py": "a/b.py is small"}
    assert unexpected(found, {"a/b.py": "why"}) == unexpected(found, {"a/": "why"}) == []
    assert unexpected(found, {}) == ["a/b.py is small"]
    assert unexpected(found, {"a/": "why", "c.py": "why"}) == ["c.py is excepted without need"]


def test_every_rule_has_a_self_test() -> None:
    assert {case[0] for case in SELF_TESTS} == {*PACKAGE_RULES, *TEXT_RULES}
    assert {case[0] for case in HOUSE_SELF_TESTS} == {rule for rule, _ in HOUSE_RULES}
