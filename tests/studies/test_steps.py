"""Steps of a study as lines of its journal."""

import json
import math

from purerl.runs.storage.files import checksum
from purerl.studies.steps import Step, step_of


def test_studies_of_version_0_3_count_trials_without_a_score_as_diverged():
    step = Step(0, {}, (0, 1), ({"lr": 0.1}, {"lr": 0.2}), ((1.0,), (math.nan,)), (0,), 0, 0.0)
    found = step._asdict() | {"scores": [[1.0], [None]], "drawn": []}
    del found["diverged"]
    line = json.dumps(found | {"check": checksum(json.dumps(found).encode()).hex()}).encode()
    assert step_of(line).diverged == (1,)
