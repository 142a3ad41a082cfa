-- The database announces every change of a slot, whoever made it, on the channel slot_change.
--
-- A payload is a list of lines, fields separated by one space:
--   s <doctor> <slot> <version> <start> <end> <capacity> <booked> <status> <opens>   a slot's new state
--   d <doctor>                                                                       too much changed: read that doctor again
-- Times are microseconds since 1970 (UTC). A payload stays below the 8,000 bytes that NOTIFY takes.

-- version is raised here and not by the statements, so that nobody can forget it, psql included.
-- What identifies a slot to those who keep a copy never changes.
CREATE FUNCTION slot_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.id, NEW.doctor_id, NEW.start_at, NEW.end_at, NEW.kind)
       IS DISTINCT FROM (OLD.id, OLD.doctor_id, OLD.start_at, OLD.end_at, OLD.kind) THEN
        RAISE EXCEPTION 'a slot''s doctor, time and kind never change: withdraw it and make another'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'chk_slot_immutable';
    END IF;
    NEW.version := OLD.version + 1;
    RETURN NEW;
END $$;
CREATE TRIGGER slot_version BEFORE UPDATE ON time_slot
    FOR EACH ROW EXECUTE FUNCTION slot_before_update();

-- Per statement, not per row: a transaction that notifies holds an instance-wide lock over its
-- commit, which is affordable once for a batch of bookings and ruinous once for each.
CREATE FUNCTION slot_announce() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER slot_inserted AFTER INSERT ON time_slot
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION slot_announce();
CREATE TRIGGER slot_updated AFTER UPDATE ON time_slot
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION slot_announce();
CREATE TRIGGER slot_deleted AFTER DELETE ON time_slot
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION slot_announce();
