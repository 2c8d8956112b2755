"""Text on a terminal: a console that names from a model cannot steer, and tables on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from onepass.report.units import plain

MOST_COLUMNS, FOLDED = 1000, 24  # of a table; of a text that is folded, at least


class Terminal(Console):
    """A console that leaves out control characters of what it is given: an escape sequence in the name of
    an untrusted model's node could rewrite the screen."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich does, without control characters except rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))

    def show(self, made: Table) -> None:
        """A table, wider than the terminal where figures would be cut: the terminal then wraps the lines."""
        least = self.measure(made, options=self.options.update(width=MOST_COLUMNS)).minimum
        Terminal(file=self.file, width=max(self.width, least)).print(made)

    def say(self, *lines: str) -> None:
        """Each line as it is: no markup, no colour, wrapped by the terminal only."""
        for line in lines:
            self.print(line, markup=False, highlight=False, soft_wrap=True)


def table(
    texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]], title: str = "",
    caption: str = "",
) -> Table:  # fmt: skip
    """A table: columns `texts` are left-aligned and wrap, then `numbers`, right-aligned, which do not."""
    rows = list(rows)
    widest = [max(map(len, cells)) for cells in zip(*rows, strict=True)] or [0] * len([*texts, *numbers])
    columns = [
        Column(heading, overflow="fold", min_width=min(FOLDED, width))
        for heading, width in zip(texts, widest[: len(texts)], strict=True)
    ]
    columns += [
        Column(heading, justify="right", no_wrap=True, min_width=width)
        for heading, width in zip(numbers, widest[len(texts) :], strict=True)
    ]
    made = Table(
        *columns, title=Text(title) if title else None, title_justify="left", caption=caption or None,
        caption_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for row in rows:
        made.add_row(*map(Text, row))
    return made
