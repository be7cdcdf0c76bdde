// Package soak decides how long a test runs that finds more the longer it runs: for a moment
// in make test, in full in make soak-tests. The program of make soak is in test/soak/cmd.
//
//	func TestSoakReconnect(t *testing.T) {
//		for range soak.Rounds(t, 20, 1000) {
//			...
//		}
//	}
//
// The name of such a test contains Soak: make soak-tests runs those that match it and
// no others. A name without it fails the test, since make soak-tests would miss it.
//
// The environment variable VERBENA_SOAK is a factor. Unset, empty or 0 stands for a moment, 1
// for the full test, 10 for ten times as much, 0.1 for a tenth, but never less than a moment.
// The guest of package rig has the host's value.
package soak

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Variable is the environment variable for the factor.
const Variable = "VERBENA_SOAK"

// Rounds returns the number of repetitions: moment in make test, full in make soak-tests.
func Rounds(t testing.TB, short, full int) int {
	t.Helper()
	n := int(min(scale(t, float64(short), float64(full)), math.MaxInt/2+1))
	t.Logf("soak: %d rounds (make test: %d, make soak-tests: %d)", n, short, full)
	return n
}

// Duration returns how long the test repeats its work: moment in make test, full in make
// soak-tests. It is not for deadlines: see [Patience].
func Duration(t testing.TB, short, full time.Duration) time.Duration {
	t.Helper()
	d := time.Duration(scale(t, float64(short), float64(full)))
	t.Logf("soak: %v (make test: %v, make soak-tests: %v)", d, short, full)
	return d
}

// Patience returns a deadline for a test that takes longer in make soak-tests: moment in make
// test, and 24 hours times the factor in make soak-tests. It ends a test that hangs.
func Patience(t testing.TB, short time.Duration) time.Duration {
	t.Helper()
	return time.Duration(scale(t, float64(short), float64(24*time.Hour)))
}

// Full reports whether the test runs longer than in make test.
func Full(t testing.TB) bool {
	t.Helper()
	return factor(t) > 0
}

// scale returns the number for make test, or full times the factor.
func scale(t testing.TB, short, full float64) float64 {
	t.Helper()
	if !strings.Contains(t.Name(), "Soak") {
		t.Fatalf("soak: the name of %s does not contain Soak, so make soak-tests would not run it", t.Name())
	}
	if f := factor(t); f > 0 {
		return max(short, math.Round(min(full*f, math.MaxInt64/2)))
	}
	return short
}

func factor(t testing.TB) float64 {
	t.Helper()
	text := os.Getenv(Variable)
	if text == "" {
		return 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		t.Fatalf("soak: %s is %q; it takes a number such as 1 (in full), 10 or 0.1, or nothing", Variable, text)
	}
	return f
}
