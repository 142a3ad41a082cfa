package main

import (
	"math"
	"sort"
)

// random is a stream of numbers that is the same in every run: what is asked for must not differ
// from round to round.
type random uint64

// mix spreads the bits of n, so that neighbours have nothing in common (the end of SplitMix64).
func mix(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	return mix(uint64(*r))
}

// below is a number from 0 to n-1.
func (r *random) below(n int) int { return int(r.next() % uint64(n)) }

// share is a number from 0 to below 1.
func (r *random) share() float64 { return float64(r.next()>>11) / (1 << 53) }

// gap is the time to the next of events that come at random, 1 on average.
func (r *random) gap() float64 { return -math.Log(1 - r.share()) }

// zipf draws from 0 to n-1, the i-th with a weight of 1/(i+1): a few that everybody wants, and
// many that somebody wants.
type zipf []float64

func newZipf(n int) zipf {
	z := make(zipf, n)
	sum := 0.0
	for i := range z {
		sum += 1 / float64(i+1)
		z[i] = sum
	}
	return z
}

func (z zipf) draw(r *random) int {
	return min(sort.SearchFloat64s(z, r.share()*z[len(z)-1]), len(z)-1)
}
