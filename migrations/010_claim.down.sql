DROP FUNCTION claim(timestamptz, boolean, bigint[], bigint[], text[], text[], bytea[], bigint[], text[], boolean[], text[], text[], boolean[], appointment);
