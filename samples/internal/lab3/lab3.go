// Package lab3 is shared by lab3_sender and lab3_receiver: it runs their steps, and has the
// messages that they exchange. A message is a byte for its kind, and a value of fixed size in
// network byte order.
package lab3

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

// Kind is the kind of a message.
type Kind byte

// The kinds of messages, in the order in which they are sent.
const (
	FileInfo   Kind = iota + 1 // from the sender: a File
	MemoryInfo                 // from the receiver: a Memory
	Done                       // from the sender: struct{}, the file is written
	Verdict                    // from the receiver: bool, whether the hash is right
	ID                         // from the sender: its name, [32]byte, padded with zeros
	Secret                     // from the receiver: the secret key for that ID, [32]byte
)

// File describes the file.
type File struct {
	Length uint64
	Hash   [32]byte // SHA-256
}

// Memory describes the memory to which the file is written.
type Memory struct {
	Addr, Length uint64
	RKey         uint32
}

// room is the size of the longest message.
const room = 64

// Messenger sends and receives messages.
type Messenger struct {
	receiver *await.Receiver
	out      *mmap.Map
}

// New returns a messenger of a context that has not been started. Call Close once the context
// is Idle. The memory for sends is closed with the device.
func New(dev verbs.Device, r *rdma.Connections) (*Messenger, error) {
	out, err := mmap.Alloc(dev, room, mmap.LocalReadWrite)
	if err != nil {
		return nil, err
	}
	receiver, err := await.NewReceiver(r, 4, room)
	return &Messenger{receiver, out}, err
}

// Close releases the memory of the receives.
func (m *Messenger) Close() error { return m.receiver.Close() }

// Send sends a message, and waits until the peer's device has acknowledged it.
func (m *Messenger) Send(ctx context.Context, conn *rdma.Connection, kind Kind, value any) error {
	message, err := binary.Append([]byte{byte(kind)}, binary.BigEndian, value)
	if err != nil {
		return err
	}
	return await.Send(ctx, conn, bufinv.Source(m.out, 0, copy(m.out.Bytes(), message)))
}

// Receive waits for a message, which has to be of that kind, and returns its connection.
func (m *Messenger) Receive(ctx context.Context, kind Kind, value any) (*rdma.Connection, error) {
	message, err := m.receiver.Receive(ctx)
	if err != nil {
		return nil, err
	}
	b := message.Bytes()
	if len(b) != 1+binary.Size(value) || Kind(b[0]) != kind {
		return nil, fmt.Errorf("expected a message of kind %d with %d bytes, got % x", kind, binary.Size(value), b)
	}
	_, err = binary.Decode(b[1:], binary.BigEndian, value)
	return message.Connection(), err
}

// Exchange sends a message, and receives the answer to it.
func (m *Messenger) Exchange(ctx context.Context, conn *rdma.Connection, kind Kind, value any, answer Kind, to any) error {
	if err := m.Send(ctx, conn, kind, value); err != nil {
		return err
	}
	_, err := m.Receive(ctx, answer, to)
	return err
}

// Run starts a context on the device that the flags select, and runs steps on a goroutine of
// its own while it drives the engine. It returns when the connection is closed, or when the
// context or steps has failed.
func Run(ctx context.Context, s *sample.Session, steps func(context.Context, *sample.Session, *rdma.Connections, *Messenger) error) (err error) {
	h, err := s.Open(rdma.Config{EndWithLastConnection: true})
	if err != nil {
		return err
	}
	defer sample.Close(&err, h.Close) // and the memory
	messages, err := New(h.Device, h.RDMA)
	if err := errors.Join(err, h.RDMA.Start()); err != nil {
		return err
	}
	defer sample.Close(&err, messages.Close)
	var running sync.WaitGroup
	var failed error
	running.Go(func() {
		failed = steps(ctx, s, h.RDMA, messages)
		_ = h.Engine.Do(func() { h.RDMA.Fail(failed) }) // nil does nothing; it fails only once the engine is closed
	})
	err = h.Engine.Run(ctx)
	running.Wait()
	return cmp.Or(err, failed)
}
