"""Reference implementations of explanation methods: loops with one text, one token and one forward pass at a time."""

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attentune.data.dataset import TextRows
from attentune.data.tokenization import encode_rows
from attentune.inference.predictor import Predictor
from attentune.seeding import derive_key, numpy_generator
from helpers.label_references import Row


class OneText(Row):
    """A row of a dataset with a run that predicts it in a batch of one."""

    def __init__(self, run: Predictor, rows: TextRows, row: int, target: int | None = None) -> None:
        config: Any = run.model.config
        features = encode_rows(
            rows.take([row]), run.tokenizer, max_length=config.max_seq_length, bi_encoder=config.is_bi_encoder
        )
        super().__init__(features, 0, run.model, run.tokenizer.mask_token_id)
        self.run = run
        self.target = self._predicted() if target is None else target

    def _predicted(self) -> int:
        logits_C = self.logits().double()
        if self.run.label_space.task_type == "ordinal":  # ordinal runs predict the class nearest to the mean
            shares_C = (logits_C - logits_C.max()).exp()
            return round(float((shares_C * torch.arange(len(shares_C))).sum() / shares_C.sum()))
        return int(logits_C.argmax())

    def value(self, logits_C: Tensor) -> Tensor:
        """Return log p / (1 - p) of the target class, computed from the probabilities; for regression, the score."""
        if len(logits_C) == 1:
            return logits_C[0]
        p = logits_C.double().softmax(dim=0)
        others = sum(p[number] for number in range(len(p)) if number != self.target)
        return p[self.target].log() - torch.log(torch.as_tensor(others))

    def asked(self, gone: Iterable[int] = ()) -> float:
        """Return `value` with these token positions masked."""
        return float(self.value(self.logits(gone)))

    @torch.no_grad()
    def embedded(self, gone: Iterable[int] = ()) -> Tensor:
        """Return the word embeddings (1, T, E), with these token positions masked."""
        return self.model.get_input_embeddings()(self.inputs(gone)["input_ids"])

    def gradient(self, value: Callable[[Tensor], Tensor], embedded_1TE: Tensor) -> Tensor:
        """Return the gradient (T, E) of a function of the logits at these word embeddings."""
        point_1TE, usual = embedded_1TE.detach().clone().requires_grad_(), self.model.get_input_embeddings()
        self.model.set_input_embeddings(_Given(point_1TE))
        try:
            result = value(self.model(**self.inputs()).logits[0])
        finally:
            self.model.set_input_embeddings(usual)
        return torch.autograd.grad(result, point_1TE)[0][0]

    def slope(self, embedded_1TE: Tensor) -> Tensor:
        """Return the gradient (T, E) of `value` at these word embeddings."""
        return self.gradient(self.value, embedded_1TE).double()

    def scores(self, by_place: dict[int, float]) -> np.ndarray:
        """Return one score per token, 0 for special tokens."""
        return np.array([by_place.get(place, 0.0) for place in range(len(self.ids))])

    def starts(self) -> list[int]:
        """Return, for each token, the position of the first token of its text."""
        second = len(self.ids) if self.second is None else self.second
        return [second if place >= second else 0 for place in range(len(self.ids))]


class _Given(nn.Module):
    """Replaces the word embeddings and returns a given tensor."""

    def __init__(self, embedded_1TE: Tensor) -> None:
        super().__init__()
        self.embedded_1TE = embedded_1TE

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.embedded_1TE


def ssa(text: OneText) -> np.ndarray:
    with torch.no_grad():
        importance_T = text.model(**text.inputs()).token_scores[0]
    return text.scores({place: float(importance_T[place]) for place in text.places})


def fast_shap(text: OneText) -> np.ndarray:
    """Apply the run's attribution head in NumPy, to one token after the other."""
    head = text.run.attribution_head
    weights = {name: tensor.double().numpy() for name, tensor in head.state_dict().items()}
    with torch.no_grad():
        states = text.model(**text.inputs(), output_hidden_states=True).hidden_states
    classes = 1 if text.run.label_space.task_type == "regression" else text.run.label_space.num_labels
    sign = -1 if classes == 2 and text.target == 0 else 1
    found = {}
    for place in text.places:
        read = []
        for number, layer in enumerate(head.layers):
            values = states[layer][0, place].double().numpy()
            normed = (values - values.mean()) / math.sqrt(values.var() + 1e-5)
            read.append(normed * weights[f"norms.{number}.weight"] + weights[f"norms.{number}.bias"])
        inner = weights["dense.weight"] @ np.concatenate(read) + weights["dense.bias"]
        inner = np.array([0.5 * value * (1.0 + math.erf(value / math.sqrt(2.0))) for value in inner])
        outputs = weights["output.weight"] @ inner + weights["output.bias"]
        found[place] = float(outputs[0 if classes <= 2 else text.target]) * sign
    # Their sum is made that of the text's value and of so many masked tokens.
    count = min(max(len(text.places), 1), len(weights["nothing_MO"]))
    nothing = weights["nothing_MO"][count - 1, 0 if classes <= 2 else text.target] * sign
    gap = text.asked() - nothing - sum(found.values())
    return text.scores({place: score + gap / len(text.places) for place, score in found.items()})


def gradient(text: OneText) -> np.ndarray:
    own_1TE, masked_1TE = text.embedded(), text.embedded(text.places)
    changes_TE = (own_1TE - masked_1TE)[0].double() * text.slope(own_1TE)
    return text.scores({place: float(changes_TE[place].sum()) for place in text.places})


