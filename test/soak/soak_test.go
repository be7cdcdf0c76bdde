package soak

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSoakFactor(t *testing.T) {
	for text, want := range map[string]struct {
		rounds   int
		duration time.Duration
		full     bool
	}{
		"":     {20, time.Second, false},
		"0":    {20, time.Second, false},
		"1":    {1000, time.Minute, true},
		"2.5":  {2500, 150 * time.Second, true},
		"0.1":  {100, 6 * time.Second, true},
		"1e-9": {20, time.Second, true},
		"1e40": {math.MaxInt/2 + 1, 1 << 62, true},
	} {
		t.Setenv(Variable, text)
		assert.Equal(t, want.rounds, Rounds(t, 20, 1000), "%q", text)
		assert.Equal(t, want.duration, Duration(t, time.Second, time.Minute), "%q", text)
		assert.Equal(t, want.full, Full(t), "%q", text)
	}
	t.Setenv(Variable, "1")
	assert.Equal(t, 24*time.Hour, Patience(t, time.Minute))
	t.Setenv(Variable, "")
	assert.Equal(t, time.Minute, Patience(t, time.Minute))
}

// A spy takes the place of a test, and keeps why that would have failed.
type spy struct {
	testing.TB
	name, failed string
}

func (s *spy) Helper()             {}
func (s *spy) Logf(string, ...any) {}
func (s *spy) Name() string        { return s.name }

func (s *spy) Fatalf(format string, args ...any) {
	s.failed = fmt.Sprintf(format, args...)
	panic(s)
}

func (s *spy) rounds() {
	defer func() { _ = recover() }()
	Rounds(s, 1, 2)
}

func TestSoakMisuse(t *testing.T) {
	s := &spy{TB: t, name: "TestReconnect"}
	s.rounds()
	assert.Contains(t, s.failed, "TestReconnect")
	for _, text := range []string{"full", "-1", "NaN", "Inf", "10m"} {
		t.Setenv(Variable, text)
		s := &spy{TB: t, name: "TestSoakReconnect/soft"}
		s.rounds()
		assert.Contains(t, s.failed, text)
	}
}
