-- The runbook's table, word for word, but for the collation: event ids sort by
-- byte, which is what makes UUIDv7 and ULID text sort by time.
CREATE TABLE IF NOT EXISTS processed_events (
    consumer_group text        NOT NULL,
    event_id       text        COLLATE "C" NOT NULL,
    topic          text        NOT NULL,
    partition      int         NOT NULL,
    "offset"       bigint      NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX IF NOT EXISTS processed_events_processed_at ON processed_events (processed_at);

-- No unique constraint on event_id: the marker alone guards the effect, and a
-- doubled effect must show as two rows, not hide behind an error.
CREATE TABLE IF NOT EXISTS ledger_entries (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group text        NOT NULL,
    event_id       text        COLLATE "C" NOT NULL,
    account        text        NOT NULL,
    amount         bigint      NOT NULL CHECK (amount <> 0),
    created_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS ledger_entries_event_id ON ledger_entries (event_id);

-- Balances in minor units. Updated in place, so pages keep room for HOT updates.
CREATE TABLE IF NOT EXISTS accounts (
    account    text        PRIMARY KEY,
    balance    bigint      NOT NULL DEFAULT 0,
    entries    bigint      NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
