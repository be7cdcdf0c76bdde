package load

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLatency(t *testing.T) {
	l := NewLatency()
	for i := range 10_000 {
		l.Record(time.Duration(i+1) * time.Microsecond)
	}
	assert.Equal(t, 1.0, l.Min())
	assert.Equal(t, 10_000.0, l.Max())
	assert.InDelta(t, 5000.5, l.Mean(), 1e-6)
	assert.InDelta(t, 10_000/math.Sqrt(12), l.Deviation(), 1)
	for p, want := range map[float64]float64{50: 5000, 99: 9900, 99.9: 9990, 99.99: 9999} {
		assert.InEpsilon(t, want, l.Percentile(p), 0.001)
	}
	var n, last int64
	for _, b := range l.Bars() {
		assert.Greater(t, b.Nanoseconds, last)
		n, last = n+b.Count, b.Nanoseconds
	}
	assert.EqualValues(t, 10_000, n)

	l = NewLatency()
	l.Record(-time.Second)
	l.Record(24 * time.Hour)
	assert.Equal(t, 0.0, l.Min())
	assert.Equal(t, 24*3600e6, l.Max())
	assert.Equal(t, longestLatency.Seconds()*1e6, math.Round(l.Percentile(100)/1e6)*1e6)
}

// The last byte of a write is found in the word that holds it, in either byte order.
func TestBitOf(t *testing.T) {
	for i := range 4 {
		b := make([]byte, 4)
		b[i] = 0xa5
		word := binary.NativeEndian.Uint32(b)
		assert.Equal(t, byte(0xa5), byte(word>>bitOf(i)))
	}
}

func TestSum(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	f := Sum([]*Sample{
		{Operations: 100, From: at(0), To: at(100), Peak: 2000, toCPU: 50 * time.Millisecond},
		{Operations: 300, From: at(50), To: at(200), Peak: 3000, fromCPU: 10 * time.Millisecond, toCPU: 300 * time.Millisecond},
	})
	assert.EqualValues(t, 400, f.Operations)
	assert.Equal(t, 200*time.Millisecond, f.Elapsed)
	assert.InDelta(t, 1000+2000, f.Rate, 1e-6)
	assert.InDelta(t, 5000, f.Peak, 1e-6)
	assert.InDelta(t, 1.5, f.Busy, 1e-6)
	assert.Zero(t, (&Sample{Operations: 1}).Rate())
}
