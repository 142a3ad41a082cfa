DROP FUNCTION cancel(timestamptz, bigint, bigint, bigint, text, text, text);
DROP FUNCTION book(timestamptz, boolean, bigint[], bigint[], text[], text[], bytea[], bigint[], text[]);
DROP FUNCTION booking_payload(appointment, time_slot);
DROP FUNCTION patient_lock_key(bigint);
