"""The settings of a run as a page of the site; `python tools/make_settings.py` prints it."""

from __future__ import annotations

from dataclasses import fields

from cepam.cli.settings import FLAGS, shown
from cepam.fl.config.settings import OVERRIDES, RENAMED, TABLES, ClientOverride

HEAD = """# Settings of a run

Every setting of `cepam train`, `cepam compare` and `fl.Settings`, with its default. Give it as
`--set table.name=value`, in a TOML file under `[table]`, or in Python as `fl.Settings.of({"table.name": value})`.
`none` leaves a setting unset. Values of a preset are replaced by those of a TOML file, and these by `--set` and flags.
`cepam train --help-all` prints the same list. Guide: [Train in simulation](../train.md).
"""


def page() -> str:
    """The page: a section per table, a row per setting; then overrides and the names of version 0.1."""
    flags = {name: f"`--{flag}`" for flag, (name, _) in FLAGS.items()}
    lines = [HEAD]
    for table, kind in TABLES.items():
        lines += [f"## {table}", "", "| setting | default | what it does | flag |", "|---|---|---|---|"]
        for each in fields(kind):
            name, told = f"{table}.{each.name}", each.metadata["help"]
            if each.metadata["choices"]:
                told += f" One of {', '.join(f'`{choice}`' for choice in each.metadata['choices'])}."
            lines.append(f"| `{name}` | `{shown(each.default)}` | {told} | {flags.get(name, '')} |")
        lines.append("")
    own = ", ".join(f"`{each.name}`" for each in fields(ClientOverride) if each.name != "clients")
    lines += [
        "## Clients that differ", "",
        f"`[[{OVERRIDES}]]` in TOML, one table per group: `clients` (such as `\"0-9\"`, `\"0-4,7\"`, or names)",
        f"and any of {own}.",
        f"On the command line `--set \"{OVERRIDES}=0-9 noise_scale=0.02 lattice=E8\"`, which may be repeated.", "",
        "## Names of version 0.1", "",
        "They are refused with the new name. Values: `top-up` is now `compensate`, `sum` is `secure-aggregation`,",
        "`grid` is `quantized`; preset `steady` is `dp-ftrl`.", "",
        "| 0.1 | now |", "|---|---|", *(f"| `{old}` | `{new}` |" for old, new in RENAMED.items()), "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
