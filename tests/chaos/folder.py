"""The directory of a run, which ends with the run whatever ends it."""

from __future__ import annotations

from server_process import ServerProcess


class Folder(ServerProcess):
    """A private directory. What removes those of servers, even after a SIGKILL, removes this one."""

    def __init__(self) -> None:
        super().__init__()
        self.launch(["sleep", "infinity"])
