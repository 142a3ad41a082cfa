package main

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations in buckets of microseconds: exact below 64 µs, above that at most
// 3 % wide. The zero value is empty.
type histogram struct {
	buckets [1024]int64
	count   int64
}

// bucketOf is the place of a duration: 32 buckets for every power of two.
func bucketOf(us uint64) int {
	if us < 64 {
		return int(us)
	}
	octave := bits.Len64(us) - 6
	return min(32*octave+int(us>>octave), 1023)
}

// upperEnd is the longest duration in a bucket, in microseconds.
func upperEnd(bucket int) uint64 {
	if bucket < 64 {
		return uint64(bucket)
	}
	octave := bucket/32 - 1
	return uint64(bucket-32*octave+1)<<octave - 1
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(uint64(max(0, d.Microseconds())))]++
	h.count++
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
	h.count += other.count
}

// quantile is the duration that a share q of all does not exceed, in milliseconds; NaN of none.
func (h *histogram) quantile(q float64) float64 {
	rank := int64(math.Ceil(q * float64(h.count)))
	for i, n := range h.buckets {
		if rank -= n; rank <= 0 && n > 0 {
			return float64(upperEnd(i)) / 1000
		}
	}
	return math.NaN()
}
