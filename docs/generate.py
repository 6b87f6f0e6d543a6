"""Write docs/scenario.md from what the code knows of scenario files, and the pages of results from experiments/.

    python docs/generate.py [--check | --results]

With --check nothing is written; the exit code is 1 when a page is out of date. With --results the files of
experiments/ that can be made from its runs (NAME.json, .csv and .png) are written again, too.
"""

# A paragraph of the page is one line:
# ruff: noqa: E501

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from hsfl.experiments.compact import read_runs, runs_file, shown_again
from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.result import VERDICTS, Result
from hsfl.experiments.store import fingerprint
from hsfl.problem.profile import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from hsfl.problem.units import EXAMPLES, KINDS, SI, parse
from hsfl.report.results import plain, results_markdown, write_result
from hsfl.scenario.catalog import CATALOG, DEFAULT_INPUT_SHAPES, scenario_names
from hsfl.scenario.template import field_reference, quantity_fields

DOCS = Path(__file__).parent
EXPERIMENTS = DOCS.parent / "experiments"
RESULTS = EXPERIMENTS / "results"
SMALL = EXPERIMENTS / "small"
HEADER = "<!-- Written by docs/generate.py (make docs) from experiments/; change that, not this. -->\n\n"

EXAMPLE = """\
name = "workshop"
description = "12 cameras, 3 gateways and a server; LeNet-5"
seed = 1

[model]
name = "lenet5"

[training]
batch_size = 32
learning_rate = 0.01

[[tiers]]
name = "camera"
entities = 12
compute = { lognormal = ["2 GFLOPS", 0.3] }
memory = "64 MB"
uplink = { uniform = ["8 Mbps", "12 Mbps"] }
downlink = "40 Mbps"
fed_uplink = "10 Mbps"
fed_downlink = "40 Mbps"

[[tiers]]
name = "gateway"
entities = 3
compute = ["40 GFLOPS", "40 GFLOPS", "80 GFLOPS"]
memory = "1 GB"
uplink = "100 Mbps"
downlink = "100 Mbps"
fed_uplink = "50 Mbps"
fed_downlink = "50 Mbps"

[[tiers]]
name = "server"
entities = 1
compute = "5 TFLOPS"

[convergence]
smoothness = 7.8
initial_gap = 2.3
rounds = 2000
slack = 0.5
drift = "refined"
"""

COLUMNS = {
    "name": "The layer's name, for tables.",
    "forward_flops": "FLOPs of the forward pass, for one sample.",
    "backward_flops": "FLOPs of the backward pass, for one sample.",
    "activation_bits": "Size of the layer's output, for one sample: what a cut after this layer sends up, unless the tier has a `code`.",
    "gradient_bits": "Size of the gradient of that output, for one sample: what such a cut sends down, likewise.",
    "parameter_bits": "Size of what averaging moves: parameters and persistent buffers.",
    "buffer_bits": "The part of `parameter_bits` that is persistent buffers, which averages move as they are, whatever their code. None when absent.",
    "optimizer_bits": "Size of the optimiser's state. If the whole column is 0, `training.optimizer` decides.",
    "gradient_variance": "`sigma_l^2`, the variance of the layer's mini-batch gradient.",
    "gradient_second_moment": "`G_l^2`, the mean squared norm of the layer's mini-batch gradient.",
    "gradient_dissimilarity": "`zeta_l^2`, how far the clients' mean gradients of the layer lie apart.",
}


