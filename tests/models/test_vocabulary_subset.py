"""Training the used rows alone gives what AdamW on the whole table gives."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from attentune.config import TrainingConfig
from attentune.errors import CheckpointError
from attentune.models.vocabulary_subset import VocabularySubset
from attentune.training.optimizer import (
    LearningRateSchedule,
    build_optimizer,
    set_learning_rate,
)
from helpers.tiny import FAMILIES

STEPS = 6
IDS = torch.tensor([[7, 9, 30, 41], [9, 9, 12, 1]])


def trained(model, compact: bool, l2_sp: float = 0.0) -> dict[str, torch.Tensor]:
    """The weights after a few clipped AdamW steps in evaluation mode (no dropout), so that only the table differs."""
    model.eval().pooler = None
    embeddings = VocabularySubset(model, np.unique(IDS.numpy())) if compact else None
    training = TrainingConfig(learning_rate=1e-2, weight_decay=0.1, l2_sp=l2_sp)
    schedule, optimizer = LearningRateSchedule(training, STEPS), build_optimizer(training, model)
    for step in range(STEPS):
        set_learning_rate(optimizer, schedule.factor(step))
        hidden_BTD = model(input_ids=IDS).last_hidden_state
        (hidden_BTD * torch.linspace(-1, 1, hidden_BTD.numel()).view_as(hidden_BTD)).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    if embeddings is not None:
        embeddings.expand(schedule.decay_factor(STEPS))
    return dict(model.state_dict())


# IDS holds no padding: its row, too, is then an untouched one.
@pytest.mark.integration
@pytest.mark.parametrize(("family", "pull"), [*((family, 0.0) for family in FAMILIES), ("bert", 5.0), ("roberta", 5.0)])
def test_the_same_weights_as_with_the_whole_table(tiny, family, pull):
    """Unused embeddings have no gradient, so L2-SP's pull towards their start leaves them where they are."""
    folder = tiny(family)
    whole, compact = (trained(AutoModel.from_pretrained(folder), one, pull) for one in (False, True))
    assert whole.keys() == compact.keys()
    name = next(name for name in whole if "word_embeddings" in name or "tok_embeddings.weight" in name)
    before = AutoModel.from_pretrained(folder).state_dict()[name]
    unused = np.setdiff1d(np.arange(len(before)), IDS.numpy())
    if pull:
        assert torch.equal(whole[name][unused], before[unused])
        assert torch.equal(compact[name][unused], before[unused])
    else:
        assert not torch.allclose(whole[name][50:60], before[50:60]), "weight decay moves untouched rows too"
    for key, value in whole.items():
        torch.testing.assert_close(compact[key], value, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


def test_a_checkpoint_of_another_encoder_is_refused(tiny):
    model, other = (AutoModel.from_pretrained(tiny("bert", seed=seed)) for seed in (0, 1))
    embeddings = VocabularySubset(model, np.array([3, 4]))
    with pytest.raises(CheckpointError, match="not the one that this run was begun with"), embeddings.loading(1.0):
        model.load_state_dict(other.state_dict())
