// Package stats has the statistics of the rounds of a benchmark.
package stats

import "slices"

// Median returns the median of at least one value: with an even number, the mean of the middle
// two. It does not change values.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
