-- The rights of oncewatch's role in PostgreSQL 14 or later, and no more: run it
-- once, as a superuser or the tables' owner with CREATEROLE, in the database
-- that holds the markers (here app). A hot standby takes it over.
--
-- Then set a password: \password oncewatch

-- Two connections serve all collectors of a store. Each further process that
-- logs in at the same time (a replica, oncewatch check) needs two more.
CREATE ROLE oncewatch LOGIN CONNECTION LIMIT 2;

-- oncewatch asks for all of this itself, more strictly and in each transaction.
-- Here it holds whatever the program does.
ALTER ROLE oncewatch SET default_transaction_read_only = on;
ALTER ROLE oncewatch SET statement_timeout = '1s';
ALTER ROLE oncewatch SET lock_timeout = '1s';
ALTER ROLE oncewatch SET idle_in_transaction_session_timeout = '5s';

GRANT CONNECT ON DATABASE app TO oncewatch;
GRANT USAGE ON SCHEMA public TO oncewatch;
GRANT SELECT ON processed_events TO oncewatch;

-- Only with postgres.effect.table: what belongs to the event, not the amounts.
GRANT SELECT (event_id, txid, created_at) ON ledger_entries TO oncewatch;

-- Shows when the transactions of others began, and no row of theirs. Without it
-- markers that are committed late are found later.
GRANT pg_read_all_stats TO oncewatch;
