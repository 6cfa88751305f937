"""The tests. What they share with the example project is in ``testproject``, which is no package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "testproject"))
