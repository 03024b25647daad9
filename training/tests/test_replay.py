"""On-policy masks: which rows one pass shows, against cases built by hand."""

import torch
import torch.nn.functional as F

from layout import CHUNK, Batch
from replay import advance

MASK = 3
VOCAB = 64
CERTAIN, UNSURE = 20.0, 0.1     # logit of the choice among 63 zeros: probability 1.0 and 0.02


def test_a_pass_shows_what_generation_would_fix_if_it_is_right():
    row = torch.arange(CHUNK)
    tokens = (row + 5).repeat(1, 5)
    target = tokens.reshape(1, 5, CHUNK)
    choice, logit = target.clone(), torch.full((1, 5, CHUNK), CERTAIN)
    logit[0, 0, 10:] = UNSURE           # block 0: ten sure rows, the fourth of them wrong
    choice[0, 0, 3] = 4
    logit[0, 2] = UNSURE                # block 2: nobody is sure, row 5 most nearly
    logit[0, 2, 5] *= 2
    width = torch.tensor([[32, 32, 32, 16, 32]])            # block 3 is a draft, block 4 unused
    weight = torch.ones(1, 5, CHUNK)
    weight[0, 4] = 0
    none = torch.zeros(1, 5 * CHUNK)
    batch = Batch(tokens=tokens, position=none.long(), live=none.bool(),
                  segment=torch.zeros(1, 5, dtype=torch.long), block_chunk=torch.arange(5)[None],
                  noisy=torch.full((1, 5, CHUNK), MASK), width=width,
                  causal_weight=weight, noisy_weight=weight)

    got = advance(batch, F.one_hot(choice, VOCAB) * logit[..., None], torch.eye(VOCAB), MASK)

    shown = torch.zeros(5, CHUNK, dtype=torch.bool)
    shown[0, :10] = True
    shown[0, 3] = False                 # wrong: stays hidden
    shown[2, 5] = True
    shown[3, 0] = True                  # blocks 1, 3 and 4 are done and start again
    assert torch.equal(got.noisy[0], torch.where(shown, target[0], MASK))
    asked = ~shown & (row < width[0, :, None])
    asked[4] = False
    assert torch.equal(got.noisy_weight[0].bool(), asked)
    assert torch.equal(got.tokens, batch.tokens)
