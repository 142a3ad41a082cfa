DROP FUNCTION reschedule(timestamptz, bigint, bigint, bigint, text, bigint, text, text, bytea, text, boolean, bigint, timestamptz, int);
DROP FUNCTION release_due(timestamptz, boolean, bigint[]);
DROP FUNCTION step(timestamptz, text, bigint, bigint, bigint, text, text, text, boolean);
DROP FUNCTION give_back(timestamptz, bigint[], int[], bigint[], bigint[]);
