"""One of two ranks on the stand-in: python -m tests.gaudi.rank_worker MODEL STORE RANK. Prints the tokens of a schedule."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.engine.tiny_models import ragged_schedule
from tests.gaudi.opened import open_gaudi
from tgi_core.backend import Group, WarmupPlan

PLAN = WarmupPlan(max_rows=3, max_row_tokens=128, max_step_tokens=128, num_blocks=3)

if __name__ == "__main__":
    model, store, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    session, capacity = open_gaudi(model, PLAN, group=Group(rank, 2, f"file:{store}", rank, 2))
    tokens = ragged_schedule(session, capacity)
    module, compiles = os.environ["HLS_MODULE_ID"], session.stats().compiles
    session.close()
    print(json.dumps({"tokens": tokens, "module": module, "compiled": compiles - capacity.compiles}))
