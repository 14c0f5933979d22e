"""Keys and generators: the same on every machine, different for every key, and blind to what was drawn before."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.seeding import derive_key, numpy_generator, seed_global, torch_generator

PARTS = st.lists(st.one_of(st.integers(), st.text(st.characters(codec="utf-8", exclude_characters="\x1f"))), max_size=4)


def test_keys_are_what_they_always_were() -> None:
    """A change here changes every run that anyone has recorded."""
    assert derive_key() == 6510301506637419378
    assert derive_key("a") == 4130140272143641223
    assert derive_key("ü") == 3653988829707620377
    assert derive_key(42, "order", 0) == 8098883307743301636
    assert derive_key(-1, 2**70) == 7233344425403887328
    assert numpy_generator("mask", 42, 1, 3).integers(0, 1000, 5).tolist() == [986, 951, 410, 534, 281]
    assert torch.randint(0, 1000, (4,), generator=torch_generator("x", 1)).tolist() == [68, 282, 904, 517]


def test_ten_thousand_keys_are_ten_thousand_numbers() -> None:
    keys = itertools.product(("order", "mask"), range(5), range(10), range(100))
    assert len({derive_key(*key) for key in keys}) == 10_000


@given(PARTS, PARTS)
def test_a_key_depends_on_every_part_its_type_and_its_place(one: list, other: list) -> None:
    assert (derive_key(*one) == derive_key(*other)) == (one == other)
    assert 0 <= derive_key(*one) < 2**63


def test_order_types_and_borders_of_the_parts_matter() -> None:
    keys = [(1, 2), (2, 1), (1,), ("1",), (12,), ("ab", "c"), ("a", "bc"), ("a",), ("a", "")]
    assert len({derive_key(*key) for key in keys}) == len(keys)
    assert {derive_key(kind(3)) for kind in (int, np.int64, np.int32, np.uint8)} == {derive_key(3)}


def test_generators_of_one_key_draw_the_same_whatever_was_drawn_before() -> None:
    first = numpy_generator("a", 1).random(3)
    numpy_generator("b").random(100)
    np.random.seed(0)
    assert np.array_equal(numpy_generator("a", 1).random(3), first)
    assert not np.array_equal(numpy_generator("a", 2).random(3), first)
    drawn = torch.rand(3, generator=torch_generator("a", 1))
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    assert torch.equal(torch.rand(3, generator=torch_generator("a", 1)), drawn)
    assert not torch.equal(torch.rand(3, generator=torch_generator("a", 2)), drawn)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seed_global_sets_what_dropout_draws() -> None:
    with torch.random.fork_rng(devices=[]):
        drawn = []
        for key in ((1, "step", 5), (1, "step", 6), (1, "step", 5)):
            seed_global(*key)
            drawn.append(torch.nn.functional.dropout(torch.ones(200)))
            torch.rand(7)
        assert torch.equal(drawn[0], drawn[2])
        assert not torch.equal(drawn[0], drawn[1])
