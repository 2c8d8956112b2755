"""What measured choices found: how often, and by how much, the cost model would have chosen otherwise.

In: the plan's `Tuned` records. Out: the regret, a sentence, and plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from onepass.fuse.plan import Tuned
from onepass.report.units import plural, seconds_text, share_text


def regret(tuned: Sequence[Tuned]) -> float:
    """Time of the cost model's choices over that of the measured ones, minus one: a share of the latter."""
    own = sum(record.timed[0].measured_s for record in tuned)
    best = sum(record.timed[record.chosen].measured_s for record in tuned)
    return own / best - 1 if best else 0.0


def tuning_sentence(tuned: Sequence[Tuned]) -> str:
    """How often the cost model would have decided otherwise, and what that would have cost."""
    if not tuned:
        return "Tuned: no region has another form that is worth timing."
    others = sum(record.chosen != 0 for record in tuned)
    best = sum(record.timed[record.chosen].measured_s for record in tuned)
    return (
        f"Tuned: {plural(len(tuned), 'region')} timed in several ways, {seconds_text(best)} as chosen; the "
        f"cost model would have decided otherwise in {others}, a regret of {share_text(regret(tuned))}."
    )


def tuning_json(tuned: Sequence[Tuned]) -> dict[str, object]:
    """The sentence's figures, and each region with the ways that were timed, the cost model's own first."""
    regions = [
        {"name": record.name, "chosen": record.chosen, "timed": [asdict(way) for way in record.timed]}
        for record in tuned
    ]
    otherwise = sum(record.chosen != 0 for record in tuned)
    return {"regret": regret(tuned), "otherwise": otherwise, "regions": regions}
