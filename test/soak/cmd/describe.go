package main

import (
	"errors"
	"fmt"
	"strings"
)

// describe returns what the links of an end are waiting for, to find the reason of a hang.
func (e *end) describe() (err error) {
	for l := range e.links {
		if !l.isIdle() {
			err = errors.Join(err, errors.New(l.describe()))
		}
	}
	if e.service.datagrams() {
		return err
	}
	if conns := e.connections.List(); len(conns) != len(e.links) {
		for _, conn := range conns {
			err = errors.Join(err, fmt.Errorf("%v is %v: %w", conn, conn.State(), conn.Err()))
		}
	}
	return err
}

func (l *link) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v:", l)
	if l.conn != nil {
		fmt.Fprintf(&b, " %v", l.conn.State())
	}
	for _, is := range []struct {
		name string
		so   bool
	}{{"ready", l.ready}, {"greeted", l.gotHello}, {"leaving", l.finishing}, {"done", l.done}, {"heard", l.peerDone},
		{"over", l.finished}, {"failed", l.failed}, {"closed", l.closed}} {
		if is.so {
			b.WriteString(" " + is.name)
		}
	}
	fmt.Fprintf(&b, ", %d tasks, %d operations of %d", l.inFlight, l.ops, l.budget)
	for i := range l.workers {
		if s := &l.workers[i]; s.busy {
			fmt.Fprintf(&b, ", worker %d: %s of %d bytes, waits %d", i, opNames[s.op], s.length, s.waitsFor)
		}
	}
	return b.String()
}
