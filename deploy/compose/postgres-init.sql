-- The exporter's role: it reads, and no more. reference-consumer migrate, which
-- runs later as the owner, creates the tables; the defaults below reach them.
CREATE ROLE oncewatch LOGIN PASSWORD 'oncewatch' CONNECTION LIMIT 2;
ALTER ROLE oncewatch SET default_transaction_read_only = on;
ALTER ROLE oncewatch SET statement_timeout = '10s';
ALTER ROLE oncewatch SET idle_in_transaction_session_timeout = '10s';
-- Sees other sessions' transactions: without it late commits cannot be awaited.
GRANT pg_read_all_stats TO oncewatch;
GRANT USAGE ON SCHEMA public TO oncewatch;
ALTER DEFAULT PRIVILEGES FOR ROLE app IN SCHEMA public GRANT SELECT ON TABLES TO oncewatch;
