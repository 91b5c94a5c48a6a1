"""The link to one host: an ssh client, and the messages that go through it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rallypoint.cli.launch.machine import LinkEnded
from rallypoint.process.ssh_client import SshClient
from rallypoint.wire.launch_link import FromHost, Look, ToHost, frame, reader_of_host

_OF_SSH = 255
_NO_PROGRAM = (126, 127)


class HostLink:
    """The link to the agent's side of one host, through an ssh client. Call `run` once.

    The other methods have an effect while the client runs, and none before or after that; only
    `kill` takes effect also while it starts.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        look: Look,
        on_message: Callable[[str, FromHost], Awaitable[None]],
        on_end: Callable[[LinkEnded], None],
    ) -> None:
        """`name`: the host's. `argv`: the ssh command.

        `look`: the first message to the host. `on_message` is called with the name and each
        message, and `on_end` once, with the reason of the end.
        """
        self._name, self._argv, self._look = name, argv, look
        self._on_message, self._on_end = on_message, on_end
        self._client: SshClient | None = None
        self._reader = reader_of_host()
        self._has_answered = self._is_killed = False

    async def run(self) -> None:
        """Start the ssh client, pass on the host's messages to its end, and report the end."""
        try:
            client = self._client = await SshClient.start(self._argv)
        except OSError as error:
            why = f"{self._argv[0]} can't be run: {error.strerror}: give --ssh"
            self._on_end(LinkEnded(self._name, why, is_mistake=True))
            return
        if self._is_killed:  # It was meanwhile.
            client.kill()
        client.send(frame(self._look))
        if trouble := await self._listen(client):
            client.kill()
        code = await client.wait()
        self._on_end(LinkEnded(self._name, *self._why(client, code, trouble)))

    def send(self, message: ToHost) -> None:
        """Send the host a message. Never blocks."""
        if self._client is not None:
            self._client.send(frame(message))

    def hang_up(self) -> None:
        """Close the sending side of the link."""
        if self._client is not None:
            self._client.hang_up()

    def kill(self) -> None:
        """Kill the ssh client without waiting for the host."""
        self._is_killed = True
        if self._client is not None:
            self._client.kill()

    async def _listen(self, client: SshClient) -> str:
        """Read the host's messages to their end, and return what is wrong with the link.

        Empty: nothing.
        """
        while data := await client.read():
            try:
                messages = self._reader.feed(data)
            except ValueError as error:
                return str(error)
            for message in messages:
                self._has_answered = True
                await self._on_message(self._name, message)
        return ""

    def _why(self, client: SshClient, code: int, trouble: str) -> tuple[str, bool]:
        said = client.last_words or self._reader.rest.decode("utf-8", "replace").strip()
        if trouble:
            return f"it sent output that is not Rallypoint's: {trouble}", True
        if code < 0:
            return f"ssh was killed by signal {-code}", False
        if self._has_answered or code == _OF_SSH:
            reached = "" if self._has_answered else "can't be reached: "
            how = f"ssh exited with {code}"
            return f"{reached}{said} ({how})" if said else f"{reached}{how}", False
        if code in _NO_PROGRAM:
            fix = "give --python FILE, the interpreter there that has rallypoint"
        elif "No module named" in said:
            fix = "install rallypoint there, or give --python FILE, an interpreter that has it"
        else:
            fix = "try ssh to this host by hand"
        return f"can't be used: {said or 'it says nothing'} (exit code {code}): {fix}", True
