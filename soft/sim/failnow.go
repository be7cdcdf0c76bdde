package sim

import (
	"fmt"
	"runtime/debug"
)

// FailNow ends the test. Unlike that of [testing.TB], it may be called by functions given to
// At, After and RunUntil, and by programs and their goroutines; so may Fatal, Fatalf, SkipNow,
// Skip, Skipf, and package require.
func (s *Sim) FailNow() {
	s.endRun()
	s.TB.FailNow()
}

// Fatal is Error and FailNow.
func (s *Sim) Fatal(args ...any) {
	s.Helper()
	s.Error(args...)
	s.FailNow()
}

// Fatalf is Errorf and FailNow.
func (s *Sim) Fatalf(format string, args ...any) {
	s.Helper()
	s.Errorf(format, args...)
	s.FailNow()
}

// SkipNow ends the test, which has been skipped unless it has failed.
func (s *Sim) SkipNow() {
	s.endRun()
	s.TB.SkipNow()
}

// Skip is Log and SkipNow.
func (s *Sim) Skip(args ...any) {
	s.Helper()
	s.Log(args...)
	s.SkipNow()
}

// Skipf is Logf and SkipNow.
func (s *Sim) Skipf(format string, args ...any) {
	s.Helper()
	s.Logf(format, args...)
	s.SkipNow()
}

// skipped reports whether the test has been skipped, and has not failed.
func (s *Sim) skipped() bool { return s.TB.Skipped() && !s.TB.Failed() }

// call calls a function of the test, which may end the test.
func (s *Sim) call(f func()) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			panic(fmt.Sprintf("sim: panic, seed %d: %v\n%s", s.seed, p, debug.Stack()))
		}
		if !returned {
			// FailNow or SkipNow of any test ends the driver's goroutine. The simulation goes
			// on before it ends, so that programs and the test can return.
			s.endRun()
			s.drive()
		}
	}()
	f()
	returned = true
}
