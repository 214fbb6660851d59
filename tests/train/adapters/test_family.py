"""A batch of rotations is made when something changed, and never used when something did."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from train.adapters import cayley
from train.adapters.family import Family, Form

BLOCK = 4
EXACT = Form(block=BLOCK, num_terms=None, eps=None, shared=False, dropout=0.0)
DROPPING = Form(block=BLOCK, num_terms=None, eps=None, shared=False, dropout=0.5)


class Part(torch.nn.Module):
    """What a family needs of PEFT's rotation module."""

    def __init__(self, blocks: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(
            torch.randn(blocks, BLOCK * (BLOCK - 1) // 2, generator=generator) / 4
        )


def family(form: Form = EXACT, blocks: tuple[int, int] = (3, 2)) -> Family:
    """Two groups: one of two members, one of one."""
    return Family(form, {0: [Part(blocks[0], 0), Part(blocks[0], 1)], 1: [Part(blocks[1], 2)]})


def rotations_of(part: Any) -> torch.Tensor:
    return cayley.exact(cayley.skew_matrices(part.weight.detach().float(), BLOCK))


def test_each_member_gets_its_own_rotations_side_by_side() -> None:
    made = family()
    state = made.current(training=False)
    piece = made.piece(0, state, torch.float32)
    assert torch.equal(piece[..., :BLOCK], rotations_of(made.groups[0][0]))
    assert torch.equal(piece[..., BLOCK:], rotations_of(made.groups[0][1]))
    assert torch.equal(made.piece(1, state, torch.float32), rotations_of(made.groups[1][0]))
    assert made.piece(1, state, torch.bfloat16).dtype == torch.bfloat16


def test_nothing_is_made_twice_without_need() -> None:
    made = family()
    with torch.no_grad():
        state = made.current(training=False)
        assert made.current(training=False, fresh=True) is state
        assert made.current(training=True, group=1) is state
        assert made.piece(0, state, torch.float32) is made.piece(0, state, torch.float32)


def test_a_recording_call_has_a_graph_of_its_own_and_its_layers_share_it() -> None:
    made = family()
    first = made.current(training=True, fresh=True)
    assert made.current(training=True, group=0) is first
    assert made.current(training=True, fresh=True) is not first


CHANGES = {
    "in place": lambda weight: weight.detach().add_(0.1),
    "data": lambda weight: weight.data.add_(0.1),
    "data replaced": lambda weight: setattr(weight, "data", weight.data + 0.1),
    "nan": lambda weight: weight.data.fill_(torch.nan),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("group", [0, 1])
def test_a_change_of_any_parameter_is_seen(change: str, group: int) -> None:
    made = family()
    with torch.no_grad():
        before = made.current(training=False)
        CHANGES[change](made.groups[group][-1].weight)
        after = made.current(training=False)
    assert after is not before
    expected = rotations_of(made.groups[group][-1])
    assert (
        torch.equal(made.piece(group, after, torch.float32)[..., -BLOCK:], expected) or expected.isnan().all()
    )


def test_a_layer_sees_a_change_in_place_of_its_own_group_only() -> None:
    made = family()
    with torch.no_grad():
        state = made.current(training=False)
        made.groups[1][0].weight.add_(0.1)
        assert made.current(training=False, group=0) is state
        assert made.current(training=False, group=1) is not state


def test_another_parameter_in_the_modules_place_is_seen() -> None:
    made = family()
    before = made.current(training=False)
    made.groups[0][1].weight = torch.nn.Parameter(before.vectors[:3] + 1)
    assert made.current(training=False, group=0) is not before


def test_graph_and_no_graph_are_not_taken_for_each_other() -> None:
    made = family()
    with torch.no_grad():
        bare = made.current(training=True)
    recorded = made.current(training=True, group=0)
    assert not bare.turning.requires_grad and recorded.turning.requires_grad
    with torch.no_grad():
        assert made.current(training=True, group=0) is recorded
        assert not made.piece(0, recorded, torch.float32).requires_grad
    assert made.piece(0, recorded, torch.float32).requires_grad
    for part in made.modules:
        part.requires_grad_(False)
    assert not made.current(training=True, group=0).turning.requires_grad


def test_inference_mode_leaves_nothing_that_a_graph_would_choke_on() -> None:
    made = family()
    with torch.inference_mode():
        within = made.current(training=False)
        made.piece(0, within, torch.float32)
    for part in made.modules:
        part.requires_grad_(False)  # no graph is asked of the map, but one may go through its results
    assert not made.current(training=False).turning.is_inference()
    with torch.no_grad():
        without = made.current(training=False, fresh=True)
    with torch.inference_mode():
        assert made.piece(0, without, torch.bfloat16).is_inference()
    with torch.no_grad():
        assert not made.piece(0, without, torch.bfloat16).is_inference()


def test_a_used_up_graph_is_not_used_again() -> None:
    made = family()
    state = made.current(training=True)
    made.piece(0, state, torch.float32).sum().backward()
    again = made.current(training=True, group=0)
    assert again is not state
    made.piece(0, again, torch.float32).sum().backward()


@pytest.mark.parametrize("seed", [0, 1])
def test_dropout_leaves_blocks_out_by_the_generator_of_the_cpu(seed: int) -> None:
    made = family(DROPPING, blocks=(300, 200))
    torch.manual_seed(seed)
    turning = made.current(training=True, fresh=True).turning
    left_out = (turning == torch.eye(BLOCK)).flatten(1).all(1)
    assert 0.42 < left_out.float().mean().item() < 0.58
    assert torch.equal(turning[~left_out], made.current(training=True).rotations[~left_out])
    torch.manual_seed(seed)
    assert torch.equal(family(DROPPING, blocks=(300, 200)).current(training=True).turning, turning)


def test_dropout_is_drawn_anew_for_each_step_and_stays_while_a_backward_is_due() -> None:
    made = family(DROPPING, blocks=(30, 20))
    first = made.current(training=True, fresh=True)
    second = made.current(training=True, fresh=True)
    assert first is not second and torch.equal(first.kept, second.kept)
    made.piece(0, second, torch.float32).sum().backward()
    third = made.current(training=True, fresh=True)
    assert not torch.equal(second.kept, third.kept)


def test_evaluation_leaves_nothing_out_and_frozen_members_do_not_matter() -> None:
    made = family(DROPPING, blocks=(30, 20))
    made.groups[1][0].requires_grad_(False)
    state = made.current(training=True, fresh=True)
    assert made.current(training=True, group=1) is state and made.current(training=True, group=0) is state
    with torch.no_grad():
        evaluated = made.current(training=False)
    assert evaluated.kept is None and torch.equal(evaluated.turning, evaluated.rotations)


def test_constrained_parameters_are_put_within_the_bound_only_where_they_are_trained() -> None:
    made = family(Form(block=BLOCK, num_terms=None, eps=0.1, shared=False, dropout=0.0))
    before = [part.weight.detach().clone() for part in made.modules]
    with torch.no_grad():
        bounded = made.current(training=False)
    assert all(torch.equal(part.weight, old) for part, old in zip(made.modules, before, strict=True))
    trained = made.current(training=True)
    assert torch.allclose(bounded.rotations, trained.rotations, atol=1e-6)
    for part in made.modules:
        norms = torch.linalg.matrix_norm(cayley.skew_matrices(part.weight.detach(), BLOCK))
        assert torch.allclose(norms, torch.tensor(0.1) / len(part.weight) ** 0.5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_mapped_in_fp32(dtype: torch.dtype) -> None:
    made = family()
    for part in made.modules:
        part.to(dtype)
    state = made.current(training=True)
    assert state.rotations.dtype == torch.float32
    assert cayley.orthogonality_error(state.rotations) < 1e-5
    made.piece(0, state, dtype).sum().backward()
    assert made.groups[0][0].weight.grad.dtype == dtype


@pytest.mark.parametrize("num_terms", [None, 5])
def test_autocast_does_not_reach_the_map(num_terms: int | None) -> None:
    made = family(replace(EXACT, num_terms=num_terms))
    with torch.autocast("cpu", torch.bfloat16):
        within = made.current(training=True)
    assert torch.equal(within.rotations, made.current(training=True, fresh=True).rotations)


def test_a_copy_has_parameters_and_rotations_of_its_own() -> None:
    made = family()
    made.current(training=True)
    twin = copy.deepcopy(made)
    twin.modules[0].weight.data.add_(0.2)
    rotations = twin.current(training=False).rotations
    assert not torch.equal(rotations, made.current(training=False).rotations)
    assert twin.modules[0] in [*twin.groups[0], *twin.groups[1]]
