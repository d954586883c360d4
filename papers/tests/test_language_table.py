"""iPFL's table 1 as data: the printed numbers, the paper's settings, and what stands in their place below."""

from __future__ import annotations

from hanse_papers.tables import read_table

PUBLISHED = read_table("ipfl", "table1", "paper")["published"]
FINANCE, CODE = PUBLISHED["Finance"], PUBLISHED["Finance & Code"]


# typed from the paper's page, apart from the data in the package
def test_printed_numbers() -> None:
    assert list(FINANCE) == list(CODE) == ["Local", "FedAvg", "FedProx", "FedAMP", "CFL", "pFedGraph", "iPFL"]
    assert FINANCE["iPFL"] + CODE["iPFL"] == [
        [85.47, 6.10], [83.38, 2.83], [56.25, 1.06], [96.5, 0.0], [53.11, 0.51], [15.85, 1.14], [208.1, 131.1]
    ]  # fmt: skip
    assert FINANCE["Local"][:3] == [[84.02, 6.09], [80.58, 0.83], [43.17, 4.48]]
    assert CODE["pFedGraph"][2] == [137.7, 291.6]
    assert [FINANCE[name][3] for name in FINANCE] == [[0.0, 0.0], *[[45.9, 0.0]] * 5, [96.5, 0.0]]
