-- Expand only: nullable columns, which a binary that knows only 002 leaves
-- alone. NULL: not known, the row is older than the column.
-- first_offset: the lowest offset the group was ever given of the partition
-- (of its present topic_id); what lies below was never its to handle.
-- handled_offset: the highest next_offset there ever was; what lies below has
-- been handled, also while a replay has taken next_offset back.
ALTER TABLE consumer_progress ADD COLUMN IF NOT EXISTS first_offset bigint;
ALTER TABLE consumer_progress ADD COLUMN IF NOT EXISTS handled_offset bigint;
