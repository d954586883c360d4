"""Version 0002: creates the triggers that guard the rows.

They make the database itself refuse what :mod:`hanse.core.book` forbids, whichever program writes to it: sealed
transactions never change, sealing a transaction checks that its postings sum to zero and moves the balances, and no
payer ends below the floor.

In SQLite, a trigger on the update that seals a transaction does all of this. In PostgreSQL a trigger does it once for
all rows of that update, and a deferred constraint trigger looks again at the commit of the database transaction, so
that no transaction is left open. :func:`hanse.ledger.verify.verify` compares the triggers of a database with those
written here.
"""

from __future__ import annotations

import re

revision = "0002"
down_revision = "0001"

SQLITE = [
    # A transaction is open when it is inserted. The only change that it ever sees is being sealed, once.
    """CREATE TRIGGER transactions_start_open BEFORE INSERT ON transactions WHEN NEW.sealed <> 0
    BEGIN SELECT RAISE(ABORT, 'ledger: a transaction starts open'); END""",
    """CREATE TRIGGER transactions_stay BEFORE DELETE ON transactions
    BEGIN SELECT RAISE(ABORT, 'ledger: transactions are never deleted'); END""",
    """CREATE TRIGGER transactions_only_seal BEFORE UPDATE ON transactions
    WHEN OLD.sealed <> 0 OR NEW.sealed <> 1 OR NEW.id <> OLD.id OR NEW.book_id <> OLD.book_id
      OR NEW.number <> OLD.number OR NEW.round <> OLD.round OR NEW.step <> OLD.step OR NEW.kind <> OLD.kind
      OR NEW.memo <> OLD.memo OR NEW.previous <> OLD.previous OR NEW.hash <> OLD.hash
    BEGIN SELECT RAISE(ABORT, 'ledger: a transaction changes only once, when it is sealed'); END""",
    # Sealing checks the sum and the accounts, then moves the balances, then checks the payers' floors.
    """CREATE TRIGGER transactions_seal AFTER UPDATE ON transactions BEGIN
      SELECT RAISE(ABORT, 'ledger: postings do not sum to zero')
        WHERE (SELECT count(*) < 2 OR sum(amount) <> 0 FROM postings WHERE transaction_id = NEW.id);
      SELECT RAISE(ABORT, 'ledger: an account of another book') FROM postings JOIN accounts
        ON accounts.id = postings.account_id WHERE transaction_id = NEW.id AND accounts.book_id <> NEW.book_id;
      UPDATE accounts SET balance = balance + moved.amount
        FROM (SELECT account_id, sum(amount) AS amount FROM postings WHERE transaction_id = NEW.id
              GROUP BY account_id) AS moved
        WHERE accounts.id = moved.account_id;
      SELECT RAISE(ABORT, 'ledger: overdraft') FROM postings JOIN accounts ON accounts.id = postings.account_id
        WHERE transaction_id = NEW.id AND amount < 0 AND balance < floor;
    END""",
    # Postings enter an open transaction and never change. SQLite columns take any type, hence the test of typeof.
    """CREATE TRIGGER postings_enter_open BEFORE INSERT ON postings
    WHEN typeof(NEW.amount) <> 'integer' OR (SELECT sealed FROM transactions WHERE id = NEW.transaction_id) IS NOT 0
    BEGIN SELECT RAISE(ABORT, 'ledger: postings are integers and enter an open transaction'); END""",
    """CREATE TRIGGER postings_stay BEFORE DELETE ON postings
    BEGIN SELECT RAISE(ABORT, 'ledger: postings are never deleted'); END""",
    """CREATE TRIGGER postings_last BEFORE UPDATE ON postings
    BEGIN SELECT RAISE(ABORT, 'ledger: postings are never changed'); END""",
    # Accounts start at zero and keep their names and floors. The test of typeof finds a balance that overflowed, which
    # SQLite turns into a float. That a balance is changed by sealing alone cannot be tested: SQLite's triggers cannot
    # tell who updates.
    """CREATE TRIGGER accounts_start_empty BEFORE INSERT ON accounts WHEN NEW.balance <> 0
    BEGIN SELECT RAISE(ABORT, 'ledger: an account starts at zero'); END""",
    """CREATE TRIGGER accounts_stay BEFORE DELETE ON accounts
    BEGIN SELECT RAISE(ABORT, 'ledger: accounts are never deleted'); END""",
    """CREATE TRIGGER accounts_keep_names BEFORE UPDATE ON accounts
    WHEN typeof(NEW.balance) <> 'integer' OR NEW.id <> OLD.id OR NEW.book_id <> OLD.book_id OR NEW.name <> OLD.name
      OR NEW.floor IS NOT OLD.floor
    BEGIN SELECT RAISE(ABORT, 'ledger: only the balance of an account changes'); END""",
    # Books never change.
    """CREATE TRIGGER books_stay BEFORE DELETE ON books
    BEGIN SELECT RAISE(ABORT, 'ledger: books are never deleted'); END""",
    """CREATE TRIGGER books_last BEFORE UPDATE ON books
    BEGIN SELECT RAISE(ABORT, 'ledger: books are never changed'); END""",
]

