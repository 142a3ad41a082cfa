-- Who waits for a place, and when cancelled places come back.

ALTER TABLE organization
    ADD COLUMN offer_minutes     smallint NOT NULL DEFAULT 30,         -- how long a waiting patient may think an offer over
    ADD COLUMN cancelled_returns text     NOT NULL DEFAULT 'AT_ONCE',  -- when the place of a cancelled appointment comes back
    ADD CONSTRAINT chk_offer_minutes     CHECK (offer_minutes BETWEEN 1 AND 1440),
    ADD CONSTRAINT chk_cancelled_returns CHECK (cancelled_returns IN ('AT_ONCE', 'NEXT_RELEASE'));

-- What of a slot's places will be due: lists look for both kinds at once.
CREATE INDEX ix_due_slot ON appointment (slot_id) WHERE status = 'HELD' OR returns_at IS NOT NULL;

-- One wish of a patient: any place with this doctor on these days. It is for one place: when that is
-- booked, the wish is fulfilled.
CREATE TABLE waiting_entry (
    id              bigserial PRIMARY KEY,
    doctor_id       bigint      NOT NULL REFERENCES doctor,
    organization_id bigint      NOT NULL,          -- the doctor's, copied for access
    patient_id      bigint      NOT NULL REFERENCES patient,
    first_day       date        NOT NULL,
    last_day        date        NOT NULL,          -- inclusive; both in the organization's zone
    during          tstzrange   NOT NULL,          -- those days as time: what a place is held against
    status          text        NOT NULL DEFAULT 'WAITING',
    turn            timestamptz NOT NULL,          -- who is first: when they came, or were last offered a place
    appointment_id  bigint      REFERENCES appointment,    -- the last offer
    joined_by       text        NOT NULL,          -- kind and stable subject of the caller
    created_at      timestamptz NOT NULL,
    CONSTRAINT chk_waiting_days   CHECK (last_day >= first_day),
    CONSTRAINT chk_waiting_status CHECK (status IN ('WAITING', 'OFFERED', 'BOOKED', 'LEFT', 'ENDED')),
    CONSTRAINT chk_waiting_offer  CHECK (status NOT IN ('OFFERED', 'BOOKED') OR appointment_id IS NOT NULL)
);
-- Waiting twice for the same is waiting once.
CREATE UNIQUE INDEX uq_waiting_wish ON waiting_entry (patient_id, doctor_id, first_day, last_day)
    WHERE status IN ('WAITING', 'OFFERED');
CREATE UNIQUE INDEX uq_waiting_offer ON waiting_entry (appointment_id) WHERE status = 'OFFERED';
CREATE INDEX ix_waiting_turn ON waiting_entry (doctor_id, turn, id) WHERE status IN ('WAITING', 'OFFERED');
CREATE INDEX ix_waiting_over ON waiting_entry (upper(during)) WHERE status = 'WAITING';
CREATE INDEX ix_waiting_patient ON waiting_entry (patient_id, id);
CREATE INDEX ix_waiting_doctor ON waiting_entry (doctor_id, id);

-- next_release is when the practice's places are released next: 07:00 on its clocks, as in
-- internal/schedule.
CREATE FUNCTION next_release(p_now timestamptz, p_zone text) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT (l.local::date + (l.local::time >= '07:00')::int + time '07:00') AT TIME ZONE p_zone
      FROM (SELECT p_now AT TIME ZONE p_zone AS local) AS l $$;

