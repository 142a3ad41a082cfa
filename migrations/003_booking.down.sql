DROP FUNCTION cancel(timestamptz, bigint, bigint, bigint, text, text, text);
DROP FUNCTION book(timestamptz, bigint[], bigint[], text[], text[], bytea[], bigint[], text[]);
DROP FUNCTION patient_lock_key(bigint);
