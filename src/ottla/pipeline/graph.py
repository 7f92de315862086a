"""A pipeline as a picture: what each stage reads and writes, as text and as SVG.

The graph is made from the declarations alone. Stages and what lies between them (topics, lakes, tables,
sinks) are the nodes, from left to right in the order in which records pass them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ottla.pipeline.declarations import Changelog, Lake, Stage, Table, Topic

if TYPE_CHECKING:
    from ottla.pipeline.running.loading import Pipeline

_LETTER = 7.3
"""Width of a letter of the SVG's font, about."""
_HEIGHT, _GAP, _COLUMN, _MARGIN = 34, 22, 70, 24
_COLORS = {
    "stage": ("#2f5d8a", "#ffffff"),
    "topic": ("#e8f0e4", "#22331c"),
    "lake": ("#dfeaf5", "#1b3350"),
    "table": ("#f4ecd8", "#4a3b12"),
    "sink": ("#efe3f3", "#40204d"),
    "dead letters": ("#f7dcd9", "#5c1a14"),
}


@dataclass(frozen=True)
class Node:
    kind: str
    name: str


@dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[tuple[Node, Node], ...]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "nodes": [{"kind": each.kind, "name": each.name} for each in self.nodes],
            "edges": [
                {"from": {"kind": a.kind, "name": a.name}, "to": {"kind": b.kind, "name": b.name}}
                for a, b in self.edges
            ],
        }


def graph_of(pipeline: Pipeline) -> Graph:
    """The graph of all stages. A pattern stands for the topics of the pipeline that it matches, if any."""
    written = [name for stage in pipeline.stages for name in pipeline.written_by(stage)]
    edges: list[tuple[Node, Node]] = []
    for stage in pipeline.stages:
        here = Node("stage", stage.name)
        edges += [(each, here) for each in _inputs(stage, written)]
        edges += [(here, each) for each in _outputs(stage, pipeline.name)]
    nodes = dict.fromkeys(node for edge in edges for node in edge)
    return Graph(tuple(nodes), tuple(dict.fromkeys(edges)))


def text_of(pipeline: Pipeline) -> str:
    """A few lines for each stage: its inputs on the left, its outputs on the right."""
    graph = graph_of(pipeline)
    blocks = []
    left = max(len(_title(a)) for a, b in graph.edges if b.kind == "stage")
    for stage in pipeline.stages:
        here = Node("stage", stage.name)
        inputs = [_title(a) for a, b in graph.edges if b == here]
        outputs = [
            _title(b) + ("  (bad records)" if b.kind == "dead letters" else "")
            for a, b in graph.edges
            if a == here
        ]
        lines = []
        for number in range(max(len(inputs), len(outputs))):
            begin = f"{inputs[number]:>{left}} --> " if number < len(inputs) else " " * (left + 5)
            middle = stage.name if number == 0 else " " * len(stage.name)
            end = f" --> {outputs[number]}" if number < len(outputs) else ""
            lines.append(f"{begin}{middle}{end}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def svg_of(pipeline: Pipeline) -> str:
    """The graph as an SVG document."""
    graph = graph_of(pipeline)
    columns = _columns(graph)
    widths = [max(len(_title(each)) for each in column) * _LETTER + 24 for column in columns]
    tallest = max(len(column) for column in columns)
    height = 2 * _MARGIN + tallest * (_HEIGHT + _GAP) - _GAP
    boxes: dict[Node, tuple[float, float, float]] = {}
    x = float(_MARGIN)
    for column, width in zip(columns, widths, strict=True):
        own = len(column) * (_HEIGHT + _GAP) - _GAP
        for row, node in enumerate(column):
            boxes[node] = (x, (height - own) / 2 + row * (_HEIGHT + _GAP), width)
        x += width + _COLUMN
    total = x - _COLUMN + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {total:.0f} {height:.0f}" font-family="monospace" font-size="12">',
        f"<title>{escape(pipeline.name)}</title>",
        '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#667"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for a, b in graph.edges:
        (ax, ay, aw), (bx, by, _) = boxes[a], boxes[b]
        x1, y1, x2, y2 = ax + aw, ay + _HEIGHT / 2, bx, by + _HEIGHT / 2
        bend = max(abs(x2 - x1) / 2, 30)
        dashes = ' stroke-dasharray="5 4"' if b.kind == "dead letters" else ""
        curve = f"M{x1:.0f},{y1:.0f} C{x1 + bend:.0f},{y1:.0f} {x2 - bend:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
        lines.append(f'<path d="{curve}" fill="none" stroke="#667"{dashes} marker-end="url(#arrow)"/>')
    for node, (left, top, width) in boxes.items():
        fill, ink = _COLORS[node.kind]
        size = f'width="{width:.0f}" height="{_HEIGHT}" rx="{17 if node.kind == "stage" else 4}"'
        middle = f'x="{left + width / 2:.0f}" y="{top + _HEIGHT / 2 + 4:.0f}" text-anchor="middle"'
        lines += [
            f"<g><title>{escape(node.kind)}</title>",
            f'<rect x="{left:.0f}" y="{top:.0f}" {size} fill="{fill}" stroke="#99a"/>',
            f'<text {middle} fill="{ink}">{escape(_title(node))}</text></g>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _columns(graph: Graph) -> list[list[Node]]:
    """Nodes by how many steps are before them. In a ring, a step back does not count."""
    depth = dict.fromkeys(graph.nodes, 0)
    for _ in graph.nodes:  # no path without a ring is longer
        moved = False
        for a, b in graph.edges:
            if depth[b] < depth[a] + 1 <= len(graph.nodes) - 1:
                depth[b], moved = depth[a] + 1, True
        if not moved:
            break
    used = sorted(set(depth.values()))
    return [[node for node in graph.nodes if depth[node] == step] for step in used]


def _inputs(stage: Stage, written: Sequence[str]) -> list[Node]:
    found = []
    for each in stage.inputs:
        if isinstance(each, Table):
            found.append(Node("table", each.title.removeprefix("table ")))
            continue
        if isinstance(each, Changelog):
            found.append(Node("topic", each.topic.title))
            continue
        matched = [name for name in written if each.pattern is not None and each.reads(name)]
        found += [Node("topic", name) for name in matched or [each.title]]
    return found


def _outputs(stage: Stage, pipeline: str) -> list[Node]:
    found = []
    for each in stage.outputs:
        if isinstance(each, Topic):
            found.append(Node("topic", each.title))
        else:
            kind = "lake" if isinstance(each, Lake) else "sink"
            name = each.path if isinstance(each, Lake) else each.name
            found.append(Node(kind, name))
    if stage.bad == "dead-letter":
        found.append(Node("dead letters", stage.dead_letter_topic(pipeline)))
    return found


def _title(node: Node) -> str:
    return f"{node.kind} {node.name}" if node.kind in ("lake", "table", "sink") else node.name
