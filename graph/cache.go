package graph

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"hash/maphash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/99designs/gqlgen/graphql"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/vektah/gqlparser/v2/ast"

	"openslot/internal/auth"
	"openslot/internal/availability"
	"openslot/internal/booking"
)

// publicFields are the root fields whose answers are the same for everybody: nothing below them
// depends on who asks.
var publicFields = []string{"slots", "days", "doctor", "doctors", "__typename"}

// unannouncedFields are mutations of what public fields answer with that no feed tells of.
var unannouncedFields = []string{"createDoctor", "createOrganization", "updateBookingRules"}

// Limits of what is kept.
const (
	keptMost      = 1 << 15   // answers
	keptBytesMost = 160 << 20 // of answers and the requests that they answer
	keptMax       = 256 << 10 // bytes of one
)

// responses keeps answers to public queries as they were written, for as long as the lists in them
// are good. It looks at a request before anything of it is parsed: the same bytes, asked in the
// same way, get the same answer. Whatever stands in front (who asks, limits, logging) has seen the
// request; its answer went through the executor once, errors are not kept, and neither is
// anything that depends on the viewer.
//
// A nil *responses keeps nothing.
type responses struct {
	seed maphash.Seed

	mu    sync.Mutex
	kept  *simplelru.LRU[uint64, *kept]
	bytes int
}

// question is a request as it came: a body, or the query of a URL.
type question struct {
	method, media string
	text          []byte
	hash          uint64
}

// kept is an answer. It is never changed.
type kept struct {
	question
	body   []byte
	length string
	etag   string // of a GET
	trace  *availability.Trace

	renewable bool   // there is nothing but lists in it
	asOf      span   // where the body says how old they are
	moment    []byte // what to say there instead; nil = as the body has it
}

func newResponses() *responses {
	lru, err := simplelru.NewLRU[uint64, *kept](keptMost, nil)
	if err != nil {
		panic(err) // of a size below 1
	}
	return &responses{seed: maphash.MakeSeed(), kept: lru}
}

// question names the request.
func (r *responses) question(method, media string, text []byte) question {
	q := question{method: method, media: media, text: text}
	if r != nil {
		var h maphash.Hash
		h.SetSeed(r.seed)
		h.WriteString(method)
		h.WriteString(media)
		h.Write(text)
		q.hash = h.Sum64()
	}
	return q
}

// find returns the answer to a question, or nil.
func (r *responses) find(q question) *kept {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	k, ok := r.kept.Get(q.hash)
	r.mu.Unlock()
	if !ok || k.method != q.method || k.media != q.media || !bytes.Equal(k.text, q.text) {
		return nil
	}
	if k.trace.Good() {
		return k
	}
	renewed := k.renewed()
	if renewed != nil {
		r.keep(renewed)
	}
	return renewed
}

// keep keeps the answer if it is worth it.
func (r *responses) keep(k *kept) {
	size := len(k.text) + len(k.body)
	if r == nil || size > keptMax || !k.trace.Good() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.kept.Peek(k.hash); ok {
		r.forget(old)
	}
	r.kept.Add(k.hash, k)
	r.bytes += size
	for r.bytes > keptBytesMost || r.kept.Len() >= keptMost {
		_, oldest, _ := r.kept.GetOldest()
		r.forget(oldest)
	}
}

func (r *responses) forget(k *kept) {
	r.kept.Remove(k.hash)
	r.bytes -= len(k.text) + len(k.body)
}

// executed is told of every operation that was executed, before it is answered. What a mutation
// changed that nobody else tells of, no answer may go on saying otherwise.
func (r *responses) executed(operation *graphql.OperationContext) {
	if operation.Operation.Operation == ast.Mutation && isUnannounced(operation) {
		r.purge()
	}
}

// purge forgets everything.
func (r *responses) purge() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept.Purge()
	r.bytes = 0
}

// newKept makes an answer to keep; it has no errors in it.
func newKept(q question, body []byte, trace *availability.Trace) *kept {
	if cap(body) > 2*len(body) { // what is counted is the length
		body = bytes.Clone(body)
	}
	return &kept{question: q, body: body, length: strconv.Itoa(len(body)), trace: trace}
}

// ofLists is told that the answer was made of nothing but lists, and where it says how old they are.
func (k *kept) ofLists(moments []span) {
	if k.renewable = len(moments) <= 1; len(moments) == 1 {
		k.asOf = moments[0]
	}
}

