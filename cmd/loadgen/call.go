package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// What is asked, as an app would.
const (
	bookQuery   = `mutation Book($input: BookAppointmentInput!) { bookAppointment(input: $input) { appointment { id status startAt } replayed errors { code message } } }`
	cancelQuery = `mutation Cancel($input: CancelAppointmentInput!) { cancelAppointment(input: $input) { appointment { status } changed errors { code } } }`
	listQuery   = `query Day($doctor: ID!, $date: Date!) { slots(doctorId: $doctor, date: $date, includeFull: true) { asOf slots { id startAt endAt capacity free status } } }`
)

// request builds requests in one buffer.
type request struct{ buf, body []byte }

// post is a POST of the query with variables, which are JSON. Without a token nobody asks.
func (r *request) post(token, query string, variables []byte) []byte {
	r.body = append(r.body[:0], `{"query":"`...)
	r.body = append(r.body, query...) // none has a character that JSON would escape
	r.body = append(r.body, `","variables":`...)
	r.body = append(r.body, variables...)
	r.body = append(r.body, '}')

	r.buf = append(r.buf[:0], "POST /graphql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"...)
	if token != "" {
		r.buf = append(r.buf, "Authorization: Bearer "...)
		r.buf = append(r.buf, token...)
		r.buf = append(r.buf, "\r\n"...)
	}
	r.buf = append(r.buf, "Content-Length: "...)
	r.buf = strconv.AppendInt(r.buf, int64(len(r.body)), 10)
	r.buf = append(r.buf, "\r\n\r\n"...)
	r.buf = append(r.buf, r.body...)
	return r.buf
}

func (r *request) book(token string, slot int64, key string) []byte {
	variables := make([]byte, 0, 96)
	variables = append(variables, `{"input":{"slotId":"`...)
	variables = strconv.AppendInt(variables, slot, 10)
	variables = append(variables, `","idempotencyKey":"`...)
	variables = append(variables, key...)
	variables = append(variables, `"}}`...)
	return r.post(token, bookQuery, variables)
}

func (r *request) cancel(token string, appointment int64) []byte {
	return r.post(token, cancelQuery, fmt.Appendf(nil, `{"input":{"appointmentId":"%d"}}`, appointment))
}

func (r *request) list(doctor int64, date string) []byte {
	variables := make([]byte, 0, 64)
	variables = append(variables, `{"doctor":"`...)
	variables = strconv.AppendInt(variables, doctor, 10)
	variables = append(variables, `","date":"`...)
	variables = append(variables, date...)
	variables = append(variables, `"}`...)
	return r.post("", listQuery, variables)
}

// booked is the answer to a booking.
type booked struct {
	appointment int64 // 0 = refused
	status      string
	replayed    bool
	refusal     string // the code
}

// readBooked reads it at the cost of a comparison. What does not look as expected, byte for byte,
// is read again by encoding/json: that alone decides what is wrong.
func readBooked(status int, body []byte) (booked, error) {
	rest, won := bytes.CutPrefix(body, []byte(`{"data":{"bookAppointment":{"appointment":{"id":"`))
	if status == 200 && won {
		if id, after, ok := number(rest); ok {
			if after, ok := bytes.CutPrefix(after, []byte(`","status":"BOOKED","startAt":"`)); ok && len(after) > 20 {
				switch string(after[20:]) {
				case `"},"replayed":false,"errors":[]}}}`:
					return booked{appointment: id, status: "BOOKED"}, nil
				case `"},"replayed":true,"errors":[]}}}`:
					return booked{appointment: id, status: "BOOKED", replayed: true}, nil
				}
			}
		}
	}
	const full = `{"data":{"bookAppointment":{"appointment":null,"replayed":false,"errors":[{"code":"SLOT_FULL","message":"No place is left in this slot. Choose another."}]}}}`
	if status == 200 && string(body) == full {
		return booked{refusal: "SLOT_FULL"}, nil
	}
	return parseBooked(status, body)
}

// number reads digits.
func number(text []byte) (n int64, rest []byte, ok bool) {
	i := 0
	for i < len(text) && i < 18 && '0' <= text[i] && text[i] <= '9' {
		n = 10*n + int64(text[i]-'0')
		i++
	}
	return n, text[i:], i > 0
}

// envelope is any answer.
type envelope[T any] struct {
	Data   *T
	Errors []struct {
		Message    string
		Extensions struct{ Code string }
	}
}

// parse reads an answer that must have data and no errors.
func parse[T any](status int, body []byte) (T, error) {
	var e envelope[T]
	if err := json.Unmarshal(body, &e); err != nil || status != 200 || e.Data == nil || len(e.Errors) > 0 {
		return *new(T), fmt.Errorf("HTTP %d: %.200s", status, body)
	}
	return *e.Data, nil
}

func parseBooked(status int, body []byte) (booked, error) {
	data, err := parse[struct {
		BookAppointment struct {
			Appointment *struct {
				ID     int64 `json:",string"`
				Status string
			}
			Replayed bool
			Errors   []struct{ Code string }
		}
	}](status, body)
	if err != nil {
		return booked{}, err
	}
	b := booked{replayed: data.BookAppointment.Replayed}
	if a := data.BookAppointment.Appointment; a != nil {
		b.appointment, b.status = a.ID, a.Status
	}
	if errs := data.BookAppointment.Errors; len(errs) > 0 {
		b.refusal = errs[0].Code
	}
	if (b.appointment != 0) == (b.refusal != "") && b.refusal != "ALREADY_BOOKED" {
		return booked{}, fmt.Errorf("neither booked nor refused: %.200s", body)
	}
	return b, nil
}

// checkCancelled wants an answer that says that this call cancelled the appointment.
func checkCancelled(status int, body []byte) error {
	const want = `{"data":{"cancelAppointment":{"appointment":{"status":"CANCELLED"},"changed":true,"errors":[]}}}`
	if status != 200 || string(body) != want {
		return fmt.Errorf("a cancellation was answered with HTTP %d: %.200s", status, body)
	}
	return nil
}

// checkList wants a day's slots, all of them. Every answer is looked at; deep is for some, because
// it costs as much as the server takes to answer.
func checkList(status int, body []byte, deep bool) error {
	slots := bytes.Count(body, []byte(`"status":"OPEN"`))
	if status != 200 || slots != slotsPerDay || !bytes.HasPrefix(body, []byte(`{"data":{"slots":{"asOf":"`)) || !bytes.HasSuffix(body, []byte(`"}]}}}`)) {
		return fmt.Errorf("a list of %d slots, HTTP %d: %.200s", slots, status, body)
	}
	if !deep {
		return nil
	}
	data, err := parse[struct {
		Slots struct {
			Slots []struct {
				ID             int64 `json:",string"`
				StartAt, EndAt string
				Capacity, Free int
			}
		}
	}](status, body)
	if err != nil {
		return err
	}
	for i, s := range data.Slots.Slots {
		if s.ID == 0 || s.StartAt >= s.EndAt || s.Free < 0 || s.Free > s.Capacity ||
			i > 0 && s.StartAt < data.Slots.Slots[i-1].EndAt {
			return fmt.Errorf("slot %d of a list makes no sense: %+v", i, s)
		}
	}
	return nil
}
