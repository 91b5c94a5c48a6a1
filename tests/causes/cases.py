"""Programs that fail, and what is to be said of each. `make_outputs.py` runs them; what they wrote
is in `outputs`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

PACKAGES = (
    "absl-py==2.5.1",
    "better-exceptions==0.3.3",
    "click==8.5.1",
    "colorlog==6.12.0",
    "hydra-core==1.3.8",
    "ipykernel==7.4.0",
    "ipython==9.18.1",
    "loguru==0.7.3",
    "nbclient==0.11.0",
    "numpy==2.4.6",
    "pandas==3.1.1",
    "papermill==2.7.0",
    "pretty-errors==1.2.25",
    "pydantic==2.14.4",
    "pytest==9.2.0",
    "python-json-logger==4.2.0",
    "requests==2.34.2",
    "rich==15.0.0",
    "stackprinter==0.2.13",
    "structlog==26.1.0",
    "tenacity==9.2.1",
    "torch==2.13.0",
    "tqdm==4.70.1",
    "typer==0.29.2",
)
"""With these the outputs were made."""

RUN = "{python} train.py"


class Case(NamedTuple):
    """A program, and the first row of the right error; "" where only its last lines tell. An error
    that ends with "..." is longer."""

    error: str
    program: str
    needs: str = ""
    """A package of `PACKAGES`, or `python3.13`."""
    command: str = RUN
    environment: tuple[str, ...] = ()
    last: str = ""
    """The last line that tells, where there is no error."""
    directory: str = ""
    """The files of a program that is no single text."""


DIVIDE = """
def divide(a, b):
    return a / b


def train(steps):
    for step in range(steps):
        divide(step, 0)


