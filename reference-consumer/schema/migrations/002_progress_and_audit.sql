-- Expand only: nullable columns, and defaults that hold for new rows alone
-- (ADD COLUMN with a volatile default would rewrite the table). A binary that
-- knows only 001 keeps working on this schema.
ALTER TABLE processed_events ADD COLUMN IF NOT EXISTS payload_hash bigint;
ALTER TABLE processed_events ADD COLUMN IF NOT EXISTS txid xid8;
ALTER TABLE processed_events ALTER COLUMN txid SET DEFAULT pg_current_xact_id();
ALTER TABLE ledger_entries ADD COLUMN IF NOT EXISTS txid xid8;
ALTER TABLE ledger_entries ALTER COLUMN txid SET DEFAULT pg_current_xact_id();

-- The next offset of each partition, written in the transaction of the batch.
-- start_offset/starts: batches begun at that offset that never committed.
-- single_offset/single_starts: the same for an event tried on its own.
CREATE TABLE IF NOT EXISTS consumer_progress (
    consumer_group text        NOT NULL,
    topic          text        NOT NULL,
    partition      int         NOT NULL,
    topic_id       uuid        NOT NULL,
    next_offset    bigint      NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    start_offset   bigint,
    starts         int         NOT NULL DEFAULT 0,
    single_offset  bigint,
    single_starts  int         NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer_group, topic, partition)
) WITH (fillfactor = 50);

-- The last sequence of each producer and the gaps not yet filled or counted.
CREATE TABLE IF NOT EXISTS producer_sequences (
    consumer_group text   NOT NULL,
    topic          text   NOT NULL,
    partition      int    NOT NULL,
    producer       text   NOT NULL,
    last_sequence  bigint NOT NULL,
    gaps           jsonb  NOT NULL DEFAULT '[]',
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, partition, producer)
) WITH (fillfactor = 50);

-- What could not be applied. One row a record, whatever its event id.
CREATE TABLE IF NOT EXISTS dead_letters (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group text        NOT NULL,
    event_id       text        COLLATE "C" NOT NULL,
    topic          text        NOT NULL,
    topic_id       uuid        NOT NULL,
    partition      int         NOT NULL,
    "offset"       bigint      NOT NULL,
    first_partition int,
    first_offset   bigint,
    reason         text        NOT NULL,
    error          text        NOT NULL,
    attempts       int         NOT NULL,
    key            bytea,
    value          bytea,
    headers        jsonb       NOT NULL DEFAULT '[]',
    record_time    timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now(),
    requeued_at    timestamptz,
    UNIQUE (consumer_group, topic, topic_id, partition, "offset")
);
CREATE INDEX IF NOT EXISTS dead_letters_event_id ON dead_letters (event_id);

-- Intents to act on the world outside, written with the effect, delivered later.
CREATE TABLE IF NOT EXISTS outbox (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group text        NOT NULL,
    operation_id   text        NOT NULL,
    key            text        NOT NULL,
    kind           text        NOT NULL,
    payload        jsonb       NOT NULL,
    event_id       text        COLLATE "C" NOT NULL,
    trace_context  text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    available_at   timestamptz NOT NULL DEFAULT now(),
    attempts       int         NOT NULL DEFAULT 0,
    status         text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'dead')),
    last_error     text,
    finished_at    timestamptz,
    UNIQUE (consumer_group, operation_id)
);
CREATE INDEX IF NOT EXISTS outbox_pending_key ON outbox (consumer_group, key, id) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS outbox_pending_order ON outbox (consumer_group, id) WHERE status = 'pending';
