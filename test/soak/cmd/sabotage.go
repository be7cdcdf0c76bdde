package main

import "os"

// What the tests of this program have a process do wrong, to see that it is found.
const (
	sabotageData  = "data"  // clients send other bytes than they should
	sabotageClose = "close" // clients close connections that they should not
	sabotageExit  = "exit"  // clients end in the middle
	sabotageHang  = "hang"  // clients do not leave
	sabotageStop  = "stop"  // the server stops a context
	sabotageLeak  = "leak"  // the server forgets to close a file of each connection
)

// sabotage is what this process does wrong; empty: nothing.
var sabotage string

// sabotaged does what a client does wrong with a link, and reports whether it has.
func (l *link) sabotaged() bool {
	if !l.first || l.steady || l.ops < 3 || l.over || l.failed {
		return false
	}
	switch {
	case sabotage == sabotageExit:
		os.Exit(7)
	case sabotage == sabotageClose && l.conn != nil && !l.rude:
		l.abandon()
		return true
	}
	return false
}

var forgotten []*os.File

// admitted does what the server does wrong when it has a new link.
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
