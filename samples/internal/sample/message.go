package sample

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-rdma/verbena/descriptor"
)

const (
	messageVersion = 1
	// maxMessage bounds what is read from a peer, in bytes.
	maxMessage = descriptor.MaxFile
)

// outcome is how a program ended.
type outcome string

const (
	running   outcome = ""
	succeeded outcome = "succeeded"
	failed    outcome = "failed"
)

func outcomeOf(ok bool) outcome {
	if ok {
		return succeeded
	}
	return failed
}

// err is what peerDone returns for an outcome.
func (o outcome) err(peer string) error {
	if o == succeeded {
		return nil
	}
	return fmt.Errorf("%s: %w", peer, errPeerFailed)
}

var (
	errPeerFailed = errors.New("the peer has failed, its own output says why")
	errMessage    = errors.New("not a message of a sample program")
)

// message is what programs send each other through a folder or over TCP.
type message struct {
	Version int    `json:"version"`
	Program string `json:"program"`
	// Run distinguishes runs of a program, and Seen is the peer's, as far as it is
	// known: a file that has seen our run is not left over from an earlier one.
	Run         string   `json:"run,omitempty"`
	Seen        string   `json:"seen,omitempty"`
	Connections [][]byte `json:"connections,omitempty"`
	Memory      []byte   `json:"memory,omitempty"`
	Event       []byte   `json:"event,omitempty"`
	Outcome     outcome  `json:"outcome,omitempty"`
}

func newMessage(p Program, ours Descriptors) message {
	return message{Version: messageVersion, Program: p.Name, Connections: ours.Connections, Memory: ours.Memory, Event: ours.Event}
}

func (m *message) descriptors() Descriptors {
	return Descriptors{Connections: m.Connections, Memory: m.Memory, Event: m.Event}
}

// encode returns the message as one line.
func (m *message) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	if b = append(b, '\n'); len(b) > maxMessage {
		return nil, fmt.Errorf("encode message: %d bytes, peers take at most %d", len(b), maxMessage)
	}
	return b, nil
}

// decodeMessage is strict: nothing unknown, nothing left over, and from the
// program that is expected.
func decodeMessage(b []byte, from string) (message, error) {
	var m message
	if len(b) > maxMessage {
		return m, fmt.Errorf("%w: more than %d bytes", errMessage, maxMessage)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMessage, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return message{}, fmt.Errorf("%w: something follows it", errMessage)
	}
	switch {
	case m.Version != messageVersion:
		return message{}, fmt.Errorf("%w: it has version %d, this program knows %d", errMessage, m.Version, messageVersion)
	case m.Program != from:
		return message{}, fmt.Errorf("%w: it is from %.40q, expected was %s; start the two programs of a pair", errMessage, m.Program, from)
	case m.Outcome != running && m.Outcome != succeeded && m.Outcome != failed:
		return message{}, fmt.Errorf("%w: outcome %.40q", errMessage, m.Outcome)
	}
	return m, nil
}
