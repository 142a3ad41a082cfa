package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// The calls of the burst over REST, as a partner's program would send them.

// send is a request for path with the lines of header, without a body if that is empty.
func (r *request) send(method, path, token, header string, body []byte) []byte {
	r.buf = append(append(append(append(r.buf[:0], method...), ' '), path...), " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "...)
	r.buf = append(append(append(r.buf, token...), "\r\n"...), header...)
	if len(body) > 0 {
		r.buf = append(r.buf, "Content-Type: application/json\r\nContent-Length: "...)
		r.buf = append(strconv.AppendInt(r.buf, int64(len(body)), 10), "\r\n"...)
	}
	r.buf = append(r.buf, "\r\n"...)
	return append(r.buf, body...)
}

func (r *request) bookREST(token string, slot int64, key string) []byte {
	r.body = strconv.AppendInt(append(r.body[:0], `{"slotId":`...), slot, 10)
	r.body = append(r.body, '}')
	return r.send("POST", "/api/appointments", token, "Idempotency-Key: "+key+"\r\n", r.body)
}

func (r *request) cancelREST(token string, appointment int64) []byte {
	return r.send("DELETE", "/api/appointments/"+strconv.FormatInt(appointment, 10), token, "", nil)
}

// readBookedREST reads the answer to a booking. What does not begin as expected is read by
// encoding/json: that alone decides what is wrong.
func readBookedREST(status int, body []byte) (booked, error) {
	switch status {
	case 200, 201:
		if rest, ok := bytes.CutPrefix(body, []byte(`{"id":`)); ok {
			if id, after, ok := number(rest); ok && bytes.HasPrefix(after, []byte(`,"status":"BOOKED","slotId":`)) && body[len(body)-1] == '}' {
				return booked{appointment: id, status: "BOOKED", replayed: status == 200}, nil
			}
		}
	case 409:
		const full = `"detail":"No place is left in this slot. Choose another.","code":"SLOT_FULL","requestId":"`
		if bytes.Contains(body, []byte(full)) && body[len(body)-1] == '}' {
			return booked{refusal: "SLOT_FULL"}, nil
		}
	}
	var answer struct {
		ID            int64
		Status        json.RawMessage // a problem's is a number
		Code          string
		AppointmentID int64
	}
	if err := json.Unmarshal(body, &answer); err != nil || (answer.ID != 0) == (answer.Code != "") || status >= 500 || status < 300 && answer.Code != "" {
		return booked{}, fmt.Errorf("HTTP %d: %.200s", status, body)
	}
	if answer.Code != "" {
		return booked{appointment: answer.AppointmentID, refusal: answer.Code}, nil
	}
	var stands string
	if err := json.Unmarshal(answer.Status, &stands); err != nil {
		return booked{}, fmt.Errorf("HTTP %d: %.200s", status, body)
	}
	return booked{appointment: answer.ID, status: stands, replayed: status == 200}, nil
}

// checkCancelledREST wants an answer that says that the appointment is cancelled.
func checkCancelledREST(status int, body []byte) error {
	if status != 200 || !bytes.Contains(body, []byte(`,"status":"CANCELLED",`)) {
		return fmt.Errorf("a cancellation was answered with HTTP %d: %.200s", status, body)
	}
	return nil
}