"""
ZERO = "ZeroDivisionError: division by zero"
LOSS = "ValueError: loss is NaN at step 7"


def _raises(head: str = "", call: str = "train(3)", tail: str = "") -> str:
    return f"{head}{DIVIDE}{call}\n{tail}"


def _guarded(head: str, handler: str) -> str:
    body = dedent(handler).replace("\n", "\n        ")
    return (
        f"{head}{DIVIDE}def main():\n    try:\n        train(3)\n    except Exception as error:\n"
        f"        {body}\n\n\nmain()\n"
    )


PLAIN: dict[str, Case] = {
    "plain": Case(ZERO, _raises()),
    "plain_python313": Case(ZERO, _raises(), "python3.13", environment=("FORCE_COLOR=1",)),
    "plain_module": Case(ZERO, _raises(), command="{python} -m train"),
    "plain_command": Case(
        LOSS, "", command="{python} -c \"raise ValueError('loss is NaN at step 7')\""
    ),
    "plain_stdin": Case(ZERO, _raises(), command="{python} < train.py"),
    "chained": Case(
        "RuntimeError: no checkpoint",
        "try:\n    {}['weights']\nexcept KeyError as error:\n"
        "    raise RuntimeError('no checkpoint') from error\n",
    ),
    "chained_during": Case(
        ZERO, _raises("", "try:\n    open('/no/such/file')\nexcept OSError:\n    train(1)")
    ),
    "text_of_many_lines": Case(
        LOSS,
        "raise ValueError('loss is NaN at step 7\\n' + '\\n'.join(\n"
        "    f'param {n}: nan' for n in range(40)))\n",
    ),
    "text_begins_below": Case(
        "RuntimeError: shapes do not match",
        "raise RuntimeError('\\nshapes do not match\\nleft: 3\\nright: 4')\n",
    ),
    "notes": Case(
        LOSS,
        "error = ValueError('loss is NaN at step 7')\nerror.add_note('rank 3, batch 17')\n"
        "raise error\n",
    ),
    "class_within": Case(
        "Model.Diverged: at step 9",
        "class Model:\n    class Diverged(Exception):\n        pass\n\n\n"
        "raise Model.Diverged('at step 9')\n",
    ),
    "group": Case(
        "ValueError: shard 2",
        "def load():\n    raise ExceptionGroup('two shards', [OSError('shard 1'), "
        "ValueError('shard 2')])\n\n\nload()\n",
    ),
    "task_group": Case(
        LOSS,
        "import asyncio\n\n\nasync def step():\n    raise ValueError('loss is NaN at step 7')\n\n\n"
        "async def main():\n    async with asyncio.TaskGroup() as group:\n"
        "        group.create_task(step())\n\n\nasyncio.run(main())\n",
    ),
    "syntax": Case("SyntaxError: '(' was never closed", "import os\nprint(os.getcwd(\n"),
    "indentation": Case(
        "IndentationError: expected an indented block after 'for' statement on line 1",
        "for step in range(3):\nprint(step)\n",
    ),
    "recursion": Case(
        "RecursionError: maximum recursion depth exceeded",
        "def f():\n    f()\n\n\nf()\n",
    ),
    "exit_hooks": Case(
        ZERO,
        _raises(
            "import atexit\nimport sys\n"
            "for n in range(60):\n"
            "    atexit.register(print, 'closing file', n, file=sys.stderr)\n"
        ),
    ),
    "ignored_at_exit": Case(
        ZERO,
        _raises(
            "class Noisy:\n    def __del__(self):\n        raise OSError('not closed')\n\n\n"
            "noisy = Noisy()\n"
        ),
    ),
    "atexit_error": Case(ZERO, _raises("import atexit\n\natexit.register(lambda: [][1])\n")),
    "hooked_traceback_at_exit": Case(
        ZERO,
        _raises(
            "import atexit\nimport logging\n\n\ndef upload():\n    try:\n"
            "        open('/no/such/file')\n    except OSError:\n"
            "        logging.exception('the upload failed')\n\n\natexit.register(upload)\n"
        ),
    ),
    "thread": Case(
        ZERO,
        _raises(
            "import sys\nimport threading\n",
            "thread = threading.Thread(target=train, args=(1,))\nthread.start()\nthread.join()\n"
            "sys.exit(1)",
        ),
    ),
    "process": Case(
        ZERO,
        _raises(
            "import multiprocessing\nimport sys\n",
            "if __name__ == '__main__':\n"
            "    process = multiprocessing.Process(target=train, args=(1,))\n"
            "    process.start()\n    process.join()\n    sys.exit(process.exitcode)",
        ),
    ),
    "pool": Case(
        ZERO,
        _raises(
            "import multiprocessing\n",
            "if __name__ == '__main__':\n    with multiprocessing.Pool(1) as pool:\n"
            "        pool.map(train, [1])",
        ),
    ),
    "futures": Case(
        ZERO,
        _raises(
            "from concurrent.futures import ProcessPoolExecutor\n",
            "if __name__ == '__main__':\n    with ProcessPoolExecutor(1) as pool:\n"
            "        pool.submit(train, 1).result()",
        ),
    ),
    "interrupted": Case(
        "killed by SIGINT",
        "import os\nimport signal\nimport time\n\nos.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(1)\n",
    ),
    "leaked_semaphore": Case(
        ZERO,
        _raises(
            "import multiprocessing\n\nmultiprocessing.set_start_method('spawn')\n"
            "from multiprocessing import shared_memory\n\n"
            "held = shared_memory.SharedMemory(create=True, size=16)\n"
        ),
    ),
    "other_handler": Case(
        ZERO,
        _raises(
            "",
            "try:\n    train(3)\nexcept KeyboardInterrupt:\n    print('interrupted')",
        ),
    ),
    "tasks_forgotten": Case(
        ZERO,
        _raises(
            "import asyncio\n",
            "async def other():\n    raise OSError('of another task')\n\n\nasync def main():\n"
            "    task = asyncio.create_task(other())\n    await asyncio.sleep(0)\n"
            "    train(1)\n\n\n"
            "asyncio.run(main())",
        ),
    ),
    "no_frames": Case(
        LOSS, "import sys\n\nsys.tracebacklimit = 0\nraise ValueError('loss is NaN at step 7')\n"
    ),
    "test_runner": Case(
        ZERO,
        _raises(
            "import unittest\n",
            "class T(unittest.TestCase):\n    def test_train(self):\n        train(1)\n\n\n"
            "unittest.main()",
        ),
    ),
}

HANDLED: dict[str, Case] = {
    "handled_then_refused": Case(
        "",
        "import sys\nimport traceback\n\ntry:\n    int('x')\nexcept ValueError:\n"
        "    traceback.print_exc()\nprint('starting fresh', file=sys.stderr)\n"
        "sys.exit('config error: lr must be positive')\n",
    ),
    "handled_then_exit_3": Case(
        "",
        "import logging\nimport os\nimport sys\n\n\ndef load():\n    try:\n"
        "        open('/no/such')\n"
        "    except OSError:\n        logging.exception('no cache')\n\n\nload()\n"
        "for step in range(30):\n    print('step', step, 'ok', file=sys.stderr, flush=True)\n"
        "os._exit(3)\n",
    ),
    "handled_then_raised": Case(
        LOSS,
        "import traceback\n\ntry:\n    int('x')\nexcept ValueError:\n    traceback.print_exc()\n"
        "raise ValueError('loss is NaN at step 7')\n",
    ),
    "thread_long_ago": Case(
        "",
        _raises(
            "import sys\nimport threading\n",
            "thread = threading.Thread(target=train, args=(1,))\nthread.start()\nthread.join()\n"
            "for step in range(40):\n    print('step', step, 'ok', file=sys.stderr)\n"
            "sys.exit('the disk is full')",
        ),
    ),
    "logged_then_exit": Case(
        ZERO,
        _guarded(
            "import logging\nimport sys\n", "logging.exception('training failed')\nsys.exit(1)"
        ),
    ),
    "logged_at_the_top": Case(
        ZERO,
        _raises(
            "import logging\nimport sys\n",
            "try:\n    train(3)\nexcept Exception:\n    logging.exception('training failed')\n"
            "    print('see the wiki', file=sys.stderr)\n    sys.exit(1)",
        ),
    ),
    "logged_then_saved": Case(
        ZERO,
        _guarded(
            "import logging\nimport sys\n\nlogging.basicConfig(level=logging.INFO)\n",
            "logging.exception('failed')\nlogging.info('saving the state')\nsys.exit(3)",
        ),
    ),
    "main_returns_its_code": Case(
        ZERO,
        _guarded(
            "import logging\nimport sys\n\nlogging.basicConfig(level=logging.INFO)\n",
            "logging.exception('failed')\nlogging.info('saving the state')\nreturn 2",
        ).replace("\nmain()\n", "\nsys.exit(main())\n"),
    ),
    "logged_and_survived": Case(
        "",
        _guarded(
            "import logging\nimport sys\n\nlogging.basicConfig(level=logging.INFO)\n",
            "logging.exception('no cache')\nlogging.info('starting fresh')",
        )
        + "sys.exit('the disk is full')\n",
    ),
    "arguments": Case(
        "",
        "import argparse\n\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float, required=True)\nparser.parse_args()\n",
    ),
}

DECORATED: dict[str, Case] = {
    "loguru": Case(
        ZERO,
        _raises(
            "import sys\n\nfrom loguru import logger\n",
            "@logger.catch(onerror=lambda _: sys.exit(1))\ndef main():\n    train(3)\n\n\nmain()",
        ),
        "loguru",
    ),
    "loguru_chained": Case(
        ZERO,
        _raises(
            "import sys\n\nfrom loguru import logger\n",
            "@logger.catch(onerror=lambda _: sys.exit(1))\ndef main():\n    try:\n"
            "        {}['weights']\n    except KeyError:\n        train(3)\n\n\nmain()",
        ),
        "loguru",
    ),
    "loguru_handled": Case(
        "",
        _raises(
            "import sys\n\nfrom loguru import logger\n",
            "@logger.catch\ndef main():\n    train(3)\n\n\nmain()\n"
            "logger.info('going on without')\nsys.exit('the disk is full')",
        ),
        "loguru",
    ),
    "loguru_json": Case(
        ZERO,
        _guarded(
            "import sys\n\nfrom loguru import logger\n\nlogger.remove()\n"
            "logger.add(sys.stderr, serialize=True, diagnose=False)\n",
            "logger.exception('failed')\nsys.exit(1)",
        ),
        "loguru",
    ),
    "loguru_plain": Case(
        ZERO,
        _guarded(
            "import sys\n\nfrom loguru import logger\n\nlogger.remove()\n"
            "logger.add(sys.stderr, backtrace=False, diagnose=False, colorize=True)\n",
            "logger.exception('failed')\nsys.exit(1)",
        ),
        "loguru",
    ),
    "rich": Case(ZERO, _raises("from rich.traceback import install\n\ninstall()\n"), "rich"),
    "rich_chained": Case(
        ZERO,
        _raises(
            "from rich.traceback import install\n\ninstall(show_locals=True)\n",
            "try:\n    {}['weights']\nexcept KeyError:\n    train(3)",
        ),
        "rich",
    ),
    "rich_ascii": Case(
        ZERO,
        _raises("from rich.traceback import install\n\ninstall()\n"),
        "rich",
        environment=("PYTHONIOENCODING=ascii", "PYTHONUTF8=0", "LC_ALL=C"),
    ),
    "rich_narrow": Case(
        ZERO,
        _raises("from rich.traceback import install\n\ninstall()\n"),
        "rich",
        environment=("COLUMNS=45",),
    ),
    "rich_log": Case(
        ZERO,
        _guarded(
            "import logging\nimport sys\n\nfrom rich.console import Console\n"
            "from rich.logging import RichHandler\n\nlogging.basicConfig(format='%(message)s', "
            "handlers=[RichHandler(rich_tracebacks=True, console=Console(stderr=True))])\n",
            "logging.exception('failed')\nsys.exit(1)",
        ),
        "rich",
    ),
    "rich_syntax": Case(
        "SyntaxError: '(' was never closed",
        "from rich.traceback import install\n\ninstall()\n"
        "exec(compile('print((', 'model.py', 'exec'))\n",
        "rich",
    ),
    "rich_group": Case(
        "ValueError: shard 2",
        "from rich.traceback import install\n\ninstall()\n"
        "raise ExceptionGroup('two shards', [OSError('shard 1'), ValueError('shard 2')])\n",
        "rich",
    ),
    "rich_colour": Case(
        ZERO,
        _raises(
            "from rich.console import Console\nfrom rich.traceback import install\n\n"
            "install(console=Console(stderr=True, force_terminal=True, width=90))\n"
        ),
        "rich",
    ),
    "typer": Case(
        ZERO,
        _raises(
            "import typer\n",
            "app = typer.Typer()\n\n\n@app.command()\ndef go():\n    train(3)\n\n\napp()",
        ),
        "typer",
    ),
    "click_usage": Case(
        "",
        "import click\n\n\n@click.command()\n@click.option('--lr', type=float, required=True)\n"
        "def main(lr):\n    print(lr)\n\n\nmain()\n",
        "click",
    ),
    "stackprinter": Case(
        ZERO,
        _raises("import stackprinter\n\nstackprinter.set_excepthook()\n"),
        "stackprinter",
    ),
    "stackprinter_chained": Case(
        ZERO,
        _raises(
            "import stackprinter\n\nstackprinter.set_excepthook()\n",
            "try:\n    {}['weights']\nexcept KeyError:\n    train(3)",
        ),
        "stackprinter",
    ),
    "better_exceptions": Case(
        ZERO, _raises("import better_exceptions\n\nbetter_exceptions.hook()\n"), "better-exceptions"
    ),
    "pretty_errors": Case(ZERO, _raises("import pretty_errors  # noqa: F401\n"), "pretty-errors"),
    "structlog": Case(
        ZERO,
        _guarded(
            "import sys\n\nimport structlog\n\nlog = structlog.get_logger()\n",
            "log.exception('failed')\nsys.exit(1)",
        ),
        "structlog",
    ),
    "structlog_json": Case(
        ZERO,
        _guarded(
            "import sys\n\nimport structlog\n\nstructlog.configure(processors=[\n"
            "    structlog.processors.format_exc_info,\n    structlog.processors.JSONRenderer(),\n"
            "], logger_factory=structlog.PrintLoggerFactory(sys.stderr))\n"
            "log = structlog.get_logger()\n",
            "log.exception('failed')\nsys.exit(1)",
        ),
        "structlog",
    ),
    "structlog_fields": Case(
        ZERO,
        _guarded(
            "import sys\n\nimport structlog\n\nstructlog.configure(processors=[\n"
            "    structlog.processors.dict_tracebacks,\n    structlog.processors.JSONRenderer(),\n"
            "], logger_factory=structlog.PrintLoggerFactory(sys.stderr))\n"
            "log = structlog.get_logger()\n",
            "log.exception('failed')\nsys.exit(1)",
        ),
        "structlog",
    ),
    "json_logger": Case(
        ZERO,
        _guarded(
            "import logging\nimport sys\n\nfrom pythonjsonlogger.json import JsonFormatter\n\n"
            "handler = logging.StreamHandler()\nhandler.setFormatter(JsonFormatter())\n"
            "logging.basicConfig(handlers=[handler])\n",
            "logging.exception('failed')\nsys.exit(1)",
        ),
        "python-json-logger",
    ),
    "log_head_on_each_line": Case(
        ZERO,
        _guarded(
            "import logging\nimport sys\nimport traceback\n\nlogging.basicConfig(\n"
            "    format='%(asctime)s %(process)d %(levelname)s %(message)s')\n",
            "for line in traceback.format_exc().splitlines():\n    logging.error(line)\n"
            "sys.exit(1)",
        ),
    ),
    "colorlog": Case(
        ZERO,
        _guarded(
            "import sys\n\nimport colorlog\n\ncolorlog.basicConfig(\n"
            "    format='%(log_color)s%(levelname)s:%(name)s:%(message)s')\n",
            "colorlog.getLogger().exception('failed')\nsys.exit(1)",
        ),
        "colorlog",
    ),
    "ipython": Case(ZERO, _raises(), "ipython", "{python} -m IPython --colors=nocolor train.py"),
    "ipython_colour": Case(ZERO, _raises(), "ipython", "{python} -m IPython train.py"),
    "ipython_verbose": Case(
        ZERO,
        _raises(
            "import sys\n\nfrom IPython.core import ultratb\n\n"
            "sys.excepthook = ultratb.VerboseTB(theme_name='nocolor')\n"
        ),
        "ipython",
    ),
    "notebook": Case(
        ZERO,
        _raises(
            "import nbformat\nfrom nbclient import NotebookClient\n"
            "from nbformat.v4 import new_code_cell, new_notebook\n",
            "cells = [new_code_cell('def f(x):\\n    return 1 / x'), new_code_cell('f(0)')]\n"
            "NotebookClient(new_notebook(cells=cells)).execute()",
        ),
        "nbclient",
    ),
    "papermill": Case(
        ZERO,
        "import nbformat\nimport papermill\nfrom nbformat.v4 import new_code_cell, new_notebook\n\n"
        "cells = [new_code_cell('def f(x):\\n    return 1 / x'), new_code_cell('f(0)')]\n"
        "kernel = {'kernelspec': {'name': 'python3', 'display_name': 'p', 'language': 'python'}}\n"
        "nbformat.write(new_notebook(cells=cells, metadata=kernel), 'a.ipynb')\n"
        "papermill.execute_notebook('a.ipynb', 'b.ipynb')\n",
        "papermill",
    ),
}

_TEST = f"{DIVIDE}def test_train():\n    train(1)\n"
RUNNERS: dict[str, Case] = {
    "pytest": Case(ZERO, _TEST, "pytest", "{python} -m pytest train.py"),
    "pytest_short": Case(ZERO, _TEST, "pytest", "{python} -m pytest -q --tb=short train.py"),
    "pytest_native": Case(ZERO, _TEST, "pytest", "{python} -m pytest -q --tb=native train.py"),
    "pytest_assert": Case(
        "AssertionError: assert 3 == 4",
        "def test_train():\n    loss = 3\n    assert loss == 4\n",
        "pytest",
        "{python} -m pytest -q train.py",
    ),
    "pytest_import": Case(
        "ModuleNotFoundError: No module named 'no_such_module'",
        "import no_such_module  # noqa: F401\n",
        "pytest",
        "{python} -m pytest -q train.py",
    ),
    "doctest": Case(
        ZERO,
        'def f():\n    """\n    >>> f()\n    3\n    """\n    return 1 / 0\n',
        command="{python} -m doctest train.py",
    ),
    "two_ranks_at_once": Case(
        ZERO,
        _raises(),
        command="{python} train.py 2> a; paste -d'\\n' <(sed 's/^/0: /' a) <(sed 's/^/1: /' a) >&2;"
        " exit 1",
    ),
    "container_log": Case(
        ZERO, _raises(), command="{python} train.py 2>&1 | sed 's/^/worker_1  | /' >&2; exit 1"
    ),
    "bar_left_open": Case(
        ZERO,
        _raises(
            "from tqdm import tqdm\n\nbar = tqdm(total=10)\nbar.update(5)\n",
        ),
        "tqdm",
    ),
    "bar_around": Case(
        ZERO,
        _raises(
            "from tqdm import tqdm\n",
            "for epoch in tqdm(range(3), desc='epoch'):\n    train(epoch)",
        ),
        "tqdm",
    ),
    "hydra": Case(
        ZERO,
        _raises(
            "import hydra\n",
            "@hydra.main(version_base=None)\ndef main(config):\n    train(3)\n\n\nmain()",
        ),
        "hydra-core",
    ),
    "absl": Case(
        ZERO,
        _raises("from absl import app\n", "app.run(lambda _: train(3))"),
        "absl-py",
    ),
    "pydantic": Case(
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Config",
        _guarded(
            "import logging\nimport sys\n\nfrom pydantic import BaseModel\n\n\n"
            "class Config(BaseModel):\n    lr: float\n    steps: int\n\n\n"
            "def train(steps):\n    Config(lr='fast', steps='many')\n\n\n",
            "logging.exception('bad config')\nsys.exit(2)",
        ).replace(DIVIDE, ""),
        "pydantic",
    ),
    "tenacity": Case(
        "tenacity.RetryError: RetryError[<Future at 0x7f0000000000 state=finished raised "
        "ZeroDivisionError>]",
        _raises(
            "import tenacity\n",
            "tenacity.retry(stop=tenacity.stop_after_attempt(2))(train)(1)",
        ),
        "tenacity",
    ),
    "requests": Case(
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=9): Max "
        'retries exceeded with url: / (Caused by NewConnectionError("HTTPConnection('
        "host='127.0.0.1', port=9): Failed to establish a new connection: [Errno 111] Connection "
        'refused"))',
        "import requests\n\nrequests.get('http://127.0.0.1:9/')\n",
        "requests",
    ),
    "numpy": Case(
        "ValueError: operands could not be broadcast together with shapes (3,) (4,)",
        "import numpy\n\nnumpy.zeros(3) + numpy.zeros(4)\n",
        "numpy",
    ),
    "torch_shapes": Case(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)",
        "import torch\n\ntorch.nn.Linear(4, 2)(torch.zeros(2, 3))\n",
        "torch",
    ),
    "torch_loader": Case(
        ZERO,
        "import torch\n\n\nclass Data(torch.utils.data.Dataset):\n    def __len__(self):\n"
        "        return 4\n\n    def __getitem__(self, index):\n        return 1 / 0\n\n\n"
        "for batch in torch.utils.data.DataLoader(Data(), num_workers=1):\n    print(batch)\n",
        "torch",
    ),
    "torch_spawn": Case(
        ZERO,
        "import torch.multiprocessing\n\n\ndef work(rank):\n    1 / 0\n\n\n"
        "if __name__ == '__main__':\n    torch.multiprocessing.spawn(work, nprocs=2)\n",
        "torch",
    ),
    "torch_rank": Case(
        LOSS,
        "import torch.distributed as dist\n\n"
        "dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)\n"
        "raise ValueError('loss is NaN at step 7')\n",
        "torch",
    ),
    "torch_compiled": Case(
        "torch._dynamo.exc.Unsupported: Call to `torch._dynamo.graph_break()`",
        "import torch\n\n\n@torch.compile(fullgraph=True, backend='eager')\ndef f(x):\n"
        "    torch._dynamo.graph_break()\n    return x\n\n\nf(torch.ones(3))\n",
        "torch",
    ),
    "cpp_exception": Case(
        "loss is NaN at step 7",
        '#include <stdexcept>\nint main() { throw std::runtime_error("loss is NaN at step 7"); }\n',
        command="g++ -x c++ train.py -o train && ./train",
    ),
    "cpp_exception_after_a_handled_one": Case(
        "loss is NaN at step 7",
        "import os\nimport subprocess\nimport sys\nimport traceback\n\ntry:\n    int('x')\n"
        "except ValueError:\n    traceback.print_exc()\n"
        "sys.stderr.flush()\n"
        "source = '#include <stdexcept>\\nint main() { throw std::runtime_error'\n"
        "source += '(\"loss is NaN at step 7\"); }'\n"
        "subprocess.run(['g++', '-x', 'c++', '-', '-o', 'native'], input=source, text=True)\n"
        "os.execv('./native', ['native'])\n",
    ),
    "assertion": Case(
        "native: native.cpp:2: int main(): Assertion `1 == 2' failed.",
        "#include <cassert>\nint main() { assert(1 == 2); }\n",
        command="cp train.py native.cpp && g++ native.cpp -o native && ./native",
    ),
}

PROGRAMS = Path(__file__).with_name("programs")


def _from_directory(directory: Path) -> Case:
    told = tomllib.loads((directory / "case.toml").read_text())
    program = (directory / "train.py").read_text()
    return Case(told.pop("error", ""), program, directory=directory.name, **told)


CASES: dict[str, Case] = {
    **(PLAIN | HANDLED | DECORATED | RUNNERS),
    **{each.name: _from_directory(each) for each in sorted(PROGRAMS.iterdir())},
}