def text() -> str:
    """The whole page."""
    parts = [introduction(), quantities(), field_reference().strip(), columns(), overrides()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def introduction() -> str:
    return f"""
<!-- Written by docs/generate.py (make docs); change that, not this. -->

# The scenario file

A scenario is one TOML file: machines, a model and a training task. This page lists every field. To start from a file with every field explained:

```sh
hsfl init my.toml --from paper
hsfl plan my.toml
```

Built-in scenarios are {_listed(scenario_names())}; `hsfl scenarios` describes them.

## The shape of a file

A few lines at the top, then `[model]`, `[training]`, one `[[tiers]]` for each tier from the devices up, and `[convergence]`. A complete file:

```toml
{EXAMPLE.strip()}
```

Every machine of the first tier is a client. The machines of a tier are spread evenly over those of the tier above, in order, unless `parents` says otherwise. A tier of several machines is averaged by the fed server and needs `fed_uplink` and `fed_downlink`; a tier of one machine does not. Every tier but the top needs `uplink` and `downlink`. The lists of `[convergence]` are missing here because the profile of a built-in model has them as columns; [planning.md](planning.md#where-the-convergence-constants-come-from) says where those come from.

Whatever is wrong with a file ends in one sentence that names the field and says what would be right.
"""


def quantities() -> str:
    rows = []
    for kind, names in quantity_fields().items():
        fields, plain, example = ", ".join(f"`{name}`" for name in names), SI[kind], EXAMPLES[kind]
        bases = [unit for unit in KINDS[kind] if f"k{unit}" in KINDS[kind]]
        prefixes = [u.removesuffix(bases[0]) for u in KINDS[kind] if u.endswith(bases[0]) and u != bases[0]]
        rows.append(
            f'| {fields} | {plain} | {_code(bases)} | {_code(prefixes)} | `"{example}"` = {parse(example, kind):,.0f} |'
        )
    table = "\n".join(rows)
    return f"""
## Quantities and units

A plain number is in the SI unit. Text is a number and a unit, with or without a blank between. A unit is a prefix and a base unit as below, in exactly this spelling: `b` is a bit and `B` a byte of 8 bits, `k` or `K` is 1,000 and `Ki` 1,024. Quantities are positive and finite.

| fields | a plain number is in | base units | prefixes | example |
|---|---|---|---|---|
{table}

Each of these fields takes one of five forms:

| form | meaning |
|---|---|
| `"80 Mbps"` | the same for every machine of the tier |
| `["40 GFLOPS", "40 GFLOPS", "80 GFLOPS"]` | one value per machine, in order |
| `{{ uniform = ["75 Mbps", "80 Mbps"] }}` | drawn evenly between the two |
| `{{ normal = ["2 GB", "0.5 GB"] }}` | mean and standard deviation; drawn again until positive |
| `{{ lognormal = ["0.5 TFLOPS", 0.5] }}` | median, and the standard deviation of the natural logarithm (a plain number, at most 10) |

Every field of every tier has a random stream of its own, made from `seed`, the tier's position and the field: changing another field leaves its draws as they are."""


def columns() -> str:
    known = ("name", *REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)
    assert set(COLUMNS) == set(known), f"describe exactly these columns: {known}"
    rows = "\n".join(f"| `{c}` | {'no' if c in OPTIONAL_COLUMNS else 'yes'} | {COLUMNS[c]} |" for c in known)
    shapes = _listed(f"{name} ({' × '.join(map(str, shape))})" for name, shape in DEFAULT_INPUT_SHAPES.items())
    shipped = _listed(sorted(p.name.removesuffix(".csv") for p in (CATALOG / "profiles").iterdir()))
    return f"""
## The profile: `[model] profile`

A CSV file with a header and one row per layer, in order. Nothing is cumulative. Columns may come in any order; numbers are at least 0. `hsfl profile` writes such a file for a built-in model or for any torch model that a function returns:

```sh
hsfl profile vgg16 --csv vgg16.csv
hsfl profile my_package.my_module:make_model --input 3,32,32 --csv mine.csv
```

| column | needed | meaning |
|---|---|---|
{rows}

The last three are the defaults of the lists of the same name in `[convergence]`. `hsfl profile` measures all but these. A model needs at least as many layers as there are tiers.

Built-in models, with the shape of one sample that they take by default: {shapes}. Profiles for {shipped} come with hsfl, these three columns included; another `input_shape`, or a `factory`, is measured on the spot, which needs torch."""


def overrides() -> str:
    return """
## Change a field from the command line: `--set`

`--set FIELD=VALUE` replaces a field before the file is checked, and may be repeated. `--sweep FIELD=A,B,C` plans for every value in turn. The same paths are the keys of `overrides` in `hsfl.load_scenario`.

| path | meaning |
|---|---|
| `seed`, `name` | a field at the top |
| `training.batch_size` | a field of a section |
| `tiers.device.uplink` | a field of a tier, by the tier's name |
| `tiers.1.uplink` | the same by its position, from 1, the devices; a tier's name goes before a position |
| `tiers.*.code` | the field in every tier |
| `tiers.device.code.up` | an entry of a table |

A value is read as TOML; what is not TOML is taken as text, so `20 Mbps` needs no quotes of its own. Lists and distributions need the shell's quotes:

```sh
hsfl plan paper --set "tiers.device.uplink=20 Mbps" --set training.batch_size=32
hsfl plan paper --set 'tiers.device.compute={ normal = ["0.5 TFLOPS", "0.1 TFLOPS"] }'
hsfl plan paper --sweep "tiers.device.uplink=20 Mbps,40 Mbps,80 Mbps"
hsfl plan paper --sweep "tiers.*.code=fp32,bf16,int8,int4"
```

Some fields exclude each other. Setting one of `model.name`, `model.profile` and `model.factory` removes the others; setting `convergence.target` removes `rounds` and `slack`, and setting either of these removes `target`. A sweep splits its values at commas, so they cannot be lists."""


def results() -> str:
    """The page of results: what hsfl reproduce wrote, with what we think the reasons are."""
    notes = _notes()
    shown = [result_of(name, RESULTS) for name in RECIPES if name not in notes["waiting"]]
    first = [HEADER + notes["about"].strip(), _headlines(shown, notes["headlines"]), notes["learnt"].strip()]
    about = "\n\n".join(
        [*first, _verdicts(shown, notes["waiting"], notes["again"]), _costs(shown), notes["took"].strip()]
    )
    return results_markdown(shown, pictures="../experiments/results", reasons=notes["reasons"], about=about)


def small_results() -> str:
    """The page of what hsfl reproduce --small wrote."""
    shown = [result_of(name, SMALL) for name in RECIPES if (SMALL / f"{name}.json").exists()]
    return results_markdown(shown, pictures="../experiments/small", about=HEADER + _notes()["small"].strip())


def _notes() -> dict[str, Any]:
    return tomllib.loads((EXPERIMENTS / "reasons.toml").read_text(encoding="utf-8"))


def result_of(name: str, folder: Path) -> dict[str, Any]:
    """What hsfl reproduce showed, made again from the recipe's runs where they are there."""
    stored: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    again = made_again(name, folder, stored)
    return stored if again is None else plain(again.to_dict())


def made_again(name: str, folder: Path, stored: Mapping[str, Any]) -> Result | None:
    """A result from the recipe's runs, at the cost that is stored; None where there are no runs."""
    again = shown_again(RECIPES[name], folder)
    return None if again is None else replace(again, cost=stored["cost"])


def _headlines(shown: Sequence[Mapping[str, Any]], headlines: Sequence[Sequence[str]]) -> str:
    """The claims that most readers come for."""
    claims = {(result["name"], claim["what"]): claim for result in shown for claim in result["claims"]}
    lines = ["## In short\n", "| claim | the paper | measured | verdict | figure |", "|---|---|---|---|---|"]
    for name, what in headlines:
        claim = claims[name, what]
        lines.append(f"| {what} | {claim['paper']} | {claim['measured']} | {claim['verdict']} | {name} |")
    return "\n".join(lines)


def _verdicts(shown: Sequence[Mapping[str, Any]], waiting: Sequence[str], again: Mapping[str, str]) -> str:
    lines = ["## All figures\n", f"| figure | what | {' | '.join(VERDICTS)} |", f"|---|---|{'---:|' * len(VERDICTS)}"]
    for result in shown:
        counts = [sum(claim["verdict"] == word for claim in result["claims"]) for word in VERDICTS]
        lines.append(f"| [{result['name']}](#{_anchor(result)}) | {result['title']} | {' | '.join(map(str, counts))} |")
    if waiting:
        lines.append(f"\nNot run at full size yet: {', '.join(f'`{name}`' for name in waiting)}.")
    if again:
        changed = "\n".join(f"- `{name}`: {why}" for name, why in again.items())
        lines.append(
            f"\nTo be run again at full size, for what is below was made by an earlier recipe, or with fewer seeds than it should have:\n\n{changed}"
        )
    return "\n".join(lines)


def _anchor(result: Mapping[str, Any]) -> str:
    """GitHub's, of the heading."""
    kept = (c for c in f"{result['name']}: {result['title']}".lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _costs(shown: Sequence[Mapping[str, Any]]) -> str:
    """The split of the time by figure."""
    trained = {r["name"]: [r["cost"]["runs"], r["cost"]["training_s"]] for r in shown if r["cost"].get("runs")}
    if not trained:
        return ""
    for name, seconds in _counted_before(trained).items():
        trained[name][0] -= len(seconds)
        trained[name][1] -= sum(seconds)
    rows = [f"| {name} | {runs} | {seconds / 60:.1f} |" for name, (runs, seconds) in trained.items()]
    runs, seconds = map(sum, zip(*trained.values(), strict=True))
    table = "\n".join([*rows, f"| all | {runs} | {seconds / 60:.1f} |"])
    return f"## What it took\n\n| figure | runs that no figure before needed | minutes of training |\n|---|---:|---:|\n{table}"


def _counted_before(names: Iterable[str]) -> dict[str, list[float]]:
    """The seconds that each of the runs was trained which a figure counts and `beyond` did before.

    One command counts a run once; these figures were made by a second command, which took them from the first.
    """
    settings, runs = read_runs(runs_file(RESULTS, RECIPES["beyond"]))
    known = {run.folder.name: run.summary.wall_s or 0.0 for run in runs.values() if run.summary is not None}
    found = {}
    for name in (name for name in ("hindsight", "forecast") if name in names):
        wanted = (fingerprint(scenario) for scenario in RECIPES[name].runs(settings).values())
        found[name] = [known.pop(one) for one in wanted if one in known]
    return found


def _code(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is out of date")
    parser.add_argument("--results", action="store_true", help="write experiments/ again from its runs, too")
    given = parser.parse_args(arguments)
    check = given.check
    for folder, name in product((RESULTS, SMALL), RECIPES) if given.results and not check else ():
        path = folder / f"{name}.json"
        if path.exists():
            again = made_again(name, folder, json.loads(path.read_text(encoding="utf-8")))
            if again is not None:
                write_result(again, folder)
    stale = False
    pages = {"scenario.md": text, "results.md": results, "results-small.md": small_results}
    for page, made in ((DOCS / name, make()) for name, make in pages.items()):
        if not check:
            page.write_text(made, encoding="utf-8")
        elif not page.is_file() or page.read_text(encoding="utf-8") != made:
            print(f"{page} is out of date; run  make docs", file=sys.stderr)
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
