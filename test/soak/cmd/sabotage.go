package main

import (
	"os"

	"github.com/verbena-rdma/verbena/test/traffic"
)

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

// tamper commits the client's error before an operation of a link, or on data that the peer
// checks.
func tamper(l *traffic.Link, piece []byte) {
	switch {
	case !l.First || l.Stays:
	case piece != nil:
		if sabotage == sabotageData {
			piece[len(piece)-1] ^= 0x10
		}
	case l.Ops < 3 || l.Over():
	case sabotage == sabotageExit:
		os.Exit(7)
	case sabotage == sabotageClose && l.Conn != nil && !l.Abrupt:
		l.Abandon()
	}
}

var forgotten []*os.File

// admitted commits the server's error when there is a new link.
func (e *end) admitted() {
	switch sabotage {
	case sabotageStop:
		e.Check(e.Ctx.Stop())
	case sabotageLeak:
		f, err := os.Open(os.DevNull)
		e.Check(err)
		forgotten = append(forgotten, f)
	}
}
