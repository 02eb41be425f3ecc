"""The parser of a command's options."""

import argparse
import os
from typing import NoReturn

from fusiond.model.errors import RequestError


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints as RequestErrors: one line, exit status 2. How wide a terminal is it asks the
    system itself: `shutil` and the decompressors that come with it cost more than a lookup."""

    def _get_formatter(self) -> argparse.HelpFormatter:
        try:
            columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(1).columns
        except (OSError, ValueError):
            columns = 80
        return argparse.HelpFormatter(self.prog, width=(columns or 80) - 2)

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message} (see `{self.prog} --help`)")
