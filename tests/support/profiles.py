"""How long Hypothesis searches.

`default`, in every run, takes seconds; `deep`, under `make soak` (`GREENROOM_SOAK=1`), takes minutes; `mutants`
(`GREENROOM_MUTANTS=n`) draws four or ten times as many examples as `default`, n times over, because it must find its
fault in one run; it stops at the first failure and does not shrink it, because nobody reads the example. A test that
sets its own number of examples scales it with `examples`. `make soak` searches the files that the Makefile lists in
`SEARCHED`. No profile has a deadline, or the check "too slow": a busy machine is not a failure.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

IS_DEEP: Final = bool(os.environ.get("GREENROOM_SOAK"))
_TIMES_MUTATED: Final = int(os.environ.get("GREENROOM_MUTANTS") or 0)
IS_MUTATED: Final = _TIMES_MUTATED > 0
_EXAMPLES: Final = 100  # a quarter of them in the default profile: each run draws others
_PART: Final = 10  # of the examples that a test sets itself, the default profile draws a tenth
_TIMES: Final = 25  # as many in the deep profile


def register_profiles() -> None:
    """Register both and load the one that is asked for. Called once, by `conftest`."""
    default = settings(
        max_examples=_EXAMPLES // 4,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    patient = (HealthCheck.too_slow, HealthCheck.data_too_large)
    deep = settings(default, max_examples=_EXAMPLES * _TIMES, suppress_health_check=patient)
    settings.register_profile("default", default)
    settings.register_profile("deep", deep)
    hasty = settings(default, max_examples=_EXAMPLES, phases=(Phase.explicit, Phase.generate), database=None)
    settings.register_profile("mutants", hasty)
    settings.load_profile("mutants" if IS_MUTATED else "deep" if IS_DEEP else "default")


def examples(count: int) -> settings:
    """`count` examples for mutants; a tenth of them in the default profile; many times more in the deep one."""
    if IS_DEEP:
        return settings(max_examples=count * _TIMES)
    return settings(max_examples=count * _TIMES_MUTATED if IS_MUTATED else count // _PART)
