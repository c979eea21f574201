"""Small SVG drawings, each in a light and a dark form."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FIGURES = Path(__file__).parent.parent / "figures"


class Colours(NamedTuple):
    ink: str
    muted: str
    fill: str
    blue: str
    orange: str
    green: str


THEMES = {
    "light": Colours("#1f2328", "#656d76", "#f3f5f8", "#0b62c4", "#b5490b", "#1a7f37"),
    "dark": Colours("#e6edf3", "#9aa4af", "#20262e", "#6cb2ff", "#f2935c", "#56d364"),
}


class Drawing:
    """Shapes on a transparent background. Coordinates are pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str, colours: Colours):
        self.width, self.height, self.title, self.colours = width, height, title, colours
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 15,
        colour: str = "",
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        family = "ui-monospace, Menlo, Consolas, monospace" if mono else "system-ui, sans-serif"
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-family="{family}" font-size="{size}" fill="{colour or self.colours.ink}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, lines: Sequence[str], *, colour: str = "") -> None:
        """A rounded box. The first line is its title; the others are smaller."""
        edge = colour or self.colours.muted
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{self.colours.fill}" '
            f'stroke="{edge}" stroke-width="1.5"/>'
        )
        first = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            title = number == 0
            colour_of = colour or self.colours.ink if title else self.colours.muted
            self.text(x + width / 2, first + 18 * number, line, size=15 if title else 13, colour=colour_of, bold=title)

    def arrow(self, *points: tuple[float, float], colour: str = "", dashed: bool = False) -> None:
        """A line through the points, with a head at the last one."""
        colour = colour or self.colours.muted
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        name = f"head{colour[1:]}"
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        marker = (
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{colour}"/></marker>'
        )
        if marker not in self.parts:
            self.parts.append(marker)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash} '
            f'marker-end="url(#{name})"/>'
        )

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str,
        width: float = 2.0,
        dashed: bool = False,
        more: str = "",
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dash} '
            f'stroke-linejoin="round" {more}/>'
        )

    def raw(self, part: str) -> None:
        self.parts.append(part)

    def __str__(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n" + "\n".join(self.parts) + "\n</svg>\n"
        )


def save(name: str, draw: Callable[[Colours], Drawing]) -> None:
    """Write name-light.svg and name-dark.svg."""
    for theme, colours in THEMES.items():
        (FIGURES / f"{name}-{theme}.svg").write_text(str(draw(colours)), encoding="utf-8")
