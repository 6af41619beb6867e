"""The mechanism panel as a page: which rule the answer position reads, what it says, how its state moves.

Drawn from the data that `loopformer.evaluation.mechanism` writes; knows nothing of a model.
Shape legend: T loops, A layers, H heads, n rules.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from loopformer.evaluation.page import COLOURS, Section, blank_figure, figure_html, write_page

HEAT = [[0.0, "rgba(59,130,246,0)"], [1.0, "rgba(59,130,246,1)"]]
MOST_CHOICES = 40
"""Single heads are offered up to this many entries of the menu, else layers only."""


def write_mechanism_page(path: Path | str, data: dict[str, Any], overwrite: bool = False) -> None:
    """Write the page of one panel, atomically.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
    """
    instance = data["instance"]
    about = (
        f"<p><strong>{escape(data['model'])}</strong> on graph {instance['index']} ({escape(instance['kind'])}, seed "
        f"{instance['seed']}), {instance['count']} steps asked for, {len(data['reference'])} loops run, prompt view "
        f"{escape(instance['view'])}. Start {escape(data['start'])}, then {escape(' '.join(data['reference']))}.</p>"
    )
    sections = [
        Section(
            "The rule it reads",
            "Attention of the answer position on the tokens of each rule, in the order of the prompt. Squares mark the "
            "rule whose source is the reference state before the loop: the one to read.",
            figure_html(attention_figure(data)),
        ),
        Section(
            "Heads that look the rule up",
            "Attention on the rule to read, averaged over the loops, by layer and head.",
            lookup_table(data),
        ),
        Section(
            "Tokens it reads",
            "The same attention token by token, counted from the source of the rule to read: a rule may be kept in the "
            "tokens behind it. Averaged over loops.",
            offset_table(data),
        ),
        Section(
            "What it says",
            "Likeliest letters after each loop, with probabilities among the labels in percent.",
            letter_table(data),
        ),
        Section(
            "How the state moves",
            "Answer state: cosine to the state of the loop before, relative change, and norm over the norm after loop "
            "1; and the probability to stop. Loop 0 is the prelude's output.",
            figure_html(state_figure(data)),
        ),
    ]
    write_page(path, "Mechanism, loop by loop", about, sections, overwrite)


def attention_figure(data: dict[str, Any]) -> go.Figure:
    """Heat map over loops and rules with a menu of layers and heads, and squares on the rules to read."""
    weights = np.asarray(data["rule_attention"])
    loops = list(range(1, len(weights) + 1))
    rules = [_rule(rule) for rule in data["rules"]]
    figure = blank_figure("Loop t", "", 260 + 16 * len(rules))
    choices = _choices(data, weights)
    for number, (label, values) in enumerate(choices):
        figure.add_trace(
            go.Heatmap(
                x=loops, y=rules, z=values.T, name=label, colorscale=HEAT, zmin=0, zmax=1, xgap=1, ygap=1,
                visible=number == 0, hovertemplate="loop %{x}, rule %{y}: %{z:.3f}<extra></extra>",
                colorbar={"title": {"text": "attention", "side": "right"}, "thickness": 12, "outlinewidth": 0},
            )
        )  # fmt: skip
    marked = [(t, rules[rule]) for t, rule in zip(loops, data["rule_to_read"], strict=True) if rule is not None]
    figure.add_trace(
        go.Scatter(
            x=[t for t, _ in marked], y=[rule for _, rule in marked], mode="markers", name="rule to read",
            marker={"symbol": "square-open", "size": 13, "color": COLOURS[1], "line": {"width": 2}}, hoverinfo="skip",
        )
    )  # fmt: skip
    shown = np.eye(len(choices), dtype=bool)
    buttons = [
        {"label": label, "method": "update", "args": [{"visible": [*shown[i].tolist(), True]}]}
        for i, (label, _) in enumerate(choices)
    ]
    figure.update_layout(
        hovermode="closest",
        updatemenus=[{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.04, "yanchor": "bottom", "pad": {"b": 4}}],
        legend={"x": 1, "xanchor": "right"},
        margin={"t": 64},
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return figure.update_xaxes(dtick=max(1, len(loops) // 16), showgrid=False)


def lookup_table(data: dict[str, Any]) -> str:
    """Layers by heads, each cell the mean attention on the rule to read."""
    weights = np.asarray(data["rule_attention"])
    pairs = [(t, rule) for t, rule in enumerate(data["rule_to_read"]) if rule is not None]
    if not pairs:
        return "<p>No loop has a rule to read.</p>"
    mean = np.mean([weights[t, :, :, rule] for t, rule in pairs], axis=0)
    head = '<th class="text">Layer</th>' + "".join(f"<th>head {h}</th>" for h in range(mean.shape[1]))
    rows = "".join(
        f'<tr><th scope="row">{layer["layer"]} ({layer["block"]})</th>'
        + "".join(f'<td class="heat" style="--v:{100 * v:.0f}">{v:.3f}</td>' for v in values)
        + "</tr>"
        for layer, values in zip(data["layers"], mean, strict=True)
    )
    return _table("1 would be all attention, always on the right rule.", head, rows)


def offset_table(data: dict[str, Any]) -> str:
    """Layers and heads by token after the source of the rule to read."""
    wanted = next((rule for rule in data["rule_to_read"] if rule is not None), None)
    if wanted is None:
        return "<p>No loop has a rule to read.</p>"
    begin, tokens = data["rules"][wanted]["tokens"][0], data["instance"]["tokens"]
    offsets = np.asarray(data["offset_attention"])
    shown = [tokens[begin + o] if begin + o < len(tokens) else "" for o in range(len(offsets))]
    head = '<th class="text">Layer, head</th>' + "".join(
        f"<th>+{o}<small><code>{escape(token.strip() or token)}</code></small></th>" for o, token in enumerate(shown)
    )
    rows = "".join(
        f'<tr><th scope="row">{layer["layer"]} ({layer["block"]}), head {h}</th>'
        + "".join(f'<td class="heat" style="--v:{100 * v:.0f}">{v:.3f}</td>' for v in offsets[:, i, h])
        + "</tr>"
        for i, layer in enumerate(data["layers"])
        for h in range(offsets.shape[2])
    )
    return _table(f"Token texts are those of the first loop's rule, {_rule(data['rules'][wanted])}.", head, rows)


def letter_table(data: dict[str, Any]) -> str:
    """One row per loop: reference, letters through C, letters of the direct head, stop probability."""
    readouts = {"Through C": data["letters"], **({"Direct head": data["direct"]} if data["direct"] else {})}
    head = '<th class="text">Loop</th><th class="text">Reference</th>'
    head += "".join(f'<th class="text">{name}</th>' for name in readouts) + "<th>P(stop)</th>"
    rows = []
    for t, letter in enumerate(data["reference"]):
        cells = "".join(f'<td class="text">{_letters(readout[t], letter)}</td>' for readout in readouts.values())
        stop = "-" if data["stop_probability"] is None else f"{data['stop_probability'][t]:.3f}"
        rows.append(
            f'<tr><th scope="row">{t + 1}</th><td class="text">{escape(letter)}</td>{cells}<td>{stop}</td></tr>'
        )
    return _table(f"Start: {data['start']}.", head, "".join(rows))


def state_figure(data: dict[str, Any]) -> go.Figure:
    """Cosine, relative change, relative norm and stop probability over the loops."""
    loops = list(range(1, len(data["reference"]) + 1))
    norms = data["state_norm"]
    curves = {
        "cosine to the loop before": (loops, data["cosine"]),
        "relative change": (loops, data["change"]),
        "norm / norm after loop 1": ([0, *loops], [norm / norms[1] for norm in norms]),
    }
    if data["stop_probability"] is not None:
        curves["stop probability"] = (loops, data["stop_probability"])
    figure = blank_figure("Loop t", "", 380)
    for colour, (name, (x, y)) in zip(COLOURS, curves.items(), strict=False):
        line = {"color": colour, "width": 2}
        figure.add_trace(go.Scatter(x=x, y=y, name=name, mode="lines+markers", line=line, hovertemplate="%{y:.4f}"))
    return figure


def _choices(data: dict[str, Any], weights: Any) -> list[tuple[str, Any]]:
    """Entries of the menu: averages over a block, over a layer's heads, single heads."""
    layers = data["layers"]
    choices = []
    for block, text in (("R", "recurrent block"), ("C", "coda")):
        rows = [i for i, layer in enumerate(layers) if layer["block"] == block]
        if rows:
            choices.append((f"{text}, mean", weights[:, rows].mean((1, 2))))
    for i, layer in enumerate(layers):
        choices.append((f"layer {layer['layer']} ({layer['block']}), mean", weights[:, i].mean(1)))
    heads = [(i, h) for i in range(weights.shape[1]) for h in range(weights.shape[2])]
    if len(heads) <= MOST_CHOICES:
        choices += [
            (f"layer {layers[i]['layer']} ({layers[i]['block']}), head {h}", weights[:, i, h]) for i, h in heads
        ]
    return choices


def _rule(rule: dict[str, Any]) -> str:
    return f"{rule['source']} → {rule['target']}"


def _letters(row: list[list[Any]], reference: str) -> str:
    first = row[0][0]
    mark = "" if first == reference else " ✗"
    rest = " ".join(f"{escape(letter)} {100 * p:.1f}" for letter, p in row[1:3])
    return f"<strong>{escape(first)}</strong> {100 * row[0][1]:.1f}{mark}<small>{rest}</small>"


def _table(caption: str, head: str, rows: str) -> str:
    return (
        f'<p class="caption">{escape(caption)}</p><div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
