// Package median has the median of what rounds of a benchmark have measured.
package median

import "slices"

// Of is the median of the values, of which there is at least one: the mean of the two in the
// middle, where there are two. It does not change them.
func Of(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// By is the median of what of returns for each round.
func By[T any](rounds []T, of func(T) float64) float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return Of(values)
}
