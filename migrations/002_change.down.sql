DROP TRIGGER slot_deleted ON time_slot;
DROP TRIGGER slot_updated ON time_slot;
DROP TRIGGER slot_inserted ON time_slot;
DROP TRIGGER slot_version ON time_slot;
DROP FUNCTION slot_announce();
DROP FUNCTION slot_before_update();
