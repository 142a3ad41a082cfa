-- From one state of an appointment to the next, and how a place comes back. The functions step and
-- expire of 005_claims stay for instances of the version before.
--
-- Lock order, the same on every path: doctor (advisory, only where a calendar is written), slots by
-- id, patients (advisory), referrals (advisory), appointments.

-- give_back returns p_places[n] places of slot p_slot[n], for every n: places that nobody is in any
-- more, of different slots that the caller has locked. It is the one way for a place to come back.
-- A FLEXIBLE slot came into being with its appointment and goes with it.
CREATE FUNCTION give_back(p_now timestamptz, p_slot bigint[], p_places int[]) RETURNS void
LANGUAGE sql SET plan_cache_mode = force_generic_plan AS $$
    UPDATE time_slot t
       SET booked_count = t.booked_count - g.places,
           status = CASE WHEN t.kind = 'FLEXIBLE' AND t.booked_count = g.places THEN 'WITHDRAWN' ELSE t.status END
      FROM unnest(p_slot, p_places) AS g (slot, places)
     WHERE t.id = g.slot
$$;

-- step takes an appointment that the caller may see to its next state, under its slot's lock.
--
--   p_step          CONFIRM: HELD → BOOKED. RELEASE: HELD → CANCELLED. CANCEL: HELD, BOOKED → CANCELLED.
--   p_patient, p_organization, p_registrar   what the caller may see: appointments of this patient,
--                                            of this organization, of patients of this registrar;
--                                            NULL = any
--   p_exempt        whether what a practice asks of its patients does not bind the caller: its staff
--
-- outcome: CHANGED; UNCHANGED, the step was taken before; or the code of a refusal.
CREATE FUNCTION step(
    p_now timestamptz, p_step text, p_appointment bigint, p_patient bigint, p_organization bigint,
    p_registrar text, p_by text, p_reason text, p_exempt boolean
) RETURNS TABLE (outcome text, doctor_id bigint, a appointment)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now  timestamptz;
    v_goal text := CASE p_step WHEN 'CONFIRM' THEN 'BOOKED' ELSE 'CANCELLED' END;
    v_from text;
    slot   time_slot;
BEGIN
    SELECT x.* INTO a
      FROM appointment x JOIN patient p ON p.id = x.patient_id
     WHERE x.id = p_appointment
       AND (p_patient IS NULL OR x.patient_id = p_patient)
       AND (p_organization IS NULL OR x.organization_id = p_organization)
       AND (p_registrar IS NULL OR p.issuer = p_registrar);
    IF NOT FOUND THEN
        outcome := 'NOT_FOUND';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO slot FROM time_slot t WHERE t.id = a.slot_id FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());   -- after the wait
    doctor_id := slot.doctor_id;
    SELECT * INTO a FROM appointment x WHERE x.id = p_appointment;     -- now it stands still
    v_from := a.status;

    outcome := CASE
        WHEN v_from = v_goal                                 THEN 'UNCHANGED'
        WHEN v_from = 'EXPIRED' OR v_from = 'HELD' AND a.expires_at <= v_now THEN 'HOLD_EXPIRED'
        WHEN v_from <> 'HELD' AND (p_step <> 'CANCEL' OR v_from <> 'BOOKED') THEN 'INVALID_STATE'
        WHEN lower(a.during) <= v_now                        THEN 'TOO_LATE'
        ELSE 'CHANGED' END;
    IF outcome = 'CHANGED' AND v_goal = 'BOOKED' THEN
        UPDATE appointment x SET status = 'BOOKED', expires_at = NULL WHERE x.id = a.id RETURNING * INTO a;
        INSERT INTO outbox_event (root_id, type, payload) VALUES (a.root_id, 'BOOKED', booking_payload(a, slot));
    ELSIF outcome = 'CHANGED' THEN
        UPDATE appointment x
           SET status = 'CANCELLED', cancelled_at = v_now, cancelled_by = p_by, cancel_reason = p_reason
         WHERE x.id = a.id RETURNING * INTO a;
        PERFORM give_back(v_now, ARRAY[slot.id], ARRAY[1]);
        INSERT INTO outbox_event (root_id, type, payload)
        VALUES (a.root_id, CASE v_from WHEN 'HELD' THEN 'RELEASED' ELSE 'CANCELLED' END, booking_payload(a, slot));
    END IF;
    RETURN NEXT;
END $$;

-- release_due ends the holds of these slots that have lapsed and gives their places back. It returns
-- how many there were. Of any number of calls one ends each; unless p_wait, slots that others have
-- locked are left to them.
CREATE FUNCTION release_due(p_now timestamptz, p_wait boolean, p_slot bigint[]) RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    slots bigint[];
    due   bigint[];
    freed int[];           -- places of each of the slots
    v_now timestamptz;
BEGIN
    IF p_wait THEN
        slots := ARRAY(SELECT t.id FROM time_slot t WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE);
    ELSE
        slots := ARRAY(SELECT t.id FROM time_slot t WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    v_now := coalesce(p_now, clock_timestamp());   -- after the wait
    due := ARRAY(SELECT h.id FROM unnest(slots) AS s (id), LATERAL (
                     SELECT x.id FROM appointment x
                      WHERE x.slot_id = s.id AND x.status = 'HELD' AND x.expires_at <= v_now OFFSET 0) AS h);
    IF due <> '{}' THEN
        WITH lapsed AS (
            UPDATE appointment x SET status = 'EXPIRED' WHERE x.id = ANY (due) RETURNING x.*
        ), announced AS (
            INSERT INTO outbox_event (root_id, type, payload)
            SELECT l.root_id, 'EXPIRED', booking_payload(ROW(l.*)::appointment, t)
              FROM lapsed l JOIN time_slot t ON t.id = l.slot_id
             ORDER BY l.id
        )
        SELECT array_agg(l.slot_id), array_agg(l.places) INTO slots, freed
          FROM (SELECT slot_id, count(*)::int AS places FROM lapsed GROUP BY slot_id ORDER BY slot_id) AS l;
        PERFORM give_back(v_now, slots, freed);
    END IF;
    RETURN cardinality(due);
END $$;
