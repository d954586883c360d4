"""What a run says at its end of clients whose updates it did not get."""

from hanse.runs.observers import mostly_refused


def seat(round: int, client: int, refused: str = "") -> dict[str, object]:
    return {"round": round, "client": client, **({"refused": refused} if refused else {"loss": 1.0})}


def test_a_client_that_is_refused_in_most_rounds_is_named_with_its_commonest_reason() -> None:
    lines = [seat(r, 0) for r in range(4)]
    lines += [seat(0, 1), *(seat(r, 1, "not finite") for r in (1, 2)), seat(3, 1, "no reply")]
    lines += [seat(0, 2), seat(1, 2, "no reply")]  # half of them is not most
    lines += [seat(0, 3), seat(0, 3, "not finite")]  # one of two seats in one round: an update came
    assert mostly_refused(lines) == ["client 1: no update in 3 of the 4 rounds that it sat in; most often: not finite"]


def test_many_such_clients_are_counted() -> None:
    said = mostly_refused([seat(r, c, "not finite") for r in range(2) for c in range(9)])
    assert len(said) == 6
    assert said[-1] == "and 4 more clients like that"


def test_where_the_model_diverged_only_clients_that_failed_before_are_named() -> None:
    too_large = "Trained.loss: 2.7e+43: must be at most 3.4e+38"
    lines = [seat(0, c) for c in range(4)] + [seat(1, c, too_large if c == 3 else "") for c in range(4)]
    spoiled = [seat(r, c, too_large) for r in range(2, 9) for c in range(4)]
    first, told = mostly_refused(lines + spoiled)
    assert first.startswith("client 3: no update in 8 of the 9 rounds")
    assert told.startswith("from round 2 on")
    assert mostly_refused(lines[:4] + spoiled) == [told]
    others = [seat(r, c, "no reply") for r in range(1, 9) for c in range(4)]
    assert len(mostly_refused(lines[:4] + others)) == 4  # they did not come, whatever the model was
