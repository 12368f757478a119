"""Draw a structure as a plate diagram with matplotlib."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsbi.model.structure import Level, Site, Structure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Group = list[list[Site]]

# Lengths are in inches at the size of a figure made here. Colors are Okabe and Ito's, for all kinds of vision.
_HEIGHT = 0.62
_CHARACTER = 0.088
_ROW = 1.2
_COLUMN_GAP = 0.35
_PAD = 0.24
_LABEL = 0.26
_EDGE_COLORS: dict[Level, str] = {
    "global": "#0072B2",
    "local": "#D55E00",
    "observation": "#222222",
    "deterministic": "#777777",
}
_FACE_COLORS: dict[Level, str] = {
    "global": "#FFFFFF",
    "local": "#FFFFFF",
    "observation": "#D0D0D0",
    "deterministic": "#FFFFFF",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Node:
    """Where one site is drawn."""

    x: float
    y: float
    width: float

    def radius(self, angle: float) -> float:
        """Give the distance from the center to the ellipse in a direction."""
        a, b = self.width / 2, _HEIGHT / 2
        return a * b / float(np.hypot(b * np.cos(angle), a * np.sin(angle)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Box:
    """Where one plate is drawn."""

    label: str
    left: float
    right: float
    bottom: float
    top: float


def draw(structure: Structure, ax: "Axes | None" = None) -> "Axes":
    """Draw globals above the plates, locals inside the site plate, observations shaded at the bottom."""
    nodes, boxes = place(structure)
    levels: list[Level] = [level for level in _EDGE_COLORS if any(site.level == level for site in structure.sites)]
    left = min([node.x - node.width / 2 for node in nodes.values()] + [box.left for box in boxes]) - 0.1
    right = max([node.x + node.width / 2 for node in nodes.values()] + [box.right for box in boxes]) + 0.1
    bottom = min([node.y - _HEIGHT / 2 for node in nodes.values()] + [box.bottom for box in boxes]) - 0.5
    top = max([node.y + _HEIGHT / 2 for node in nodes.values()] + [box.top for box in boxes]) + 0.1
    middle, width = (left + right) / 2, max(right - left, sum(0.5 + 0.08 * len(level) for level in levels))
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=(width, top - bottom)).add_axes((0.0, 0.0, 1.0, 1.0))
    _draw_boxes(ax, boxes)
    for site in structure.sites:
        _draw_node(ax, site, nodes[site.name])
        for parent in site.parents:
            _draw_arrow(ax, nodes, parent, site.name)
    _draw_legend(ax, levels, middle, bottom + 0.2)
    ax.set_xlim(middle - width / 2, middle + width / 2)
    ax.set_ylim(bottom, top)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def place(structure: Structure) -> tuple[dict[str, _Node], list[_Box]]:
    """Find places for sites and plates, so that each plate holds its own sites and no others."""
    bands = _make_bands(structure)
    nodes = _place_bands(bands, structure, {})
    # Sites without parents are ordered by where their children came to stand.
    children: dict[str, list[float]] = {}
    for site in structure.sites:
        for parent in site.parents:
            children.setdefault(parent, []).append(nodes[site.name].x)
    nodes = _place_bands(bands, structure, {name: float(np.mean(places)) for name, places in children.items()})
    return nodes, _find_boxes(structure, nodes)


def _make_bands(structure: Structure) -> list[list[_Group]]:
    """Sort sites into bands from top to bottom: globals, locals, then their dependents inside the plate and out."""
    plate = structure.site_plate
    inside = [site for site in structure.sites if plate is not None and plate.name in site.plates]
    outside = [site for site in structure.sites if site not in inside]
    latents = ("global", "local")
    side = [s for s in outside if s.level == "deterministic" and not set(s.parents) & set(structure.locals)]
    return [
        [*_groups([s for s in outside if s.level in latents]), *([[[], side]] if side else [])],
        _groups([s for s in inside if s.level in latents]),
        _groups([s for s in inside if s.level not in latents]),
        _groups([s for s in outside if s.level not in latents and s not in side]),
    ]


def _groups(sites: Sequence[Site]) -> list[_Group]:
    """Put sites with the same plates into one group of rows, a row per generation."""
    groups: dict[tuple[str, ...], _Group] = {}
    depths: dict[str, int] = {}
    for site in sites:
        # Groups stand side by side, so an edge between them needs no row of its own.
        rows = groups.setdefault(site.plates, [])
        depth = max((depths[parent] + 1 for parent in site.parents if parent in depths), default=0)
        depths[site.name] = depth
        rows.extend([] for _ in range(depth + 1 - len(rows)))
        rows[depth].append(site)
    return [groups[plates] for plates in sorted(groups)]


def _place_bands(bands: Sequence[list[_Group]], structure: Structure, hints: Mapping[str, float]) -> dict[str, _Node]:
    """Stack bands from top to bottom, each centered, its groups side by side."""
    nodes: dict[str, _Node] = {}
    boxed = structure.site_plate is not None
    y = 0.0
    for index, groups in enumerate(bands):
        if not groups:
            continue
        if nodes:
            y -= _ROW + sum(_margins(index, groups, bands, boxed))
        widths = [max(_row_width(row) for row in rows) for rows in groups]
        gaps = [_COLUMN_GAP + 2 * _PAD * _num_plates(rows) for rows in groups]
        x = -(sum(widths) + sum(gaps[1:])) / 2
        for position, (rows, width) in enumerate(zip(groups, widths, strict=True)):
            x += gaps[position] if position else 0.0
            for level, row in enumerate(rows):
                _place_row(nodes, row, x + width / 2, y - level * _ROW, hints)
            x += width
        y -= (max(len(rows) for rows in groups) - 1) * _ROW
    return nodes


def _margins(index: int, groups: list[_Group], bands: Sequence[list[_Group]], boxed: bool) -> list[float]:
    """Give the room that the edges of plates need between a band and the one above."""
    num_inner = max(_num_plates(rows) for rows in groups)
    enters = boxed and (index == 1 or (index == 2 and not bands[1]))
    leaves = boxed and index == 3
    above = max((_num_plates(rows) for rows in bands[0]), default=0) if enters else 0
    return [
        _PAD * (num_inner if enters else max(num_inner - 1, 0)),
        (_PAD + _LABEL) * (above + leaves),
    ]


def _num_plates(rows: _Group) -> int:
    return max(len(site.plates) for row in rows for site in row)


def _place_row(
    nodes: dict[str, _Node], row: Sequence[Site], center: float, y: float, hints: Mapping[str, float]
) -> None:
    """Place a row around its center, in the order of its sites' parents, or of their children."""

    def wish(site: Site) -> float:
        places = [nodes[parent].x for parent in site.parents if parent in nodes]
        return float(np.mean(places)) if places else hints.get(site.name, center)

    x = center - _row_width(row) / 2
    for site in sorted(row, key=wish):
        width = _node_width(site)
        nodes[site.name] = _Node(x=x + width / 2, y=y, width=width)
        x += width + _COLUMN_GAP


