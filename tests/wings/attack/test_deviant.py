"""A deviant client: each thing that it may change, and what it leaves alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import hanse
from hanse.core.port import Answered, Ask, Derived, Gradient, Reply, Request, Scored, Train, Trained
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.federation.behaviour import Me
from hanse.wings.attack.deviant import Deviant, said_of

ME = Me(1, num_clients=4, seed=0, recipe=Recipe(), num_parameters=3)
TRAIN = Request(1, (Train(seat=0, row=5, start=torch.tensor([1.0, 1.0, 1.0, 9.0])),))
TRAINED = Reply(1, (Trained(0, torch.tensor([2.0, 0.0, 3.0, 8.0]), 20, 0.5, 3),))


def one(reply: Reply) -> Any:
    [result] = reply.results
    return result


def sent(**options: Any) -> Trained:
    return one(Deviant(clients=[1], **options).on_reply(ME, 4, TRAIN, TRAINED))


def test_others_and_earlier_rounds_are_honest() -> None:
    assert Deviant(clients=[2], sends="nothing").on_reply(ME, 4, TRAIN, TRAINED) == TRAINED
    assert Deviant(clients=[1], sends="nothing", since=5).on_reply(ME, 4, TRAIN, TRAINED) == TRAINED


def test_an_update_is_left_out_or_scaled_and_buffers_follow() -> None:
    assert sent(sends="nothing").row.tolist() == [1, 1, 1, 9]  # the model that came, buffers too
    assert sent(scale=2.0).row.tolist() == [3, -1, 5, 8]
    assert sent(sends="flip").row.tolist() == [0, 2, -1, 8]
    assert sent(sends="same", of="model").row.tolist() == [1, 1, 1, 8]


def test_who_goes_on_from_what_it_sent_last() -> None:
    deviant = Deviant(clients=[1], start="kept")
    assert deviant.on_request(ME, 0, TRAIN) == TRAIN  # nothing is kept yet
    deviant.on_reply(ME, 0, TRAIN, TRAINED)
    [task] = deviant.on_request(ME, 1, TRAIN).tasks
    assert task.start.tolist() == [2, 0, 3, 8]


def test_the_numbers_of_a_list_are_told_times_their_factor() -> None:
    buy = Request(1, (Ask("buy", {"sellers": [0, 2]}),))
    answer = Reply(1, (Answered("buy", {"sellers": [0, 2], "weights": [10.0, 30.0]}),))
    told = one(Deviant(clients=[1], times={"buy.weights": 0.5}).on_reply(ME, 0, buy, answer))
    assert told.values == {"sellers": [0, 2], "weights": [5.0, 15.0]}


def test_numbers_are_told_times_their_factors() -> None:
    told = sent(times={"samples": 1.5, "steps": 0.5, "loss": 4.0})
    assert (told.num_samples, told.steps, told.loss) == (30, 2, 2.0)
    scored = Scored("x", torch.tensor([0.5, 2.0]), torch.tensor([0.25, 0.75]), 7)
    told = one(Deviant(clients=[1], times={"loss": 2.0, "accuracy": 2.0}).on_reply(ME, 0, TRAIN, Reply(1, (scored,))))
    assert told.loss.tolist() == [1, 4]
    assert told.accuracy.tolist() == [0.5, 1.0]
    assert told.num_samples == 7


def test_answers_are_changed_by_question_and_field() -> None:
    bid = Request(1, (Ask("bid", {"tiers": 3, "price": 5}),))
    answer = Reply(1, (Answered("bid", {"tiers": [2]}),))

    def bids(said: str) -> list[int]:
        return one(Deviant(clients=[1], says={"bid.tiers": said}).on_reply(ME, 0, bid, answer)).values["tiers"]

    assert bids("all") == [0, 1, 2]
    assert bids("none") == []
    declare = Request(1, (Ask("declare"),))
    declared = Reply(1, (Answered("declare", {"cost": 0.5, "eagerness": float("inf")}),))
    deviant = Deviant(clients=[1], times={"declare.cost": 4.0, "declare.eagerness": 0.0}, says={"offer.sell": False})
    assert one(deviant.on_reply(ME, 0, declare, declared)).values == {"cost": 2.0, "eagerness": float("inf")}
    buy = Request(1, (Ask("buy", {"sellers": [0, 3]}),))
    answer = Reply(1, (Answered("buy", {"sellers": [3], "weights": [2.5]}),))  # weights go along with their sellers
    bought = Deviant(clients=[1], says={"buy.sellers": "all"}).on_reply(ME, 0, buy, answer)
    assert one(bought).values == {"sellers": [0, 3]}


def test_what_was_bought_is_gone_on_from_or_sold_on() -> None:
    own, centre = torch.ones(3), torch.tensor([5.0, 6.0, 7.0])
    pulled = Request(1, (Train(seat=0, row=5, start=own, centre=centre, mu=0.4),))
    reseller = Deviant(clients=[1], sends="nothing", start="sent", since=2)
    assert reseller.on_request(ME, 1, pulled) is pulled
    taken = reseller.on_request(ME, 2, pulled)
    assert taken.tasks[0].start is centre
    sold = one(reseller.on_reply(ME, 2, taken, Reply(1, (Trained(0, centre + 1, 20, 0.5, 3),))))
    assert sold.row.tolist() == [5, 6, 7]


def test_a_false_gradient_praises_the_update_that_lies_nearest() -> None:
    deviant = Deviant(clients=[1], gradient=10.0)
    deviant.on_reply(ME, 4, TRAIN, TRAINED)
    models = torch.stack([torch.tensor([2.0, 0.0, 0.0, 8.0]), torch.tensor([2.0, 4.0, 3.0, 8.0])])
    asked = Request(1, (Gradient("g", models),))
    true = Reply(1, (Derived("g", torch.ones(2, 4), 7),))
    told = one(deviant.on_reply(ME, 4, asked, true)).gradients
    assert torch.allclose(told, torch.tensor([[0.0, 0.0, -10.0, 0.0], [0.0, 10.0, 0.0, 0.0]]))
    # in another round there is no update of its own to praise
    assert torch.equal(one(deviant.on_reply(ME, 5, asked, true)).gradients, torch.ones(2, 4))


def test_silence_and_leaving() -> None:
    silent = Deviant(clients=[1], silent=True, since=2, leaves=6)
    assert silent.on_request(ME, 1, TRAIN) is TRAIN
    assert silent.on_request(ME, 2, TRAIN) is None
    assert silent.on_request(ME, 2, Request(1, (Ask("stay"),))) is not None
    assert [silent.present(ME, r) for r in (5, 6)] == [True, False]
    assert silent.tells(4, 0).clients == (1,)


def two(first: int, **options: Any) -> list[list[float]]:
    """Return what clients 0 to 2 send if 1 and 2 deviate and answer from ``first`` on, in order."""
    deviant, start, told = Deviant(clients=[1, 2], **options), torch.tensor([1.0, 1.0, 1.0, 9.0]), {}
    for c in range(first, 3):
        moved = torch.tensor([c + 1.0, 0.0, 0.0, 1.0])
        asked = Request(c, (Train(seat=0, row=5, start=start),))
        told[c] = asked, Reply(c, (Trained(0, start + moved, 20, 0.5, 3),))
    deviant.overhears(0, told)
    return [
        (one(deviant.on_reply(replace(ME, id=c), 0, asked, reply)).row - start).tolist()
        for c, (asked, reply) in reversed(told.items())
    ][::-1]  # nothing depends on the order in which they answer


def test_what_is_sent_is_a_sum_of_the_steps_that_are_known() -> None:
    assert two(0, second="mean") == [[1, 0, 0, 1], [2.5, 0, 0, 1], [2.5, 0, 0, 1]]
    assert two(0, adds={"copied": 2.0}) == [[1, 0, 0, 1], [4, 0, 0, 3], [5, 0, 0, 3]]  # d + 2 e
    assert two(1, adds={"copied": 2.0}) == [[2, 0, 0, 1], [3, 0, 0, 1]]  # nobody honest trained
    _, first, second = two(0, sends="copied", adds={"noise": 0.5})
    far = [sum((a - b) ** 2 for a, b in zip(row, [1, 0, 0, 1], strict=True)) for row in (first, second)]
    assert far == pytest.approx([0.25, 0.25])
    assert first != second  # each draws its own noise, and none for buffers
    assert (first[3], second[3]) == (1, 1)


def test_the_last_global_step_is_sent_again() -> None:
    deviant, sent = Deviant(clients=[1], sends="last", since=1), []
    for r, at in enumerate([1.0, 3.0, 8.0]):
        start = torch.full((4,), at)
        asked, reply = Request(1, (Train(0, 5, start),)), Reply(1, (Trained(0, start + 1, 20, 0.5, 3),))
        deviant.overhears(r, {1: (asked, reply)})
        deviant.overhears(r, {1: (Request(1, (Ask("stay"),)), Reply(1))})  # a question that is no training
        sent.append((one(deviant.on_reply(ME, r, asked, reply)).row - start).tolist())
    assert sent == [[1] * 4, [2] * 4, [5] * 4]


def test_other_samples_and_more_work() -> None:
    sets = {"judge": Samples(torch.zeros(3, 2), torch.tensor([0, 1, 0]))}
    deviant = Deviant(clients=[1], trains_on="judge", longer=5, since=2)
    assert deviant.studies(ME, 2, sets) is sets["judge"]
    assert (deviant.studies(ME, 1, sets), deviant.studies(replace(ME, id=0), 2, sets)) == (None, None)
    with pytest.raises(hanse.UserError, match="trains_on: 'public'"):
        Deviant(clients=[1], trains_on="public").studies(ME, 0, sets)
    me = replace(ME, recipe=Recipe(steps=20))
    work = [
        deviant.on_request(me, 2, Request(1, (Train(0, 5, torch.ones(4), work=w),))).tasks[0].work for w in (None, 3)
    ]
    assert work == [100, 15]


def test_a_run_in_which_somebody_trains_on_the_judges_samples() -> None:
    def run(**more: Any) -> hanse.Run:
        small = {"data": {"clients": 4}, "run": {"rounds": 1}, "train": {"steps": 5, "batch_size": 8}}
        return hanse.run(hanse.Experiment(mechanism="fedavg", model="logistic", **{**small, **more}))

    honest, cheat = run(), run(behaviour={"deviant": {"clients": [1], "trains_on": "judge"}})
    assert honest.metrics[-1]["test/accuracy"] != cheat.metrics[-1]["test/accuracy"]
    with pytest.raises(hanse.UserError, match="trains_on: 'judge'"):
        run(behaviour={"deviant": {"clients": [1], "trains_on": "judge"}}, data={"clients": 4, "validation": 0.0})


def test_copies_of_another_and_of_the_first_key() -> None:
    assert two(0, sends="copied") == [[1, 0, 0, 1]] * 3  # both send what client 0 sent
    assert two(1, sends="copied") == [[0, 0, 0, 0]] * 2  # nobody has sent anything yet
    assert two(0, second="copied") == [[1, 0, 0, 1], [2, 0, 0, 1], [2, 0, 0, 1]]
    assert two(0, second="copied", scale=3.0)[2] == two(0, second="copied", scale=3.0)[1] == [6, 0, 0, 1]


def test_an_echo_leads_to_what_was_bought_and_is_as_long_as_the_update() -> None:
    deviant = Deviant(clients=[1], sends="echo", scale=2.0)
    first, moved = torch.ones(4), torch.tensor([0.0, 3.0, 4.0, 0])
    told = {0: (first, first, 0.0), 1: (first + 1, first + torch.tensor([0.0, 0, 0, 7]), 0.4)}
    sent = []
    for r, (start, centre, mu) in told.items():
        asked = Request(1, (Train(seat=0, row=5, start=start, centre=centre, mu=mu),))
        sent.append(one(deviant.on_reply(ME, r, asked, Reply(1, (Trained(0, start + moved, 20, 0.5, 3),)))).row - start)
    assert sent[0].tolist() == moved.tolist()  # it has bought nothing yet
    assert sent[1].tolist() == pytest.approx([0, 0, 0, 10])


def test_noise_that_the_second_takes_away() -> None:
    _, first, second = two(0, second="opposed")
    assert [a + b for a, b in zip(first, second, strict=True)] == pytest.approx([2, 0, 0, 1])
    assert sum(x**2 for x in second[:3]) == pytest.approx((3 * 2) ** 2)


def test_two_take_turns() -> None:
    deviant = Deviant(clients=[1, 2], second="turns", since=2, leaves=5)
    there = [[deviant.present(Me(c, 4, 0, Recipe(), 3), r) for r in range(6)] for c in (1, 2, 3)]
    assert there == [[True, True, True, False, True, False], [True, True, False, True, False, False], [True] * 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": {"sample": 2.0}}, r"times.sample.*declare.cost"),
        ({"times": {"bid.tiers": 2.0}}, "times.bid.tiers"),
        ({"says": {"bid.tiers": True}}, "says.bid.tiers"),
        ({"says": {"offer.sell": "all"}}, "says.offer.sell: 'all'"),
        ({"scale": 0.0}, "scale"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hanse.UserError, match=message):
        hanse.run(hanse.Experiment(mechanism="fedavg", behaviour={"deviant": {"clients": [0], **options}}))


def test_what_is_said_of_a_cheat_are_its_options() -> None:
    said = said_of(Deviant(sends="copied", adds={"noise": 0.5}, since=4))
    assert said == "adds.noise = 0.5, sends = copied, since = 4"
    assert said_of(Deviant(clients=[1])) == "nothing"
