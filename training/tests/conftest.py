import sys
from pathlib import Path

TRAINING = Path(__file__).resolve().parents[1]
for folder in (TRAINING, TRAINING / "reference"):
    sys.path.insert(0, str(folder))