-- wants says whether a place in the slot is for this entry, if it waits: it can be booked and is on its
-- days, the patient has nothing else at that time, has not given up or declined a place in this slot
-- since they joined, can answer, and the practice's rules would let them hold it.
CREATE FUNCTION wants(w waiting_entry, t time_slot, p_now timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT w.doctor_id = t.doctor_id AND w.during @> t.start_at AND t.kind = 'FIXED'
       AND t.status = 'OPEN' AND t.opens_at <= p_now AND t.start_at > p_now + interval '1 minute'
       AND NOT EXISTS (SELECT FROM appointment x
                        WHERE x.patient_id = w.patient_id AND x.during && tstzrange(t.start_at, t.end_at)
                          AND (x.status IN ('BOOKED', 'ARRIVED') OR x.status = 'HELD' AND x.expires_at > p_now))
       AND NOT EXISTS (SELECT FROM appointment x
                        WHERE x.patient_id = w.patient_id AND x.slot_id = t.id
                          AND x.status IN ('CANCELLED', 'EXPIRED') AND coalesce(x.cancelled_at, x.expires_at) >= w.created_at)
       AND NOT EXISTS (SELECT FROM patient p WHERE p.id = w.patient_id AND p.blocked_at IS NOT NULL)
       AND NOT EXISTS (SELECT FROM organization o
                        WHERE o.id = w.organization_id AND o.ruled
                          AND (forbidding_rule(p_now, o.id, w.patient_id, t.start_at, true)).code IS NOT NULL) $$;

-- lock_waiting is for those who are about to free p_places[n] places of slot p_slot[n], which they have
-- locked. It finds who waits for them, and locks their patients together with p_patient, whose
-- appointments are to be changed: in one order, so that crossing calls wait for each other and not in a
-- circle. The clock is to be read afterwards.
--
-- It returns the entries that may be offered something: the first in turn, with some to spare for the
-- case that what was seen here has changed under the lock. NULL: nobody waits for these doctors, and
-- nobody was locked, for then whoever frees a place waits for nobody else. Who joins from now on is
-- offered what is freed next.
CREATE FUNCTION lock_waiting(p_now timestamptz, p_slot bigint[], p_places int[], p_patient bigint[]) RETURNS bigint[]
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

-- offer_places makes held offers of p_places[n] places of slot p_slot[n], for every n: places that are
-- counted as taken, and that nobody is in. p_waiting is what lock_waiting has found; of these, whoever
-- wants the place and is first in turn gets the offer. It returns how many places of each slot are left.
--
-- An entry whose offer in one of these slots has been given back or has lapsed waits again, behind
-- those who came before that offer; it is never offered that slot again.
CREATE FUNCTION offer_places(p_now timestamptz, p_slot bigint[], p_places int[], p_waiting bigint[]) RETURNS int[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    places int[] := p_places;
    slot   time_slot;
    entry  waiting_entry;
    offer  appointment;
BEGIN
    UPDATE waiting_entry w SET status = 'WAITING'
      FROM time_slot t, appointment x
     WHERE t.id = ANY (p_slot) AND w.doctor_id = t.doctor_id AND w.status = 'OFFERED'
       AND x.id = w.appointment_id AND x.slot_id = t.id AND x.status IN ('CANCELLED', 'EXPIRED');
    FOR n IN 1 .. cardinality(p_slot) LOOP
        SELECT * INTO slot FROM time_slot t WHERE t.id = p_slot[n];
        FOR entry IN
            SELECT w.* FROM waiting_entry w
             WHERE w.id = ANY (p_waiting) AND w.status = 'WAITING' AND wants(w, slot, p_now) ORDER BY w.turn, w.id
        LOOP
            EXIT WHEN places[n] = 0;
            INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status, idempotency_key,
                                     booked_by, request_hash, during, created_at, expires_at)
            SELECT v.id, v.id, slot.id, entry.patient_id, entry.organization_id, 'HELD', k.key,
                   'system:openslot', sha256(k.key::bytea), tstzrange(slot.start_at, slot.end_at), p_now,
                   least(slot.start_at, p_now + make_interval(mins => o.offer_minutes))
              FROM nextval('appointment_id_seq') AS v (id), organization o,
                   concat('offer-', slot.id, '-', entry.id) AS k (key)     -- so an entry has one at most
             WHERE o.id = entry.organization_id
            ON CONFLICT DO NOTHING                 -- the constraints decide; then it is the next one's
            RETURNING * INTO offer;
            CONTINUE WHEN NOT FOUND;
            UPDATE waiting_entry w SET status = 'OFFERED', appointment_id = offer.id, turn = p_now WHERE w.id = entry.id;
            INSERT INTO outbox_event (root_id, type, payload)
            VALUES (offer.root_id, 'OFFERED', booking_payload(offer, slot)
                    || jsonb_build_object('waitingId', entry.id, 'expiresAt', offer.expires_at));
            places[n] := places[n] - 1;
        END LOOP;
    END LOOP;
    RETURN places;
END $$;

-- join_waiting puts a patient on the waiting list.
--
--   p_during        the days as time
--   p_organization  0, or: only doctors of this organization
--   p_registrar     as in claim
--
-- outcome: CHANGED; UNCHANGED, they wait for this already: w is the entry; or the code of a refusal.
CREATE FUNCTION join_waiting(
    p_now timestamptz, p_doctor bigint, p_patient bigint, p_first date, p_last date, p_during tstzrange,
    p_organization bigint, p_registrar text, p_by text, p_most int
) RETURNS TABLE (outcome text, w waiting_entry)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now   timestamptz;
    v_owner bigint := (SELECT d.organization_id FROM doctor d WHERE d.id = p_doctor AND p_organization IN (0, d.organization_id));
BEGIN
    outcome := CASE
        WHEN v_owner IS NULL THEN 'DOCTOR_NOT_FOUND'
        WHEN NOT EXISTS (SELECT FROM patient p WHERE p.id = p_patient
                            AND (p_registrar IN ('', p.issuer)
                                 OR p_organization <> 0 AND EXISTS (
                                    SELECT FROM appointment x
                                     WHERE x.patient_id = p.id AND x.organization_id = p_organization))) THEN 'PATIENT_NOT_FOUND' END;
    IF outcome IS NULL THEN
        PERFORM pg_advisory_xact_lock(patient_lock_key(p_patient));
        v_now := coalesce(p_now, clock_timestamp());   -- after the wait
        SELECT * INTO w FROM waiting_entry e
         WHERE e.patient_id = p_patient AND e.doctor_id = p_doctor AND e.first_day = p_first AND e.last_day = p_last
           AND e.status IN ('WAITING', 'OFFERED');
        outcome := CASE
            WHEN upper(p_during) <= v_now THEN 'WAITING_PAST'
            WHEN w.id IS NOT NULL         THEN 'UNCHANGED'
            WHEN p_most <= (SELECT count(*) FROM waiting_entry e
                             WHERE e.patient_id = p_patient AND e.status IN ('WAITING', 'OFFERED')
                               AND upper(e.during) > v_now) THEN 'WAITING_LIMIT'
            ELSE 'CHANGED' END;
    END IF;
    IF outcome = 'CHANGED' THEN
        INSERT INTO waiting_entry (doctor_id, organization_id, patient_id, first_day, last_day, during, turn, joined_by, created_at)
        VALUES (p_doctor, v_owner, p_patient, p_first, p_last, p_during, v_now, p_by, v_now)
        RETURNING * INTO w;
    END IF;
    RETURN NEXT;
END $$;

-- leave_waiting takes an entry that the caller may see off the waiting list; an offer that was made
-- stands. p_patient, p_organization, p_registrar are as in step.
--
-- outcome: CHANGED; UNCHANGED, it is over already; or NOT_FOUND.
CREATE FUNCTION leave_waiting(
    p_now timestamptz, p_entry bigint, p_patient bigint, p_organization bigint, p_registrar text
) RETURNS TABLE (outcome text, w waiting_entry)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT e.* INTO w
      FROM waiting_entry e JOIN patient p ON p.id = e.patient_id
     WHERE e.id = p_entry
       AND (p_patient IS NULL OR e.patient_id = p_patient)
       AND (p_organization IS NULL OR e.organization_id = p_organization)
       AND (p_registrar IS NULL OR p.issuer = p_registrar);
    IF NOT FOUND THEN
        outcome := 'NOT_FOUND';
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(patient_lock_key(w.patient_id));
    UPDATE waiting_entry e SET status = 'LEFT'
     WHERE e.id = p_entry AND e.status IN ('WAITING', 'OFFERED') AND upper(e.during) > coalesce(p_now, clock_timestamp());
    outcome := CASE WHEN FOUND THEN 'CHANGED' ELSE 'UNCHANGED' END;
    SELECT * INTO w FROM waiting_entry e WHERE e.id = p_entry;
    RETURN NEXT;
END $$;
