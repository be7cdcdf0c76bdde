package sim

import (
	"fmt"
	"runtime/debug"

	"github.com/verbena-rdma/verbena/internal/goroutine"
)

// failNow is the panic by which a function that the simulation calls ends the test.
type failNow struct{}

// FailNow ends the test. Unlike that of [testing.TB], it may be called by functions given to
// At, After and RunUntil, and by programs and their goroutines; so may Fatal, Fatalf, and
// package require.
func (s *Sim) FailNow() {
	if goroutine.Current() != s.driver {
		s.endRun()
		s.TB.FailNow()
	}
	s.Fail()
	panic(failNow{})
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

// call calls a function of the test, which may end the test.
func (s *Sim) call(f func()) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failNow:
			s.endRun()
		default:
			panic(fmt.Sprintf("sim: panic, seed %d: %v\n%s", s.seed, p, debug.Stack()))
		}
	}()
	f()
}