def leave_one_out(text: OneText) -> np.ndarray:
    whole = text.asked()
    return text.scores({place: whole - text.asked([place]) for place in text.places})


def path_integral(start_1TE: Tensor, end_1TE: Tensor, steps: int, slope: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Return the integrated gradients (T,) from one text's word embeddings to another's, by Gauss-Legendre."""
    total_TE = torch.zeros_like(end_1TE[0], dtype=torch.float64)
    for node, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
        total_TE += float(weight) / 2.0 * slope(start_1TE + (1.0 + float(node)) / 2.0 * (end_1TE - start_1TE))
    return (total_TE * (end_1TE - start_1TE)[0]).sum(dim=-1).numpy()


def integrated_gradients(text: OneText, steps: int) -> np.ndarray:
    return path_integral(text.embedded(text.places), text.embedded(), steps, text.slope)


@contextlib.contextmanager
def eager(model: Any) -> Any:
    before = model.encoder.config._attn_implementation
    model.encoder.set_attn_implementation("eager")
    yield
    model.encoder.set_attn_implementation(before)


def attention(text: OneText, *, times_gradient: bool = False) -> np.ndarray:
    """Return the attention (T, H) of each head with the first token of each text as the query."""
    with eager(text.model):
        output = text.model(**text.inputs(), output_attentions=True)
    shares = output.attentions[-1]
    if times_gradient:
        (slope,) = torch.autograd.grad(text.value(output.logits[0]), shares)
        shares = shares * slope
        shares = torch.where(shares > 0, shares, torch.zeros_like(shares))
    starts = text.starts()
    found = np.zeros((len(text.ids), shares.shape[1]))
    for place in text.places:
        which = 0 if starts[place] == 0 else 1  # a bi-encoder's batch has the first texts before the second ones
        for head in range(shares.shape[1]):
            found[place, head] = float(shares[which, head, 0, place - starts[place]].detach())
    return found


def random(text: OneText, seed: int) -> np.ndarray:
    key = np.array(text.ids, dtype=np.int32).tobytes().hex()
    drawn = numpy_generator("random-scores", seed, key).random(len(text.ids), np.float32)
    return text.scores({place: float(drawn[place]) for place in text.places})


def ridge_weights(kept_SF: np.ndarray, answers_S: np.ndarray, weights_S: np.ndarray) -> np.ndarray:
    """Return the coefficients of a weighted ridge regression (alpha 1) with an intercept that is not penalised."""
    design = np.hstack([kept_SF, np.ones((len(kept_SF), 1))])
    penalty = np.diag([1.0] * kept_SF.shape[1] + [0.0])
    return np.linalg.solve(design.T @ (weights_S[:, None] * design) + penalty, design.T @ (weights_S * answers_S))[:-1]


def lime(text: OneText, *, samples: int, seed: int) -> np.ndarray:
    """Fit a ridge regression (alpha 1, unpenalized intercept) on copies with a random number of tokens masked."""
    count = len(text.places)
    if count < 2:
        return leave_one_out(text)
    key = derive_key("lime", seed, np.array(text.ids, dtype=np.int32).tobytes().hex())
    draw = numpy_generator("lime-copies", key)
    kept, answers, weights = [[1.0] * count], [text.asked()], [1.0]
    for _ in range(samples - 1):
        gone = draw.choice(count, size=draw.integers(1, count + 1), replace=False).tolist()
        kept.append([0.0 if number in gone else 1.0 for number in range(count)])
        answers.append(text.asked([text.places[number] for number in gone]))
        cosine = math.sqrt(sum(kept[-1]) / count)
        weights.append(math.sqrt(math.exp(-((100 * (1 - cosine)) ** 2) / 25**2)))
    solved = ridge_weights(np.array(kept), np.array(answers), np.array(weights))
    return text.scores(dict(zip(text.places, solved.tolist(), strict=True)))


def shapley(text: OneText) -> np.ndarray:
    """Compute exact Shapley values over all permutations of the tokens."""
    known: dict[tuple[int, ...], float] = {}

    def value(present: Sequence[int]) -> float:
        key = tuple(sorted(present))
        if key not in known:
            known[key] = text.asked([place for place in text.places if place not in present])
        return known[key]

    added = dict.fromkeys(text.places, 0.0)
    orders = list(itertools.permutations(text.places))
    for order in orders:
        for number, place in enumerate(order):
            added[place] += (value(order[: number + 1]) - value(order[:number])) / len(orders)
    return text.scores(added)


def chances(text: OneText, gone: Collection[int], erasure: str) -> list[float]:
    """Return the class probabilities of a text with these tokens erased."""
    inputs = text.inputs(gone if erasure == "mask" else ())
    if erasure == "attention":
        inputs["attention_mask"] = torch.tensor([[int(place not in gone) for place in range(len(text.ids))]])
    if erasure == "delete":
        kept = [place for place in range(len(text.ids)) if place not in gone]
        second = inputs.pop("second_start", None)
        inputs = {name: tensor[:, kept] for name, tensor in inputs.items()}
        if second is not None:
            inputs["second_start"] = torch.tensor([sum(place < int(second[0]) for place in kept)])
    with torch.no_grad():
        return text.model(**inputs).logits[0].double().softmax(dim=0).tolist()


def aopc(records: Sequence[dict[str, Any]], name: str) -> float:
    """Return the AOPC as ERASER's program computes it: the mean of p(full) - p(erased) over bins and rows."""
    total, count = 0.0, 0
    for record in records:
        label = record["classification"]
        for part in record["thresholded_scores"]:
            total += record["classification_scores"][label] - part[f"{name}_classification_scores"][label]
            count += 1
    return total / count
