-- The core tables: who practises where, what can be booked, and who booked it.
-- Constraints are named for the rule they hold; the program reads those names to tell
-- a caller which rule refused, so renaming one is a change of behaviour.

CREATE EXTENSION IF NOT EXISTS btree_gist;

CREATE TABLE organization (
    id         bigserial PRIMARY KEY,
    name       text        NOT NULL,
    time_zone  text        NOT NULL,               -- IANA name; all of its dates are local to it
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_organization_name  UNIQUE (name),
    CONSTRAINT chk_organization_name CHECK (char_length(name) BETWEEN 1 AND 200)
);

CREATE TABLE doctor (
    id              bigserial PRIMARY KEY,
    organization_id bigint      NOT NULL REFERENCES organization,
    name            text        NOT NULL,
    specialty       text        NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT chk_doctor_name      CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT chk_doctor_specialty CHECK (char_length(specialty) <= 200)
);
CREATE INDEX ix_doctor_organization ON doctor (organization_id);
CREATE INDEX ix_doctor_name ON doctor (name, id);

-- One row per person and identity: (issuer, subject) of whoever vouches for them. Patients
-- who sign in have their token's issuer; those registered at a desk or by a partner have
-- the registrar in its place ('organization:7', 'partner:…'), which also says who may name them.
CREATE TABLE patient (
    id         bigserial PRIMARY KEY,
    issuer     text        NOT NULL,
    subject    text        NOT NULL,
    name       text,
    email      text,
    phone      text,
    locale     text,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_patient_identity UNIQUE (issuer, subject),
    CONSTRAINT chk_patient_issuer  CHECK (char_length(issuer) BETWEEN 1 AND 255),
    CONSTRAINT chk_patient_subject CHECK (char_length(subject) BETWEEN 1 AND 255),
    CONSTRAINT chk_patient_name    CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT chk_patient_email   CHECK (char_length(email) BETWEEN 3 AND 254),
    CONSTRAINT chk_patient_phone   CHECK (char_length(phone) BETWEEN 3 AND 32),
    CONSTRAINT chk_patient_locale  CHECK (char_length(locale) BETWEEN 2 AND 35)
);

-- A weekly template. A doctor has one template for any one day.
CREATE TABLE schedule (
    id          bigserial PRIMARY KEY,
    doctor_id   bigint      NOT NULL REFERENCES doctor,
    valid_from  date        NOT NULL,
    valid_until date,                              -- last day, inclusive; NULL = open end
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT chk_schedule_period CHECK (valid_until >= valid_from),
    CONSTRAINT ex_schedule_period  EXCLUDE USING gist (doctor_id WITH =, daterange(valid_from, valid_until, '[]') WITH &&)
);

CREATE TABLE schedule_shift (
    schedule_id   bigint   NOT NULL REFERENCES schedule ON DELETE CASCADE,
    weekday       smallint NOT NULL,               -- ISO: 1 = Monday … 7 = Sunday
    start_minute  smallint NOT NULL,               -- minutes of wall clock after local midnight
    end_minute    smallint NOT NULL,               -- above 1440: ends on the next day
    slot_minutes  smallint NOT NULL,               -- length of a slot
    every_minutes smallint NOT NULL,               -- distance between starts
    capacity      int      NOT NULL,
    PRIMARY KEY (schedule_id, weekday, start_minute),
    CONSTRAINT chk_shift_weekday  CHECK (weekday BETWEEN 1 AND 7),
    CONSTRAINT chk_shift_start    CHECK (start_minute BETWEEN 0 AND 1439),
    CONSTRAINT chk_shift_end      CHECK (end_minute > start_minute AND end_minute - start_minute <= 1440),
    CONSTRAINT chk_shift_slot     CHECK (slot_minutes BETWEEN 1 AND 1440),
    CONSTRAINT chk_shift_every    CHECK (every_minutes BETWEEN 1 AND 1440),
    CONSTRAINT chk_shift_capacity CHECK (capacity BETWEEN 1 AND 100000)
);

