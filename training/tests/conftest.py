import sys
from pathlib import Path

import torch

TRAINING = Path(__file__).resolve().parents[1]
for folder in (TRAINING, TRAINING / "reference"):
    sys.path.insert(0, str(folder))
torch.set_num_threads(1)        # the tensors are tiny: more threads only get in each other's way
