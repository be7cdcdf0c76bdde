// Package median computes the median of the rounds of a benchmark.
package median

import "slices"

// Of returns the median of at least one value: with an even number, the mean of the middle
// two. It does not change values.
func Of(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// By returns the median of of(r) over all rounds r.
func By[T any](rounds []T, of func(T) float64) float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return Of(values)
}
