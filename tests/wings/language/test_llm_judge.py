"""Answers judged by likelihood and by exact match, on a model whose probabilities are written down."""

import math

import pytest
import torch

from hanse.data.dataset import IGNORED
from hanse.wings.language.judge import AnswerJudge

END, PAD = 5, 6
# after the prompt's last token p: what follows each token, whatever came before
NEXT = {
    0: {1: 0.4, 2: 0.6},
    1: {1: 0.1, END: 0.9},
    2: {3: 0.5, 4: 0.25, END: 0.25},
    3: {END: 1.0},
    4: {END: 1.0},
    END: {END: 1.0},
    PAD: {END: 1.0},
}


def outputs(x: torch.Tensor) -> torch.Tensor:
    found = torch.full((*x.shape, 7), -1e9)
    for place in range(x.shape[0]):
        for t in range(x.shape[1]):
            for token, p in NEXT[int(x[place, t])].items():
                found[place, t, token] = math.log(p)
    return found.transpose(1, 2)


def sample(answer: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A prompt of two tokens, the last of them 0, and an answer, in a window of 6."""
    whole = [3, 0, *answer]
    x = [*whole[:-1], *[PAD] * (7 - len(whole))]
    return torch.tensor([x]), torch.tensor([[IGNORED, *answer, *[IGNORED] * (5 - len(answer))]])


def test_the_likeliest_candidate_need_not_begin_likeliest() -> None:
    # 1, END: 0.36; 2, 3, END: 0.3; 2, 4, END: 0.15
    judge = AnswerJudge(((1, END), (2, 3, END), (2, 4, END)), PAD)
    loss, right = judge(outputs, *sample([1, END]))
    assert float(loss) == pytest.approx(-math.log(0.36) / 2)
    assert float(right) == 1.0
    assert float(judge(outputs, *sample([2, 3, END]))[1]) == 0.0


def test_exact_match_is_greedy_decoding() -> None:
    exact = AnswerJudge((), PAD)
    assert float(exact(outputs, *sample([2, 3, END]))[1]) == 1.0
    assert float(exact(outputs, *sample([1, END]))[1]) == 0.0  # its first token is not the likeliest
    assert float(exact(outputs, *sample([2, 4, END]))[1]) == 0.0


def test_an_answer_that_is_no_candidate_is_matched_exactly() -> None:
    judge = AnswerJudge(((1, END),), PAD)
    assert float(judge(outputs, *sample([2, 3, END]))[1]) == 1.0
    assert float(judge(outputs, *sample([2, 4, END]))[1]) == 0.0


def test_many_samples_are_judged_as_one_by_one() -> None:
    judge = AnswerJudge(((1, END), (2, 3, END)), PAD)
    samples = [sample([1, END]), sample([2, 3, END]), sample([2, END])] * 7
    x, y = (torch.cat([pair[i] for pair in samples]) for i in range(2))
    loss, right = judge(outputs, x, y)
    assert right.tolist() == [1.0, 0.0, 0.0] * 7
    each = [float(judge(outputs, a, b)[0]) for a, b in samples[:3]]
    assert loss.tolist() == pytest.approx(each * 7)
    assert [len(part) for part in judge(outputs, x[:0], y[:0])] == [0, 0]