def _row_width(row: Sequence[Site]) -> float:
    return sum(_node_width(site) for site in row) + _COLUMN_GAP * max(len(row) - 1, 0)


def _node_width(site: Site) -> float:
    return max(0.9, 0.38 + _CHARACTER * max(len(site.name) * 1.1, len(_subtitle(site)) * 0.8))


def _subtitle(site: Site) -> str:
    shape = " x ".join(str(size) for size in site.event_shape)
    kind = site.distribution or "deterministic"
    return f"{kind}, {shape}" if shape else kind


def _find_boxes(structure: Structure, nodes: Mapping[str, _Node]) -> list[_Box]:
    """Draw a plate around its sites, with room for the plates inside it."""
    boxes = []
    for plate in structure.plates:
        members = [site for site in structure.sites if plate.name in site.plates]
        if not members:
            continue
        # Each member is padded once for this plate and once for each plate inside it.
        depths = {site.name: len(site.plates) - site.plates.index(plate.name) for site in members}
        places = [(nodes[name], _PAD * depth, _LABEL * depth) for name, depth in depths.items()]
        boxes.append(
            _Box(
                label=f"{plate.name} ({plate.size})",
                left=min(node.x - node.width / 2 - pad for node, pad, _ in places),
                right=max(node.x + node.width / 2 + pad for node, pad, _ in places),
                bottom=min(node.y - _HEIGHT / 2 - pad - label for node, pad, label in places) + 0.08,
                top=max(node.y + _HEIGHT / 2 + pad for node, pad, _ in places),
            )
        )
    return boxes


