-- What follows from a change, whoever made it: instances of the versions before and people in psql
-- included, who know nothing of FLEXIBLE slots and offers.

-- A FLEXIBLE slot is there for its appointment alone: when that gives the time back, it goes. Otherwise
-- it would look free, and be in the way of every other time that overlaps it.
--
-- That it is made is not announced, only that it is taken (slot_announce). So that this is to everybody
-- the first state of a new slot, its version begins one below: whoever is told of a slot that they don't
-- know, in a later version than the first, has missed something and reads everything again.
CREATE FUNCTION flexible_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.version := -1;
    ELSE
        NEW.status := 'WITHDRAWN';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER slot_flexible_made BEFORE INSERT ON time_slot
    FOR EACH ROW WHEN (NEW.kind = 'FLEXIBLE' AND NEW.booked_count = 0) EXECUTE FUNCTION flexible_slot();
CREATE TRIGGER slot_flexible_emptied BEFORE UPDATE ON time_slot
    FOR EACH ROW WHEN (NEW.kind = 'FLEXIBLE' AND NEW.booked_count = 0 AND OLD.booked_count > 0) EXECUTE FUNCTION flexible_slot();

-- An entry of the waiting list follows its offer: it is BOOKED by its confirmation, and waits again
-- when it is given back or has lapsed.
CREATE FUNCTION waiting_offer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE waiting_entry w SET status = CASE NEW.status WHEN 'BOOKED' THEN 'BOOKED' ELSE 'WAITING' END
     WHERE w.appointment_id = NEW.id AND w.status = 'OFFERED';
    RETURN NULL;
END $$;
CREATE TRIGGER appointment_offer AFTER UPDATE OF status ON appointment
    FOR EACH ROW WHEN (OLD.status = 'HELD' AND NEW.status <> 'HELD' AND NEW.booked_by = 'system:openslot')
    EXECUTE FUNCTION waiting_offer();

-- The appointments of a doctor's day are found by its slots, those that are gone included.
CREATE INDEX ix_withdrawn_doctor_start ON time_slot (doctor_id, start_at) WHERE status = 'WITHDRAWN';

-- As before, but that of more entries than can be locked it is the first in turn that are: any of them
-- were, so that an event for hundreds passed over those who had waited longest.
CREATE OR REPLACE FUNCTION lock_waiting(p_now timestamptz, p_slot bigint[], p_places int[], p_patient bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    spare CONSTANT int := 8;
    most  CONSTANT int := 500;     -- locks are a scarce thing
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    entries bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(p_slot) AS s (id) JOIN time_slot t ON t.id = s.id, LATERAL (
                       SELECT FROM waiting_entry w
                        WHERE w.doctor_id = t.doctor_id AND w.status IN ('WAITING', 'OFFERED') LIMIT 1) AS w) THEN
        RETURN NULL;
    END IF;
    entries := ARRAY(SELECT c.id
                       FROM unnest(p_slot) AS s (id) JOIN time_slot t ON t.id = s.id, LATERAL (
                            SELECT w.id, w.turn FROM waiting_entry w
                             WHERE w.doctor_id = t.doctor_id AND w.status IN ('WAITING', 'OFFERED')
                               AND (w.status = 'WAITING' OR (SELECT x.expires_at <= v_now FROM appointment x WHERE x.id = w.appointment_id))
                               AND wants(w, t, v_now)
                             ORDER BY w.turn, w.id
                             -- one entry may be the first for several of the slots
                             LIMIT spare + (SELECT sum(u.places) FROM unnest(p_places) AS u (places))) AS c
                      GROUP BY c.id, c.turn ORDER BY c.turn, c.id LIMIT most);
    PERFORM pg_advisory_xact_lock(p.k)
       FROM (SELECT DISTINCT patient_lock_key(u.patient) AS k
               FROM (SELECT unnest(p_patient) UNION ALL
                     SELECT w.patient_id FROM waiting_entry w WHERE w.id = ANY (entries)) AS u (patient)
              ORDER BY k) AS p;
    RETURN entries;
END $$;
