"""A table that fits the terminal and breaks no word: turned on its side, or into blocks, where its columns do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Grid:
    """Rows under a header. Columns that are `right` hold numbers; like the first, they break no cell while others can.

    The first column names its row.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    right: Sequence[bool]
    leading: int = 0
    """Empty lines between rows."""
    total: bool = False
    """Whether the last row is the sum of those above."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = list(zip(self.header, *self.rows, strict=True))
        on_its_side = Grid([str(name) for name in columns[0]], columns[1:], [False, *[True] * len(self.rows)])
        for grid in (self, on_its_side):
            for between in (3, 2):
                widths = grid._widths(options.max_width, between)
                if widths is not None:
                    yield grid._table(widths, between)
                    return
        for row in self.rows:
            yield from self._block(row)

    def _widths(self, width: int, between: int) -> list[int] | None:
        """The width of every column, with so much between them; None where a word would have to be broken."""
        room = width - between * (len(self.header) - 1) - 2
        most, words, cells = [], [], []  # of every column: its longest text, word, and cell or word
        for name, *column in zip(self.header, *self.rows, strict=True):
            longest = max((cell_len(str(cell)) for cell in column), default=0)
            most.append(max(longest, cell_len(name)))
            words.append(max(cell_len(word) for cell in ("-", name, *column) for word in str(cell).split()))
            cells.append(max(longest, words[-1]))
        named = [right or i == 0 for i, right in enumerate(self.right)]
        for whole in (None, named, self.right, [False] * len(most)):  # which columns break no cell
            least = most if whole is None else [c if w else b for w, c, b in zip(whole, cells, words, strict=True)]
            spare = room - sum(least)
            if spare >= 0:
                wanted = [wide - narrow for wide, narrow in zip(most, least, strict=True)]
                share = min(1.0, spare / (sum(wanted) or 1))
                return [narrow + int(share * more) for narrow, more in zip(least, wanted, strict=True)]
        return None

    def _table(self, widths: Sequence[int], between: int) -> Table:
        padding = (0, 1, 0, between - 2)  # beside the blank that the box puts between columns
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding, leading=self.leading)
        for name, right, width in zip(self.header, self.right, widths, strict=True):
            table.add_column(Text(name), justify="right" if right else "left", width=width)
        for i, row in enumerate(self.rows):
            if self.total and i == len(self.rows) - 1:
                table.add_section()
            table.add_row(*map(_text, row))
        return table

    def _block(self, row: Sequence[str | Text]) -> RenderResult:
        """A row as lines of its own: each cell that holds something after the name of its column."""
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold")
        for i, (name, cell) in enumerate(zip(self.header, row, strict=True)):
            if str(cell):
                block.add_row(Text(f"  {name}" if i else name), _text(cell))
        yield block
        yield Text()


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)
