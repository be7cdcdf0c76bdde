package load

import "math/bits"

// histogram counts values in ranges that grow with the values: 1024 in each power of two, so that a
// value is known to three digits.
type histogram struct {
	counts [rangeCount]int64
	total  int64
}

const (
	rangeBits  = 10
	rangeCount = (64-rangeBits)<<rangeBits + 1<<rangeBits
)

// rangeOf is the number of the range of a value, which is at least zero.
func rangeOf(v int64) int {
	shift := max(bits.Len64(uint64(v))-rangeBits-1, 0)
	return shift<<rangeBits + int(v>>shift)
}

// last is the largest value of a range.
func last(i int) int64 {
	shift := max(i>>rangeBits-1, 0)
	return int64(i-shift<<rangeBits+1)<<shift - 1
}

func (h *histogram) record(v int64) {
	h.counts[rangeOf(v)]++
	h.total++
}

// percentile is a value that p percent of the values do not exceed.
func (h *histogram) percentile(p float64) int64 {
	left := max(int64(p/100*float64(h.total)+0.5), 1)
	for i, n := range h.counts {
		if left -= n; left <= 0 {
			return last(i)
		}
	}
	return 0
}
