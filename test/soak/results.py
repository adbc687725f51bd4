"""Writes what was measured: a table, the findings, and a picture."""

import csv
import json
import os
import subprocess

import quantities

PLOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "script", "plot")


def write(directory, samples, findings, summary):
    """Everything into the directory. Whether there is a picture too."""
    os.makedirs(directory, exist_ok=True)
    write_table(os.path.join(directory, "soak.csv"), samples)
    with open(os.path.join(directory, "soak.json"), "w") as file:
        json.dump({"summary": summary, "findings": [as_json(one) for one in findings]}, file, indent=2)
    source = os.path.join(directory, "picture.json")
    with open(source, "w") as file:
        json.dump(picture(samples, findings, summary), file)
    return subprocess.run([PLOT, source, os.path.join(directory, "soak.png")]).returncode == 0


def write_table(path, samples):
    keys = sorted({key for sample in samples for key in sample} - {"at"})
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, ["at", *keys], restval="")
        table.writeheader()
        table.writerows(samples)


def as_json(finding):
    quantity, trend = finding.quantity, finding.trend
    return {
        "quantity": quantity.key, "unit": "bytes" if quantity.unit == "MiB" else quantity.unit, "grows": finding.grows,
        "per_hour": trend and trend.per_hour, "z": trend and trend.z, "limit_per_hour": finding.limit_per_hour,
    }


def picture(samples, findings, summary):
    by_key = {one.quantity.key: one for one in findings}
    panels = [panel(samples, quantity, by_key.get(quantity.key)) for quantity in quantities.ALL]
    return {"title": "Soak: " + summary["headline"], "subtitle": summary["text"], "columns": 3, "panels": panels}


def panel(samples, quantity, finding):
    points = [
        [sample["at"] / 60, None if sample.get(quantity.key) is None else sample[quantity.key] / quantity.scale]
        for sample in samples
    ]
    series = [{"points": points}]
    if finding and finding.trend and quantity.life == "beam":
        series.append(line(samples, quantity, finding.trend))
    # Once is enough for readers who look at all of them.
    if quantity == quantities.ALL[0] and len(series) == 2:
        series[0]["label"], series[1]["label"] = "measured", "trend of what was judged"
    return {
        "title": quantity.title, "note": finding.describe() if finding else "not judged",
        "alarm": bool(finding and finding.grows), "x": {"label": "minutes"},
        "y": {"label": quantity.unit, "from_zero": quantity.key != "atoms"}, "series": series,
    }


def line(samples, quantity, trend):
    """The slope, through the middle of what was judged."""
    last = samples[-1]["at"]
    begun = last - trend.seconds
    values = [sample[quantity.key] for sample in samples if sample["at"] >= begun and sample.get(quantity.key) is not None]
    middle, height = (begun + last) / 2, sorted(values)[len(values) // 2]
    ends = [[at / 60, (height + trend.slope * (at - middle)) / quantity.scale] for at in (begun, last)]
    return {"style": "dashed", "points": ends}