POSTGRESQL = [
    # What is never allowed. TRUNCATE needs triggers of its own, because row triggers do not see it.
    """CREATE FUNCTION ledger_never() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'ledger: % is refused on %', TG_OP, TG_TABLE_NAME USING ERRCODE = 'check_violation';
    END $$""",
    *(
        f"""CREATE TRIGGER {table}_{name} BEFORE {what} ON {table} FOR EACH {each} EXECUTE FUNCTION ledger_never()"""
        for table, name, what, each in [
            ("books", "last", "UPDATE OR DELETE", "ROW"),
            ("accounts", "stay", "DELETE", "ROW"),
            ("transactions", "stay", "DELETE", "ROW"),
            ("postings", "last", "UPDATE OR DELETE", "ROW"),
            *((table, "whole", "TRUNCATE", "STATEMENT") for table in ("books", "accounts", "transactions", "postings")),
        ]
    ),
    # A transaction is open when it is inserted. The only change that it ever sees is being sealed, once.
    """CREATE FUNCTION ledger_transaction() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF TG_OP = 'INSERT' THEN
        IF NEW.sealed THEN
          RAISE EXCEPTION 'ledger: a transaction starts open' USING ERRCODE = 'check_violation';
        END IF;
      ELSIF OLD.sealed OR NOT NEW.sealed
        OR (NEW.id, NEW.book_id, NEW.number, NEW.round, NEW.step, NEW.kind, NEW.memo, NEW.previous, NEW.hash)
        IS DISTINCT FROM
        (OLD.id, OLD.book_id, OLD.number, OLD.round, OLD.step, OLD.kind, OLD.memo, OLD.previous, OLD.hash) THEN
        RAISE EXCEPTION 'ledger: a transaction changes only once, when it is sealed' USING ERRCODE = 'check_violation';
      END IF;
      RETURN NEW;
    END $$""",
    """CREATE TRIGGER transactions_only_seal BEFORE INSERT OR UPDATE ON transactions
    FOR EACH ROW EXECUTE FUNCTION ledger_transaction()""",
    # Postings enter an open transaction. One check serves all rows of an INSERT.
    """CREATE FUNCTION ledger_posting() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF EXISTS (SELECT 1 FROM entered JOIN transactions ON transactions.id = transaction_id WHERE sealed) THEN
        RAISE EXCEPTION 'ledger: postings enter an open transaction' USING ERRCODE = 'check_violation';
      END IF;
      RETURN NULL;
    END $$""",
    """CREATE TRIGGER postings_enter_open AFTER INSERT ON postings REFERENCING NEW TABLE AS entered
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_posting()""",
    # Balances move inside the trigger of the sealing statement (trigger depth 2), never by a statement of their own.
    """CREATE FUNCTION ledger_account() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF TG_OP = 'INSERT' THEN
        IF NEW.balance <> 0 THEN
          RAISE EXCEPTION 'ledger: an account starts at zero' USING ERRCODE = 'check_violation';
        END IF;
      ELSIF pg_trigger_depth() < 2
        OR (NEW.id, NEW.book_id, NEW.name, NEW.floor) IS DISTINCT FROM (OLD.id, OLD.book_id, OLD.name, OLD.floor) THEN
        RAISE EXCEPTION 'ledger: only sealing moves a balance' USING ERRCODE = 'check_violation';
      ELSIF NEW.balance < OLD.balance AND NEW.balance < NEW.floor THEN
        RAISE EXCEPTION 'ledger: overdraft of %', NEW.name USING ERRCODE = 'check_violation';
      END IF;
      RETURN NEW;
    END $$""",
    """CREATE TRIGGER accounts_keep_names BEFORE INSERT OR UPDATE ON accounts
    FOR EACH ROW EXECUTE FUNCTION ledger_account()""",
    # Sealing checks sums and accounts, and moves the balances by the net amount of all transactions sealed at once.
    """CREATE FUNCTION ledger_seal() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF EXISTS (SELECT 1 FROM changed LEFT JOIN postings ON transaction_id = changed.id
                 GROUP BY changed.id HAVING count(amount) < 2 OR sum(amount) <> 0) THEN
        RAISE EXCEPTION 'ledger: postings do not sum to zero' USING ERRCODE = 'check_violation';
      END IF;
      IF EXISTS (SELECT 1 FROM changed JOIN postings ON transaction_id = changed.id
                 JOIN accounts ON accounts.id = account_id WHERE accounts.book_id <> changed.book_id) THEN
        RAISE EXCEPTION 'ledger: an account of another book' USING ERRCODE = 'check_violation';
      END IF;
      UPDATE accounts SET balance = balance + moved.amount
        FROM (SELECT account_id, sum(amount)::bigint AS amount FROM changed JOIN postings ON transaction_id = changed.id
              GROUP BY account_id) AS moved
        WHERE accounts.id = moved.account_id;
      RETURN NULL;
    END $$""",
    """CREATE TRIGGER transactions_seal AFTER UPDATE ON transactions REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_seal()""",
    # At the commit, every new transaction must be sealed and balanced.
    """CREATE FUNCTION ledger_closed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF NOT (SELECT sealed FROM transactions WHERE id = NEW.id)
        OR (SELECT sum(amount) FROM postings WHERE transaction_id = NEW.id) IS DISTINCT FROM 0 THEN
        RAISE EXCEPTION 'ledger: transaction % is open or unbalanced', NEW.number USING ERRCODE = 'check_violation';
      END IF;
      RETURN NULL;
    END $$""",
    """CREATE CONSTRAINT TRIGGER transactions_closed AFTER INSERT ON transactions DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_closed()""",
]


def name_of(statement: str) -> str:
    """Return the name of the trigger that an SQL statement creates, or "" if it creates none."""
    found = re.match(r"CREATE (?:CONSTRAINT )?TRIGGER (\w+)", statement)
    return found[1] if found else ""


def upgrade() -> None:
    """Create the triggers for the database that is being migrated."""
    from alembic import op  # here, since verify reads the statements and needs no alembic

    for statement in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    """Refuse to go back, since a ledger without these triggers would keep none of its promises."""
    raise NotImplementedError("the ledger has no way back to an older schema; restore a backup")
