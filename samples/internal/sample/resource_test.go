package sample

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
)

var (
	setterProgram = Program{Name: "setter", Role: Requester, Peer: "waiter", Memory: ImportsEvent}
	waiterProgram = Program{Name: "waiter", Role: Responder, Peer: "setter", Memory: ExportsEvent}
)

// The descriptor of a sync event travels like that of memory.
func TestEventsTravel(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	address := "tcp:" + freeAddress(t)
	for way, args := range map[string][2][]string{
		"dir":   {{"-oob", "dir:" + dir}, {"-oob", "dir:" + dir}},
		"tcp":   {{"-oob", address}, {"-oob", address}},
		"files": {{"-ld", in("x"), "-re", in("y"), "-m", in("m")}, {"-ld", in("y"), "-re", in("x"), "-m", in("m")}},
	} {
		t.Run(way, func(t *testing.T) {
			ours, _ := newSession(t, setterProgram, nil, args[0]...)
			theirs, _ := newSession(t, waiterProgram, nil, args[1]...)
			want := descriptorsOf(t, waiterProgram, 1)
			require.NotEmpty(t, want.Event)
			done := make(chan error, 1)
			go func() {
				_, err := theirs.channel.exchange(patient(t), want)
				done <- err
			}()
			got, err := ours.channel.exchange(patient(t), descriptorsOf(t, setterProgram, 1))
			require.NoError(t, err)
			require.NoError(t, <-done)
			assert.Nil(t, got.Memory)
			assert.Equal(t, canonical(want), canonical(got))
			require.NoError(t, errors.Join(ours.channel.close(true), theirs.channel.close(true)))
		})
	}
}

func TestPastedResources(t *testing.T) {
	armored := func(kind descriptor.Kind) string { return descriptor.Armor(encode(t, kind, "d")) }
	c, m, e := armored(descriptor.Connection), armored(descriptor.MemoryMap), armored(descriptor.SyncEvent)
	for _, test := range []struct {
		program     Program
		input, text string
	}{
		{setterProgram, e + c, ""},
		{setterProgram, c + m + e, "a memory map descriptor was pasted"},
		{setterProgram, e + e + c, "one sync event descriptor too many"},
		{requesterProgram, e + c + m, "a sync event descriptor was pasted"},
		{waiterProgram, e + c, "a sync event descriptor was pasted"},
	} {
		s, _ := newSession(t, test.program, strings.NewReader(test.input), "-oob", "stdio")
		_, err := s.channel.exchange(patient(t), descriptorsOf(t, test.program, 1))
		if test.text == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, test.text)
		}
		for range s.channel.(*paste).lines.lines { // let its goroutine end
		}
	}
}

// What the peer sends has to be what is awaited, whatever way it came.
func TestCheckResource(t *testing.T) {
	one := [][]byte{{1}}
	for _, test := range []struct {
		program Program
		theirs  Descriptors
		text    string
	}{
		{setterProgram, Descriptors{Connections: one, Event: one[0]}, ""},
		{setterProgram, Descriptors{Connections: one}, "waiter sent no descriptor of its sync event"},
		{setterProgram, Descriptors{Connections: one, Memory: one[0]}, "descriptor of its memory, which nothing here needs"},
		{requesterProgram, Descriptors{Connections: one, Event: one[0]}, "answerer sent no descriptor of its memory"},
		{requesterProgram, Descriptors{Connections: one, Memory: one[0], Event: one[0]}, "of its sync event, which nothing here needs"},
		{waiterProgram, Descriptors{Connections: one, Event: one[0]}, "of its sync event, which nothing here needs"},
		{waiterProgram, Descriptors{Connections: one}, ""},
	} {
		s := &Session{program: test.program}
		err := s.check(Descriptors{Connections: one}, test.theirs)
		if test.text == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, test.text)
		}
	}
}
