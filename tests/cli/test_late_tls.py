"""An agent does without OpenSSL until something uses TLS, and then all works as always."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness.certificates import make_certificates
from tests.harness.one_agent import environment
from tests.harness.programs import run_program, run_python

WORKER = """
import os, pathlib
maps = pathlib.Path(f"/proc/{os.getppid()}/maps").read_text()
print("agent:", "rallypoint" in pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text(),
      "libssl" in maps or "/_ssl." in maps)
"""
TLS = """
import sys
sys.modules["__main__"].__file__ = "/bin/rallypoint"  # So a process looks that is a command.
from rallypoint.cli.late_tls import load_tls_late
load_tls_late()
import asyncio
assert "_ssl" not in sys.modules

async def echo(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()

async def ask(context=None, **how):
    reader, writer = await asyncio.open_connection("127.0.0.1", how.pop("port"), ssl=context, **how)
    writer.write(b"hello\\n")
    answer = await reader.readline()
    writer.close()
    return answer

async def main():
    plain = await asyncio.start_server(echo, "127.0.0.1", 0)
    print(await ask(port=plain.sockets[0].getsockname()[1]), "_ssl" in sys.modules)
    import ssl
    from ssl import SSLSocket
    assert asyncio.base_events.ssl.SSLSocket is SSLSocket
    folder = sys.argv[1]
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(f"{folder}/server.pem", f"{folder}/server.key")
    secured = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=serving)
    context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # The authority of a test has no key usage.
    print(await ask(context, port=secured.sockets[0].getsockname()[1]), "_ssl" in sys.modules)
    try:
        await ask(ssl.create_default_context(), port=secured.sockets[0].getsockname()[1])
    except ssl.SSLCertVerificationError:
        print("refused")

asyncio.run(main())
assert type(asyncio.sslproto) is type(asyncio)
"""
PROGRAM = """
import rallypoint.cli.late_tls as late, asyncio, sys
late.load_tls_late()
print("_ssl" in sys.modules, asyncio.base_events.ssl is sys.modules["ssl"])
"""


def python(script: str, *words: str) -> str:
    return run_python(script, *words, check=True).stdout


def test_the_agent_of_a_job_without_tls_has_no_openssl_for_it(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    ran = run_program(
        [sys.executable, "-m", "rallypoint", "run", "--quiet", "worker.py"],
        cwd=tmp_path,
        env=environment(tmp_path, "tls"),
        check=True,
    )
    assert ran.stdout == "agent: True False\n"


def test_asyncio_speaks_tls_as_soon_as_somebody_asks_for_it(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path)
    ran = run_python(TLS, str(folder))
    assert ran.stderr == ""
    assert ran.stdout == "b'hello\\n' False\nb'hello\\n' True\nrefused\n"


def test_a_program_that_imports_the_command_has_tls_at_once() -> None:
    assert python(PROGRAM) == "True True\n"
