-- Layout version 3. A change of it raises SCHEMA_VERSION, and migration.py brings older files to it.

-- One row: what this database is and how it was last left.
CREATE TABLE server (
    secret BLOB NOT NULL,     -- authenticates ack ids and page tokens
    boot   INTEGER NOT NULL,  -- starts so far
    clean  INTEGER NOT NULL   -- whether the last stop said goodbye
);

CREATE TABLE topic (
    topic_id INTEGER PRIMARY KEY,
    name     TEXT NOT NULL,
    deleted  INTEGER NOT NULL,  -- kept for subscriptions that still have its messages
    resource BLOB NOT NULL      -- google.pubsub.v1.Topic
);

CREATE TABLE subscription (
    sub_id   INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    name     TEXT NOT NULL,
    start_id INTEGER NOT NULL,  -- messages with a larger id belong to it
    resource BLOB NOT NULL      -- google.pubsub.v1.Subscription
);

CREATE TABLE snapshot (
    snapshot_id INTEGER PRIMARY KEY,
    topic_id    INTEGER NOT NULL,
    name        TEXT NOT NULL,
    resource    BLOB NOT NULL,  -- google.pubsub.v1.Snapshot
    state       BLOB NOT NULL   -- which messages were unacked
);

-- What is kept under a name beside messages; see DocumentRow in broker/effects.py.
CREATE TABLE document (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- The messages of one topic and commit, in order. A row per message would cost ten times as much.
-- Within a topic last_us never decreases, so that rows can be found by time without an index of it. It stands
-- before the messages, so that reading it does not read them.
CREATE TABLE chunk (
    topic_id INTEGER NOT NULL,
    last_id  INTEGER NOT NULL,
    last_us  INTEGER NOT NULL,  -- when the last message was published
    data     BLOB NOT NULL,
    PRIMARY KEY (topic_id, last_id)
) WITHOUT ROWID;

-- What each commit changed; folded into a single row from time to time.
CREATE TABLE oplog (
    commit_id INTEGER PRIMARY KEY,
    data      BLOB NOT NULL
);

-- Endings of deliveries that the rule "acked by its first delivery" does not tell, oldest first.
CREATE TABLE ending (
    ending_id  INTEGER PRIMARY KEY,
    sub_id     INTEGER NOT NULL,
    message_id INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    ending     INTEGER NOT NULL,
    at_us      INTEGER NOT NULL
);

CREATE TABLE journal_tail (
    first_seq INTEGER PRIMARY KEY,
    n         INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    data      BLOB NOT NULL
);

CREATE TABLE journal_detail (
    seq    INTEGER PRIMARY KEY,
    detail TEXT
);
