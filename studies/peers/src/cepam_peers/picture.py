"""The picture of the benchmark: accuracy over bytes up, one SVG that follows the reader's light or dark colours."""

from __future__ import annotations

import math
from html import escape
from typing import Any

TASK = "chitchat-prompts"
SHOWN = {
    "cepam": "cepam", "float32": "DP-FedAvg, float32", "qsgd-8": "noise, QSGD 8 bits", "qsgd-4": "noise, QSGD 4 bits",
    "sdq": "noise, SDQ", "sign": "noise, sign", "sketch": "sketch, noise, SDQ", "ddg-16": "discrete Gaussian 16",
    "ddg-12": "discrete Gaussian 12", "flower-server-fixed": "Flower, fixed clip",
    "flower-server-adaptive": "Flower, adaptive clip", "flower-secagg": "Flower SecAgg+",
    "flare-percentile": "FLARE percentile", "flare-svt": "FLARE SVT",
}  # fmt: skip
"""Rows of the picture. Skellam lies on the discrete Gaussian, clipping by the client on clipping by the server."""
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 420, 40, 408, 60, 330
LINE, NEAR = 18, 13.0
Place = tuple[float, float]
STYLE = """
    .page { fill: #ffffff; } .grid { stroke: #d5d8e0; } .axis { stroke: #555c72; }
    .own { stroke: #3c4fc4; } .own.full { fill: #3c4fc4; } .rival { stroke: #b8560f; } .rival.full { fill: #b8560f; }
    .hollow { fill: #ffffff; } circle { stroke-width: 2; } .ceiling { stroke: #2b8a4b; stroke-dasharray: 5 4; }
    text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1d2233; }
    .number { font-size: 12px; font-weight: 600; text-anchor: middle; }
    .lead { stroke: #9aa1b5; } .patch { fill: #ffffff; }
    .title { font-size: 14px; font-weight: 600; } .green { fill: #2b8a4b; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #1e2129; } .grid { stroke: #3a3f4d; } .axis { stroke: #aab0c2; } text { fill: #e8eaf1; }
      .own { stroke: #8fa2f0; } .own.full { fill: #8fa2f0; } .rival { stroke: #f0a35c; } .rival.full { fill: #f0a35c; }
      .hollow { fill: #1e2129; } .ceiling { stroke: #6ccf8e; } .green { fill: #6ccf8e; }
      .lead { stroke: #6b7286; } .patch { fill: #1e2129; }
    }"""


def draw(rows: list[dict[str, Any]]) -> str:
    """The picture as SVG."""
    mine = {row["row"]: row for row in rows if row["task"] == TASK and row.get("score") is not None}
    points = [(name, mine[name]["bytes_up"], 100 * mine[name]["score"]) for name in SHOWN if name in mine]
    low, high = (math.floor(math.log10(min(x for _, x, _ in points))),
                 math.ceil(math.log10(max(x for _, x, _ in points))))  # fmt: skip
    top = 5 * math.ceil(max(y for _, _, y in points) / 5 + 0.6)

    def place(x: float, y: float) -> Place:
        return (LEFT + (RIGHT - LEFT) * (math.log10(x) - low) / (high - low), BOTTOM - (BOTTOM - TOP) * y / top)

    told, half = mine["cepam"], -(-len(points) // 2)
    height = BOTTOM + 60 + LINE * half
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">',
        '  <title id="t">Accuracy over bytes up</title>',
        f'  <desc id="d">{escape(described(mine))}</desc>',
        f"  <style>{STYLE}\n  </style>",
        f'  <rect class="page" width="{WIDTH}" height="{height}"/>',
        f'  <text class="title" x="8" y="20">Accuracy, %, at epsilon {told["target_epsilon"]:g} per user</text>',
        '  <text x="8" y="40">filled: epsilon proved; hollow: unproven</text>',
    ]
    for percent in range(0, top + 1, 10):
        at = place(10**low, percent)[1]
        out.append(f'  <line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'  <text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{percent}</text>')
    for power in range(low, high + 1):
        at = place(10**power, 0)[0]
        anchor = "middle" if power < high else "end"
        out.append(f'  <line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{BOTTOM}" y2="{BOTTOM + 5}"/>')
        out.append(f'  <text x="{at:.1f}" y="{BOTTOM + 19}" text-anchor="{anchor}">{10**power:,}</text>')
    out.append(f'  <line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>')
    out.append(f'  <text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 38}" text-anchor="middle">'
               "bytes up per client and round</text>")  # fmt: skip
    if "opacus" in mine:
        at = place(10**low, 100 * mine["opacus"]["score"])[1]
        out.append(f'  <line class="ceiling" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'  <text class="green" x="{LEFT + 36}" y="{at + 17:.1f}">Opacus, central</text>')
    dots = [place(x, y) for _, x, y in points]
    labels: list[tuple[float, float]] = []
    for dot in dots:
        labels.append(free(dot, dots, labels))
    for (across, down), (x, y) in zip(dots, labels):
        if math.hypot(across - x, down - y) > NEAR + 1.0:
            out.append(f'  <line class="lead" x1="{across:.1f}" y1="{down:.1f}" x2="{x:.1f}" y2="{y:.1f}"/>')
    for (name, _, _), (across, down) in zip(points, dots):
        kind = f"{'own' if name == 'cepam' else 'rival'} {'full' if proves(mine[name]) else 'hollow'}"
        out.append(f'  <circle class="{kind}" cx="{across:.1f}" cy="{down:.1f}" r="4.5"/>')
    for number, (x, y) in enumerate(labels, 1):
        out.append(f'  <circle class="patch" cx="{x:.1f}" cy="{y:.1f}" r="7"/>'
                   f'<text class="number" x="{x:.1f}" y="{y + 4:.1f}">{number}</text>')  # fmt: skip
    for number, (name, _, _) in enumerate(points, 1):
        column, line = divmod(number - 1, half)
        out.append(f'  <text x="{14 + 204 * column}" y="{BOTTOM + 64 + LINE * line}">{number}  {SHOWN[name]}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def proves(row: dict[str, Any]) -> bool:
    """Whether the row's epsilon is proved."""
    return row["proved_epsilon"] is not None


def free(dot: Place, dots: list[Place], labels: list[Place]) -> Place:
    """The nearest place around a marker where its number covers no marker and no other number."""
    for far in range(int(NEAR), 130, 6):
        for turn in range(16):
            angle = math.pi * (turn // 2 * (1 if turn % 2 else -1) / 8 - 0.5)
            x, y = dot[0] + far * math.cos(angle), dot[1] + far * math.sin(angle)
            clear = all(math.hypot(x - a, y - b) >= 12.0 for a, b in dots)
            clear = clear and all(math.hypot(x - a, y - b) >= 15.0 for a, b in labels)
            if clear and LEFT + 8 <= x <= RIGHT and TOP - 8 <= y <= BOTTOM - 10:
                return x, y
    return dot


def described(mine: dict[str, Any]) -> str:
    """The figures as text."""
    return "; ".join(
        f"{SHOWN[name]}: {100 * mine[name]['score']:.1f} % with {mine[name]['bytes_up']:,.0f} bytes"
        for name in SHOWN
        if name in mine
    )
