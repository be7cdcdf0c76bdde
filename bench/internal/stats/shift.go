package stats

import (
	"math"
	"slices"
)

// Shift is the factor between the values of two samples, without any assumption about their
// distribution. Ratio is the Hodges-Lehmann estimate: the median of the ratios of all pairs.
// Low and High bound the ratios that a Mann-Whitney test would not reject, so the interval
// holds 1 exactly if that test finds no difference.
type Shift struct {
	Ratio     float64 // of b to a
	Low, High float64 // 0 and infinity if there are too few values
}

// ShiftOf compares two samples of positive numbers, at a level of significance.
func ShiftOf(a, b []float64, alpha float64) Shift {
	ratios := make([]float64, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			ratios = append(ratios, y/x)
		}
	}
	slices.Sort(ratios)
	s := Shift{Ratio: Median(ratios), High: math.Inf(1)}
	if c := critical(len(a), len(b), alpha); c > 0 {
		s.Low, s.High = ratios[c-1], ratios[len(ratios)-c]
	}
	return s
}

// exactLimit is the largest sample for which the exact distribution is computed.
const exactLimit = 50

// critical is the greatest c with P(U < c) <= alpha/2, where U is the statistic of Mann and
// Whitney for two samples of n and m values from the same distribution. Zero: no U is that
// rare.
func critical(n, m int, alpha float64) int {
	if max(n, m) > exactLimit {
		mean := float64(n) * float64(m) / 2
		deviation := math.Sqrt(mean * float64(n+m+1) / 6)
		return max(0, int(math.Floor(mean-0.5+1-deviation*quantile(1-alpha/2))))
	}
	// ways[j][u] counts the ways in which j values of the first sample can lie among the
	// values seen so far with U = u: each of the j adds the number of values of the second
	// sample below it.
	ways := make([][]float64, n+1)
	for j := range ways {
		ways[j] = make([]float64, n*m+1)
	}
	ways[0][0] = 1
	total := 0.0
	for seen := range n + m {
		for j := min(n, seen+1); j >= 1; j-- {
			below := seen - (j - 1) // values of the second sample
			if below > m {
				continue
			}
			for u := n * m; u >= below; u-- {
				ways[j][u] += ways[j-1][u-below]
			}
		}
	}
	for _, w := range ways[n] {
		total += w
	}
	sum := 0.0
	for u, w := range ways[n] {
		if sum += w; sum > alpha/2*total {
			return u
		}
	}
	return 0
}

// quantile is the quantile function of the standard normal distribution.
func quantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// Enough is the smallest size of two equal samples that can show any difference.
func Enough(alpha float64) int {
	for n := 2; n < exactLimit; n++ {
		if critical(n, n, alpha) > 0 {
			return n
		}
	}
	return exactLimit
}
