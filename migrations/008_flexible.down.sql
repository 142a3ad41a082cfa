DROP FUNCTION claim_time(timestamptz, bigint, timestamptz, int, bigint, text, text, bytea, bigint, text, boolean, text, text, boolean);
DROP FUNCTION open_time(timestamptz, bigint, timestamptz, int);
DROP FUNCTION free_starts(timestamptz, bigint, date, int);
DROP FUNCTION times_offered(bigint, int, timestamptz, timestamptz);
DROP FUNCTION working_hours(bigint, timestamptz, timestamptz);
DROP FUNCTION wall_time(timestamp, text);
ALTER TABLE time_slot DROP CONSTRAINT chk_flexible_capacity;
DROP TABLE schedule_window;
ALTER TABLE schedule DROP COLUMN kind;

CREATE OR REPLACE FUNCTION slot_announce() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most   CONSTANT int := 1000;   -- beyond: tell which doctors to read again
    budget CONSTANT int := 7700;   -- bytes in a payload
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM changed LIMIT most + 1) AS few) > most THEN
        PERFORM pg_notify('slot_change', string_agg(line, E'\n'))
        FROM (SELECT line, sum(octet_length(line) + 1) OVER (ORDER BY doctor_id) / budget AS part
              FROM (SELECT DISTINCT doctor_id, 'd ' || doctor_id AS line FROM changed) AS l) AS p
        GROUP BY part;
        RETURN NULL;
    END IF;
    -- A line is under 200 bytes, so a part that begins within the budget ends below the limit.
    PERFORM pg_notify('slot_change', string_agg(line, E'\n'))
    FROM (SELECT line, sum(octet_length(line) + 1) OVER (ORDER BY id) / budget AS part
          FROM (SELECT id, concat_ws(' ', 's', doctor_id, id,
                       version + (TG_OP = 'DELETE')::int,
                       (extract(epoch FROM start_at) * 1000000)::bigint,
                       (extract(epoch FROM end_at) * 1000000)::bigint,
                       capacity, booked_count,
                       CASE TG_OP WHEN 'DELETE' THEN 'WITHDRAWN' ELSE status END,
                       (extract(epoch FROM opens_at) * 1000000)::bigint) AS line
                FROM changed) AS l) AS p
    GROUP BY part;
    RETURN NULL;
END $$;
