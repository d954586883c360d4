"""A ledger to write into, and a database for its index: SQLite and, where ``HANSE_TEST_POSTGRES`` names a server,
PostgreSQL.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from hanse.ledger.index import as_url
from hanse.ledger.store import Ledger


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    server = os.environ.get("HANSE_TEST_POSTGRES")
    if not server:
        pytest.skip("HANSE_TEST_POSTGRES names no server")
    schema = f"test_{uuid.uuid4().hex}"
    engine = create_engine(as_url(server))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    yield f"{server}?options=-csearch_path%3D{schema}"
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "transactions.jsonl"


@pytest.fixture
def ledger(file: Path) -> Ledger:
    return Ledger.open(file, book="run")
