// Command lab3_receiver receives a file from lab3_sender, which writes it to memory here,
// and answers with a secret key if the hash is right. Both ends carry out the steps in the
// same order, one after the other, with the blocking calls of package await.
package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/lab3"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

var listen, out, key = ":20079", "", "Verbena"

const largest = 1 << 30 // bytes of a file

func main() {
	sample.Main(sample.Program{
		Name: "lab3_receiver", About: "Receives a file from lab3_sender, and answers with a secret key.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&listen, "p", "listen", "host:port", "the address to listen on")
			f.String(&out, "o", "output", "file", "the file to store the data in; empty: do not store it")
			f.String(&key, "k", "key", "key", "the key from which the secret keys are derived")
		},
	}, run)
}

func run(ctx context.Context, s *sample.Session) error { return lab3.Run(ctx, s, receive) }

func receive(ctx context.Context, s *sample.Session, r *rdma.Connections, messages *lab3.Messenger) error {
	err := await.Func(ctx, r.Engine(), func() error { _, err := r.Listen(listen, rdma.ListenConfig{}); return err })
	if err != nil {
		return err
	}
	s.Say("waiting for lab3_sender on %s", listen)
	var file lab3.File
	conn, err := messages.Receive(ctx, lab3.FileInfo, &file)
	if err != nil {
		return err
	}
	if file.Length == 0 || file.Length > largest {
		return fmt.Errorf("the sender announced a file of %d bytes; it must have 1 to %d", file.Length, largest)
	}
	memory, err := mmap.Alloc(r.Device(), int(file.Length), mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	rkey, err := memory.ExportKey(r.PD())
	if err != nil {
		return err
	}
	info := lab3.Memory{Addr: memory.Addr(), Length: file.Length, RKey: rkey}
	if err := messages.Exchange(ctx, conn, lab3.MemoryInfo, info, lab3.Done, &struct{}{}); err != nil {
		return err
	}
	if sha256.Sum256(memory.Bytes()) != file.Hash {
		return errors.Join(messages.Send(ctx, conn, lab3.Verdict, false), errors.New("the hash of the received data differs from the hash of the file"))
	}
	if out != "" {
		if err := os.WriteFile(out, memory.Bytes(), 0o644); err != nil {
			return err
		}
	}
	var id [32]byte
	if err := messages.Exchange(ctx, conn, lab3.Verdict, true, lab3.ID, &id); err != nil {
		return err
	}
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(id[:])
	s.Print("%d bytes received from %s, and the hash is right", file.Length, bytes.TrimRight(id[:], "\x00"))
	if err := messages.Send(ctx, conn, lab3.Secret, mac.Sum(nil)); err != nil {
		return err
	}
	return await.Func(ctx, r.Engine(), conn.Close)
}
