package main

import "os"

// Errors that the tests of this program make a process commit, to see that they are found.
const (
	sabotageData  = "data"  // clients send wrong bytes
	sabotageClose = "close" // clients close connections during the work
	sabotageExit  = "exit"  // clients exit during the work
	sabotageHang  = "hang"  // clients do not leave
	sabotageStop  = "stop"  // the server stops a context
	sabotageLeak  = "leak"  // the server forgets to close a file of each connection
)

// sabotage is the error that this process commits; empty: none.
var sabotage string

// sabotaged commits the client's error on a link, and reports whether it has.
func (l *link) sabotaged() bool {
	if !l.first || l.steady || l.ops < 3 || l.finished || l.failed {
		return false
	}
	switch {
	case sabotage == sabotageExit:
		os.Exit(7)
	case sabotage == sabotageClose && l.conn != nil && !l.abrupt:
		l.abandon()
		return true
	}
	return false
}

var forgotten []*os.File

// admitted commits the server's error when there is a new link.
func (l *link) admitted() {
	switch sabotage {
	case sabotageStop:
		l.e.check(l.e.ctx.Stop())
	case sabotageLeak:
		f, err := os.Open(os.DevNull)
		l.e.check(err)
		forgotten = append(forgotten, f)
	}
}
