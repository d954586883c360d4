"""The model table: rows of any module, and M' = W [U; M]."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hanse.core.table import PER_CLIENT, Add, Block, Layout, Mix, Replace, Table, as_one, mix


def module() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def test_layout_puts_parameters_first_then_float_buffers_and_leaves_integers_out() -> None:
    layout = Layout.of(module())
    assert layout.num_parameters == 3 * 4 + 4 + 4 + 4 + 4 * 2 + 2
    assert layout.size == layout.num_parameters + 8  # running mean and variance
    assert layout.names[-2:] == ("1.running_mean", "1.running_var")
    assert "1.num_batches_tracked" not in layout.names


def test_flatten_load_and_unflatten_are_inverse() -> None:
    one, other = module(), module()
    layout = Layout.of(one)
    row = layout.flatten(one) + torch.arange(layout.size)
    layout.load(other, row)
    assert torch.equal(layout.flatten(other), row)
    views = layout.unflatten(torch.stack([row, 2 * row]))
    assert views["0.weight"].shape == (2, 4, 3)
    assert torch.equal(views["0.weight"][1], 2 * other[0].weight)
    assert torch.equal(views["1.running_var"][0], other[1].running_var)


@given(st.integers(1, 5), st.integers(0, 4), st.integers(1, 4), st.integers(1, 700), st.integers(0, 99))
def test_mix_is_the_matrix_product(k_new: int, s: int, k: int, p: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    W, U, M = draw.normal(size=(k_new, s + k)), draw.normal(size=(s, p)), draw.normal(size=(k, p))
    U, M = U.astype(np.float32), M.astype(np.float32)
    got = mix(W, torch.from_numpy(U), torch.from_numpy(M))
    np.testing.assert_allclose(got.numpy(), W @ np.concatenate([U, M]).astype(np.float64), rtol=1e-6, atol=1e-6)


def test_a_kept_row_is_copied_bit_for_bit_even_beside_infinities() -> None:
    U = torch.tensor([[float("inf"), 1.0]])
    M = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    W = np.array([[0.0, 0.0, 1.0], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0]])
    got = mix(W, U, M)
    assert torch.equal(got[0], M[1])
    assert torch.equal(got[2], M[0])
    torch.testing.assert_close(got[1], torch.tensor([0.2, 0.3]))


def test_a_mix_wider_than_a_block_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    U, M = torch.randn((3, 50), generator=draw), torch.randn((2, 50), generator=draw)
    W = np.random.default_rng(0).uniform(-1, 1, (4, 5))
    whole = mix(W, U, M)
    monkeypatch.setattr("hanse.core.table._COLUMNS", 35)  # seven columns at a time
    assert torch.equal(mix(W, U, M), whole)


# ---- rows have names

BLOCKS = (
    Block("server"),
    Block("tier", 2, initial="different"),
    Block("own", PER_CLIENT, private=True),
    Block("model", PER_CLIENT, initial="different"),
    Block("control", initial="zero"),
)


def initial(k: int) -> torch.Tensor:
    return torch.tensor([k + 1.0, 10.0 * (k + 1)])


def named() -> Table:
    """Rows: server 0, tier 1 and 2, own 3 to 5, model 6 to 8, control 9."""
    return Table.laid_out(BLOCKS, 3, initial)


def test_blocks_are_laid_out_in_their_order_with_their_initial_models_and_owners() -> None:
    table = named()
    assert table.rows[:, 0].tolist() == [1, 1, 2, 1, 1, 1, 1, 2, 3, 0]
    assert table.rows[:, 1].tolist() == [10, 10, 20, 10, 10, 10, 10, 20, 30, 0]
    assert table.owner.tolist() == [-1, -1, -1, 0, 1, 2, -1, -1, -1, -1]
    assert table.block.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert table.size == 10
    assert (table.owner.dtype, table.block.dtype) == (np.int64, np.int64)


def test_rows_are_found_by_name_and_by_client() -> None:
    table = named()
    assert table.at("tier").tolist() == [1, 2]
    assert table.at("own", np.array([2, 0])).tolist() == [5, 3]
    assert table.at("model", np.array([1, 1])).tolist() == [7, 7]
    assert table.at("own", np.zeros(0, np.int64)).tolist() == []
    assert (table.row("server"), table.row("own"), table.row("control")) == (0, 3, 9)
    assert table.models("tier").tolist() == [[1, 10], [2, 20]]
    assert "tier" in table
    assert "centre" not in table


def test_rows_side_by_side_are_a_view_and_others_a_copy() -> None:
    table = named()
    beside, apart = table.some(np.array([3, 4])), table.some(np.array([5, 3]))
    assert beside.data_ptr() == table.rows[3].data_ptr()
    assert beside.tolist() == table.rows[3:5].tolist()
    assert apart.tolist() == [[1, 10], [1, 10]]
    assert table.some(np.array([8, 6])).tolist() == [[3, 30], [1, 10]]
    assert table.some(np.array([2])).data_ptr() == table.rows[2].data_ptr()
    assert table.some(np.zeros(0, np.int64)).shape == (0, 2)
    assert table.models("model").data_ptr() == table.rows[6].data_ptr()


def test_shared_rows_are_the_servers_models() -> None:
    assert named().shared.tolist() == [0, 1, 2]
    assert Table.laid_out([Block("own", PER_CLIENT, private=True)], 2, initial).shared.tolist() == []
    assert named().per_client(np.array([0, 4, 7, 9])).tolist() == [False, True, True, False]


def test_rows_on_show_are_the_servers_and_not_those_of_each_client_where_others_follow() -> None:
    assert named().on_show.tolist() == [0, 1, 2, 9]
    assert Table.laid_out([Block("model", PER_CLIENT)], 3, initial).on_show.tolist() == [0, 1, 2]
    both = [Block("model", PER_CLIENT), Block("centre", PER_CLIENT)]
    assert Table.laid_out(both, 2, initial).on_show.tolist() == [2, 3]
    assert Table.laid_out([Block("own", PER_CLIENT, private=True), Block("server")], 2, initial).on_show.tolist() == [2]


# ---- mixes in rows' names


def small() -> Table:
    return Table(torch.eye(3), np.array([-1, -1, 0]), np.array([0, 1, 2]), (Block("a"), Block("b"), Block("own")))


HOME = np.array([0, 1])


def test_keeping_is_the_unit_matrix_behind_the_updates() -> None:
    kept = Mix.keeping(small(), 2, HOME)
    assert kept.W.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert (kept.owner.tolist(), kept.block.tolist(), kept.home.tolist()) == ([-1, -1, 0], [0, 1, 2], [0, 1])
    assert Mix.keeping(small(), 0, HOME).W.tolist() == np.eye(3).tolist()
    assert kept.keeps(small(), np.array([0, 1, 2])).tolist() == [True] * 3
    assert kept.makers(small(), [0, 1, 2]).tolist() == [False, False]


def test_rows_are_replaced_by_updates_and_models_the_last_word_counts() -> None:
    table, kept = small(), Mix.keeping(small(), 2, HOME)
    pair = Replace(np.array([2, 0]), np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[0, 0, 0.25], [0, 1.0, -1.0]]))
    again = Replace(np.array([2]), np.array([[0.0, 3.0]]))
    got = kept.changed(table, [pair, again])
    assert got.W.tolist() == [[1, 0, 0, 1, -1], [0, 0, 0, 1, 0], [0, 3, 0, 0, 0]]
    assert kept.changed(table, [pair]).W[2].tolist() == [0.5, 0.5, 0, 0, 0.25]
    assert kept.W.tolist() == np.eye(3, 5, 2).tolist()  # as it was
    assert got.keeps(table, np.array([2, 1, 0])).tolist() == [False, True, False]
    assert (got.makers(table, [0]).tolist(), got.makers(table, [2]).tolist()) == ([True, False], [False, True])
    assert got.makers(table, [0, 2]).tolist() == [True, True]


def test_added_rows_are_the_servers_and_of_their_block() -> None:
    table, kept = small(), Mix.keeping(small(), 2, HOME)
    new = Add("b", np.array([0.25, 0.75]), np.array([0, 1.0, 0])), Add("a", np.array([1.0, 0]), np.zeros(3))
    got = kept.changed(table, [], new)
    assert got.W[3:].tolist() == [[0.25, 0.75, 0, 1, 0], [1, 0, 0, 0, 0]]
    assert (got.owner.tolist(), got.block.tolist()) == ([-1, -1, 0, -1, -1], [0, 1, 2, 1, 0])
    assert got.makers(table, [4]).tolist() == [True, False]
    with pytest.raises(KeyError, match=r"'c'.*'a'"):
        kept.changed(table, [], [Add("c", np.zeros(2), np.zeros(3))])


def test_without_some_rows_they_stay_and_without_a_new_one_all_do() -> None:
    table = small()
    everything = Replace(np.arange(3), np.ones((3, 2)))
    grown = Mix.keeping(table, 2, np.array([3, 3])).changed(
        table, [everything], [Add("a", np.array([0.5, 0.5]), np.zeros(3))]
    )
    less = grown.without(table, [2, 0], HOME)
    assert less.W.tolist() == [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0.5, 0.5, 0, 0, 0]]
    assert less.home.tolist() == [3, 3]
    nothing = grown.without(table, [3], HOME)
    assert nothing.W.tolist() == Mix.keeping(table, 2, HOME).W.tolist()
    assert (nothing.block.tolist(), nothing.home.tolist()) == ([0, 1, 2], [0, 1])
    assert grown.without(table, [], HOME).W.tolist() == grown.W.tolist()


def test_models_of_one_tensor_are_put_together_without_a_copy() -> None:
    whole = torch.arange(15.0).view(5, 3)
    rows = [whole[1], whole[2], whole[3]]
    assert as_one(rows).data_ptr() == whole[1].data_ptr()
    assert torch.equal(as_one(rows), whole[1:4])
    for others in ([whole[2], whole[1]], [whole[0], whole[2]], [whole[1], whole[2].clone()], [torch.ones(3)] * 2):
        found = as_one(others)
        assert torch.equal(found, torch.stack(others))
        assert found.data_ptr() not in (whole[0].data_ptr(), whole[1].data_ptr(), whole[2].data_ptr())
    flat = torch.arange(6.0)  # views of another shape of tensor
    assert torch.equal(as_one([flat[:3], flat[3:]]), flat.view(2, 3))
    turned = whole.t()  # its rows are not in one piece
    assert torch.equal(as_one([turned[0], turned[1]]), turned[:2])
