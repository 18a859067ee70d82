"""How long Hypothesis searches.

`default`, in every run, takes seconds; `deep`, under `make soak` (`GREENROOM_SOAK=1`), takes minutes; `mutants`
(`GREENROOM_MUTANTS=1`) draws twice as many examples as `default`, because it must find its fault in one run; it stops
at the first failure and does not shrink it, because nobody reads the example. A test that sets its own number of
examples scales it with `examples`. No profile has a deadline, or the check "too slow": a busy machine is not a failure.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

IS_DEEP: Final = bool(os.environ.get("GREENROOM_SOAK"))
_EXAMPLES: Final = 50  # each run draws others
_TIMES: Final = 25  # as many, in the deep profile, where a test sets its own number


def register_profiles() -> None:
    """Register both and load the one that is asked for. Called once, by `conftest`."""
    default = settings(
        max_examples=_EXAMPLES, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
    patient = (HealthCheck.too_slow, HealthCheck.data_too_large)
    deep = settings(default, max_examples=2 * _EXAMPLES * _TIMES, suppress_health_check=patient)
    settings.register_profile("default", default)
    settings.register_profile("deep", deep)
    hasty = settings(
        default, max_examples=2 * _EXAMPLES, phases=(Phase.explicit, Phase.generate), database=None
    )
    settings.register_profile("mutants", hasty)
    settings.load_profile(
        "mutants" if os.environ.get("GREENROOM_MUTANTS") else "deep" if IS_DEEP else "default"
    )


def examples(count: int) -> settings:
    """`count` examples by default, and as many times more as the deep profile has."""
    return settings(max_examples=count * (_TIMES if IS_DEEP else 1))