// renewed is the answer as it would be made now, if it is known to say the same, but for the moment.
// Else it is nil. Most lists that have become old were not changed, and writing them again would be
// most of what they cost where a doctor is asked for less often than that.
func (k *kept) renewed() *kept {
	if !k.renewable {
		return nil
	}
	trace, asOf, ok := k.trace.Renewed()
	if !ok {
		return nil
	}
	next := *k
	next.trace = trace
	if at := k.asOf; at.to > 0 {
		next.moment = appendDateTime(nil, asOf)
		next.length = strconv.Itoa(len(k.body) - (at.to - at.from) + len(next.moment))
	}
	return &next
}

// write writes the answer, or to whoever has it already, that it is still so.
func (k *kept) write(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header["Vary"] = append(header["Vary"], "Accept")
	header["X-Content-Type-Options"] = nosniff
	header["Cache-Control"] = noStore
	if k.method == http.MethodGet {
		// It may be stored, and must be asked for again each time. Without a token it is public.
		header["Vary"] = append(header["Vary"], "Authorization")
		header["Etag"] = []string{k.etag}
		header["Cache-Control"] = noCache
		if auth.ActorFrom(r.Context()).Kind != booking.Anonymous {
			header["Cache-Control"] = privateNoCache
		}
		if matches(r.Header.Values("If-None-Match"), k.etag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	header["Content-Type"] = contentTypes[k.media]
	header["Content-Length"] = []string{k.length}
	w.WriteHeader(http.StatusOK)
	if k.moment == nil {
		w.Write(k.body)
		return
	}
	w.Write(k.body[:k.asOf.from])
	w.Write(k.moment)
	w.Write(k.body[k.asOf.to:])
}

// Values of headers, shared by all answers.
var (
	nosniff        = []string{"nosniff"}
	noStore        = []string{"no-store"}
	noCache        = []string{"no-cache"}
	privateNoCache = []string{"private, no-cache"}
	contentTypes   = map[string][]string{
		mediaJSON:     {mediaJSON + "; charset=utf-8"},
		mediaResponse: {mediaResponse + "; charset=utf-8"},
	}
)

// rootFields are the fields that an operation asks for.
func rootFields(operation *graphql.OperationContext, root string) []graphql.CollectedField {
	return graphql.CollectFields(operation, operation.Operation.SelectionSet, []string{root})
}

// isPublic reports whether everybody gets the same answer to a query.
func isPublic(operation *graphql.OperationContext) bool {
	for _, f := range rootFields(operation, "Query") {
		if !slices.Contains(publicFields, f.Name) {
			return false
		}
	}
	return true
}

// isUnannounced reports whether a mutation changes what nobody hears of.
func isUnannounced(operation *graphql.OperationContext) bool {
	return slices.ContainsFunc(rootFields(operation, "Mutation"), func(f graphql.CollectedField) bool {
		return slices.Contains(unannouncedFields, f.Name)
	})
}

// etag stands for what the data say. That they were read again a moment later (DaySlots.asOf) does
// not make them others, so it is a weak one.
func etag(operation *graphql.OperationContext, data []byte) string {
	asOf := map[string][]string{} // of slots fields, by their keys in data: the keys of asOf in them
	for _, f := range rootFields(operation, "Query") {
		if f.Name != "slots" {
			continue
		}
		for _, g := range graphql.CollectFields(operation, f.Selections, []string{"DaySlots"}) {
			if g.Name == "asOf" {
				asOf[f.Alias] = append(asOf[f.Alias], g.Alias)
			}
		}
	}
	sum := sha256.Sum256(without(data, asOf))
	return `W/"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
}

// without is an object of JSON with the values at the given keys of the given objects in it left out.
func without(data []byte, keys map[string][]string) []byte {
	if len(keys) == 0 {
		return data
	}
	rest := make([]byte, 0, len(data))
	members(data, func(key string, from, to int) {
		value := data[from:to]
		if inner := keys[key]; inner != nil {
			members(value, func(key string, from, to int) {
				if !slices.Contains(inner, key) {
					rest = append(append(append(rest, key...), ':'), value[from:to]...)
				}
			})
			return
		}
		rest = append(append(append(rest, key...), ':'), value...)
	})
	return rest
}

// members calls do for each member of an object of JSON, with where its value lies. What is no
// object has none.
func members(object []byte, do func(key string, from, to int)) {
	d := json.NewDecoder(bytes.NewReader(object))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return
		}
		to := int(d.InputOffset())
		do(key.(string), to-len(value), to)
	}
}

// matches reports whether a list of entity tags, as in If-None-Match, has the tag, weakly compared.
func matches(headers []string, tag string) bool {
	for _, header := range headers {
		for one := range strings.SplitSeq(header, ",") { // none of ours has a comma in it
			if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}
