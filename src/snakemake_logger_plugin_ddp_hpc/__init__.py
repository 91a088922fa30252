"""Snakemake's logger plugin `ddp-hpc`: what a workflow tells `ddp-hpc run`, one JSON object a line.

Snakemake finds it by the name of this package; without `--logger ddp-hpc` it does nothing.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from logging import LogRecord

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

KEPT = ("rule_name", "rule_msg", "output", "log")  # rule_msg: the executor's words, e.g. sbatch's


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """The options of the command line: `--logger-ddp-hpc-events`."""

    events: str = field(default=os.devnull, metadata={"help": "File to which events are appended."})


class LogHandler(LogHandlerBase):
    """Appends failed jobs to the file of events, beside Snakemake's own log."""

    writes_to_stream = False
    writes_to_file = False  # then Snakemake would name it among its logs
    has_filter = True  # else `--quiet` takes events away, too
    has_formatter = True
    needs_rulegraph = False

    def emit(self, record: LogRecord) -> None:
        """Append an event in a single call: a process that is killed leaves no half line."""
        if getattr(record, "event", None) == LogEvent.JOB_ERROR:
            content = {name: getattr(record, name) for name in KEPT}
            with suppress(OSError):  # a full disk must not end a workflow
                os.write(self._file, f"{json.dumps(content, default=str)}\n".encode())

    def __post_init__(self) -> None:
        assert isinstance(self.settings, LogHandlerSettings)
        self._file = os.open(self.settings.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        super().close()