def _draw_boxes(ax: "Axes", boxes: Iterable[_Box]) -> None:
    from matplotlib.patches import FancyBboxPatch

    for depth, box in enumerate(boxes):
        corner = (box.left, box.bottom)
        width, height = box.right - box.left, box.top - box.bottom
        style = "round,pad=0,rounding_size=0.16"
        ax.add_patch(
            FancyBboxPatch(
                corner, width, height, boxstyle=style, fc="none", ec="#555555", lw=1.2, zorder=0.5 + 0.01 * depth
            )
        )
        ax.text(box.right - 0.12, box.bottom + 0.07, box.label, ha="right", va="bottom", fontsize=8.5, color="#444444")


def _draw_node(ax: "Axes", site: Site, node: _Node) -> None:
    from matplotlib.patches import Ellipse

    style = (0, (4, 2)) if site.level == "deterministic" else "-"
    ax.add_patch(
        Ellipse(
            (node.x, node.y),
            node.width,
            _HEIGHT,
            fc=_FACE_COLORS[site.level],
            ec=_EDGE_COLORS[site.level],
            lw=1.6,
            ls=style,
            zorder=3,
        )
    )
    ax.text(node.x, node.y + 0.07, site.name, ha="center", va="center", fontsize=10.5, zorder=4, parse_math=False)
    ax.text(node.x, node.y - 0.12, _subtitle(site), ha="center", va="center", fontsize=6.8, color="#555555", zorder=4)


def _draw_arrow(ax: "Axes", nodes: Mapping[str, _Node], parent: str, child: str) -> None:
    """Draw an arrow from rim to rim, bent where a straight one would cross another site."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    others = [node for name, node in nodes.items() if name not in (parent, child)]
    start, end = nodes[parent], nodes[child]
    curves = [_curve(start, end, bend) for bend in (0.0, 0.15, -0.15, 0.3, -0.3, 0.45, -0.45, 0.7, -0.7)]
    points = next((curve for curve in curves if not _crosses(curve, others)), curves[0])
    path = Path(points, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
    ax.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=10, lw=1.0, color="#333333", zorder=2))


def _curve(start: _Node, end: _Node, bend: float) -> np.ndarray:
    """Give the three points of a quadratic curve between two rims."""
    a, b = np.array([start.x, start.y]), np.array([end.x, end.y])
    across = np.array([-(b - a)[1], (b - a)[0]])
    control = (a + b) / 2 + bend * across
    leave, arrive = control - a, control - b
    a = a + start.radius(float(np.arctan2(leave[1], leave[0]))) * leave / np.linalg.norm(leave)
    b = b + (end.radius(float(np.arctan2(arrive[1], arrive[0]))) + 0.02) * arrive / np.linalg.norm(arrive)
    return np.stack([a, control, b])


def _crosses(points: np.ndarray, others: Iterable[_Node]) -> bool:
    """Say whether a curve comes close to the ellipse of another site."""
    t = np.linspace(0.0, 1.0, 40)[:, None]
    curve = (1 - t) ** 2 * points[0] + 2 * t * (1 - t) * points[1] + t**2 * points[2]
    return any(
        bool(
            np.any(
                ((curve[:, 0] - node.x) / (node.width / 2 + 0.06)) ** 2
                + ((curve[:, 1] - node.y) / (_HEIGHT / 2 + 0.06)) ** 2
                < 1
            )
        )
        for node in others
    )


def _draw_legend(ax: "Axes", levels: Sequence[Level], x: float, y: float) -> None:
    from matplotlib.offsetbox import AnnotationBbox, DrawingArea, HPacker, TextArea
    from matplotlib.patches import Ellipse

    parts = []
    for level in levels:
        area = DrawingArea(20, 12)
        style = (0, (3, 1.5)) if level == "deterministic" else "-"
        area.add_artist(Ellipse((10, 5), 16, 9, fc=_FACE_COLORS[level], ec=_EDGE_COLORS[level], lw=1.3, ls=style))
        parts += [area, TextArea(level, textprops={"fontsize": 8.5, "color": "#444444"})]
    box = HPacker(children=parts, pad=0, sep=4, align="center")
    ax.add_artist(AnnotationBbox(box, (x, y), frameon=False, pad=0))