-- A slot is a row, so that contention for it has one place.
-- booked_count stands in no index and no predicate of one: every booking changes it, and only
-- so do those updates stay heap-only. The fillfactor leaves them room on the page.
CREATE TABLE time_slot (
    id           bigserial PRIMARY KEY,
    doctor_id    bigint      NOT NULL REFERENCES doctor,
    start_at     timestamptz NOT NULL,
    end_at       timestamptz NOT NULL,
    capacity     int         NOT NULL,
    booked_count int         NOT NULL DEFAULT 0,
    kind         text        NOT NULL DEFAULT 'FIXED',
    opens_at     timestamptz NOT NULL,             -- bookable from
    status       text        NOT NULL DEFAULT 'OPEN',
    version      bigint      NOT NULL DEFAULT 0,
    CONSTRAINT chk_capacity      CHECK (capacity > 0),
    CONSTRAINT chk_booked        CHECK (booked_count BETWEEN 0 AND capacity),  -- the last line of defence
    CONSTRAINT chk_slot_interval CHECK (end_at > start_at),
    CONSTRAINT chk_slot_finite   CHECK (isfinite(start_at) AND isfinite(end_at) AND isfinite(opens_at)),
    CONSTRAINT chk_slot_kind     CHECK (kind IN ('FIXED', 'FLEXIBLE')),
    CONSTRAINT chk_slot_status   CHECK (status IN ('OPEN', 'CLOSED', 'WITHDRAWN')),
    CONSTRAINT ex_flexible_doctor_time EXCLUDE USING gist (doctor_id WITH =, tstzrange(start_at, end_at) WITH &&)
        WHERE (kind = 'FLEXIBLE' AND status <> 'WITHDRAWN')
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX uq_doctor_start ON time_slot (doctor_id, start_at) WHERE status <> 'WITHDRAWN';

-- active    = HELD, BOOKED, ARRIVED: blocks the patient's time and the referral
-- occupying = active, FULFILLED, NO_SHOW, and CANCELLED with returns_at: counted in booked_count
CREATE TABLE appointment (
    id              bigserial PRIMARY KEY,
    slot_id         bigint      NOT NULL REFERENCES time_slot,
    patient_id      bigint      NOT NULL REFERENCES patient,
    organization_id bigint      NOT NULL,          -- the doctor's, copied for uq_active_referral and access
    status          varchar(20) NOT NULL,
    idempotency_key varchar(64) NOT NULL,
    booked_by       text        NOT NULL,          -- kind and stable subject of the caller
    request_hash    bytea       NOT NULL,          -- what the key stands for
    root_id         bigint      NOT NULL,          -- first appointment of a chain of moves
    referral_id     varchar(64),
    during          tstzrange   NOT NULL,          -- the slot's time, copied for ex_patient_overlap
    overlap_allowed boolean     NOT NULL DEFAULT false,
    expires_at      timestamptz,                   -- HELD: until when
    returns_at      timestamptz,                   -- CANCELLED: when its place comes back, NULL = at once
    replaces        bigint,                        -- the appointments before and after a move
    replaced_by     bigint,
    created_at      timestamptz NOT NULL DEFAULT now(),
    cancelled_at    timestamptz,
    cancelled_by    text,
    cancel_reason   text,
    CONSTRAINT uq_idempotency_key UNIQUE (booked_by, idempotency_key),
    CONSTRAINT chk_appointment_status CHECK (status IN
        ('HELD', 'BOOKED', 'ARRIVED', 'FULFILLED', 'NO_SHOW', 'CANCELLED', 'EXPIRED')),
    CONSTRAINT chk_hold_expires  CHECK (status <> 'HELD' OR expires_at IS NOT NULL),
    CONSTRAINT chk_cancel_reason CHECK (char_length(cancel_reason) <= 500),
    CONSTRAINT ex_patient_overlap EXCLUDE USING gist (patient_id WITH =, during WITH &&)
        WHERE (status IN ('HELD', 'BOOKED', 'ARRIVED') AND NOT overlap_allowed)
);
CREATE UNIQUE INDEX uq_active_patient_slot ON appointment (slot_id, patient_id)
    WHERE status IN ('HELD', 'BOOKED', 'ARRIVED');
CREATE UNIQUE INDEX uq_active_referral ON appointment (organization_id, referral_id)
    WHERE status IN ('HELD', 'BOOKED', 'ARRIVED') AND referral_id IS NOT NULL;
CREATE INDEX ix_appointment_slot ON appointment (slot_id, id);
CREATE INDEX ix_appointment_patient ON appointment (patient_id, id);
CREATE INDEX ix_held_slot ON appointment (slot_id) WHERE status = 'HELD';
CREATE INDEX ix_held_expires ON appointment (expires_at) WHERE status = 'HELD';
CREATE INDEX ix_returns_slot ON appointment (slot_id) WHERE returns_at IS NOT NULL;
CREATE INDEX ix_returns_at ON appointment (returns_at) WHERE returns_at IS NOT NULL;

-- Facts committed with a booking, for everything that happens outside this database.
-- Payloads hold ids and times, never personal data: what has left cannot be erased.
CREATE TABLE outbox_event (
    id         bigserial PRIMARY KEY,
    root_id    bigint      NOT NULL,               -- order is per root, not by id: ids are not in commit order
    type       text        NOT NULL,
    payload    jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
