package stats

import "math"

// Fairness returns Jain's index of the shares (R. Jain and others, DEC-TR-301, 1984), which is
// 1 if all are equal and 1/n if one has everything, and the smallest share divided by the mean.
func Fairness(shares []float64) (jain, least float64) {
	sum, squares, smallest := 0.0, 0.0, math.Inf(1)
	for _, s := range shares {
		sum += s
		squares += s * s
		smallest = min(smallest, s)
	}
	if squares == 0 {
		return 0, 0
	}
	n := float64(len(shares))
	return sum * sum / (n * squares), smallest * n / sum
}
