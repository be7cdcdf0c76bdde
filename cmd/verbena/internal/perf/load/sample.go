package load

import (
	"math"
	"time"
)

// Sample is the measurement of one engine in one step.
type Sample struct {
	Operations int64
	From, To   time.Time
	Peak       float64  // the highest rate in any peakSlice, in operations a second
	Latency    *Latency // nil in bandwidth tests

	fromCPU, toCPU time.Duration // processor time of the process at From and To
}

// Rate is operations a second.
func (s *Sample) Rate() float64 {
	if d := s.To.Sub(s.From); d > 0 {
		return float64(s.Operations) / d.Seconds()
	}
	return 0
}

// Latency is a distribution of times. Percentiles have three digits; the other figures are
// exact.
type Latency struct {
	histogram  histogram
	n          int64
	min, max   time.Duration
	mean, sqrs float64 // in nanoseconds; sqrs is the sum of squared differences from the mean
}

// longestLatency is the longest time that percentiles distinguish.
const longestLatency = 10 * time.Minute

// NewLatency makes an empty distribution.
func NewLatency() *Latency {
	return &Latency{min: math.MaxInt64}
}

// Record adds a time.
func (l *Latency) Record(d time.Duration) {
	d = max(d, 0)
	l.n++
	l.min, l.max = min(l.min, d), max(l.max, d)
	delta := float64(d) - l.mean
	l.mean += delta / float64(l.n)
	l.sqrs += delta * (float64(d) - l.mean)
	l.histogram.record(int64(min(d, longestLatency)))
}

// Min, Max, Mean and Deviation are exact, in microseconds.
func (l *Latency) Min() float64  { return micros(float64(l.min)) }
func (l *Latency) Max() float64  { return micros(float64(l.max)) }
func (l *Latency) Mean() float64 { return micros(l.mean) }

// Deviation is the standard deviation.
func (l *Latency) Deviation() float64 {
	if l.n < 2 {
		return 0
	}
	return micros(math.Sqrt(l.sqrs / float64(l.n-1)))
}

// Percentile is the time, in microseconds, that p percent of the values do not exceed.
func (l *Latency) Percentile(p float64) float64 {
	return micros(float64(min(l.histogram.percentile(p), int64(l.max))))
}

// Bar is one bar of a histogram: how often a time was measured.
type Bar struct {
	Nanoseconds int64 `json:"ns"`
	Count       int64 `json:"n"`
}

// Bars returns the non-empty bars of the histogram, in order.
func (l *Latency) Bars() (list []Bar) {
	for i, n := range l.histogram.counts {
		if n > 0 {
			list = append(list, Bar{min(last(i), int64(l.max)), n})
		}
	}
	return list
}

func micros(ns float64) float64 { return ns / 1000 }
