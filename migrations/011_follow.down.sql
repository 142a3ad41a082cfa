DROP INDEX ix_withdrawn_doctor_start;
DROP TRIGGER appointment_offer ON appointment;
DROP FUNCTION waiting_offer();
DROP TRIGGER slot_flexible_emptied ON time_slot;
DROP TRIGGER slot_flexible_made ON time_slot;
DROP FUNCTION flexible_slot();

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
    entries := ARRAY(SELECT DISTINCT c.id
                       FROM unnest(p_slot) AS s (id) JOIN time_slot t ON t.id = s.id, LATERAL (
                            SELECT w.id FROM waiting_entry w
                             WHERE w.doctor_id = t.doctor_id AND w.status IN ('WAITING', 'OFFERED')
                               AND (w.status = 'WAITING' OR (SELECT x.expires_at <= v_now FROM appointment x WHERE x.id = w.appointment_id))
                               AND wants(w, t, v_now)
                             ORDER BY w.turn, w.id
                             -- one entry may be the first for several of the slots
                             LIMIT spare + (SELECT sum(u.places) FROM unnest(p_places) AS u (places))) AS c
                      LIMIT most);
    PERFORM pg_advisory_xact_lock(p.k)
       FROM (SELECT DISTINCT patient_lock_key(u.patient) AS k
               FROM (SELECT unnest(p_patient) UNION ALL
                     SELECT w.patient_id FROM waiting_entry w WHERE w.id = ANY (entries)) AS u (patient)
              ORDER BY k) AS p;
    RETURN entries;
END $$;
