// Command lab3_sender sends a file to lab3_receiver by RDMA writes, and gets a secret key
// in return. Both ends carry out the steps in the same order, one after the other, with the
// blocking calls of package await.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/lab3"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

var server, file, id = "localhost:20079", os.Args[0], "nobody"

const chunk = 1 << 20 // bytes of one write

func main() {
	sample.Main(sample.Program{
		Name: "lab3_sender", About: "Sends a file to lab3_receiver, and gets a secret key.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&server, "s", "server", "host:port", "the address of lab3_receiver")
			f.String(&file, "f", "file", "file", "the file to send")
			f.String(&id, "", "id", "id", "the sender's name, at most 32 bytes")
		},
	}, run)
}

func run(ctx context.Context, s *sample.Session) error { return lab3.Run(ctx, s, send) }

func send(ctx context.Context, s *sample.Session, r *rdma.Connections, messages *lab3.Messenger) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	local, err := mmap.Register(r.Device(), data, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	s.Say("connecting to %s", server)
	conn, err := await.Dial(ctx, r, server, rdma.DialConfig{})
	if err != nil {
		return err
	}
	var memory lab3.Memory
	info := lab3.File{Length: uint64(len(data)), Hash: sha256.Sum256(data)}
	if err := messages.Exchange(ctx, conn, lab3.FileInfo, info, lab3.MemoryInfo, &memory); err != nil {
		return err
	}
	remote, err := mmap.FromKey(r.Device(), memory.Addr, int(memory.Length), memory.RKey, mmap.RemoteWrite)
	if err != nil {
		return err
	}
	for at := 0; at < len(data); at += chunk {
		n := min(chunk, len(data)-at)
		if err := await.Write(ctx, conn, bufinv.Source(local, at, n), bufinv.Target(remote, at, n)); err != nil {
			return err
		}
	}
	good := false
	if err := messages.Exchange(ctx, conn, lab3.Done, struct{}{}, lab3.Verdict, &good); err != nil {
		return err
	}
	if !good {
		return errors.New("the receiver reports that the hash is wrong")
	}
	var name, secret [32]byte
	copy(name[:], id)
	if err := messages.Exchange(ctx, conn, lab3.ID, name, lab3.Secret, &secret); err != nil {
		return err
	}
	s.Print("%d bytes sent; the secret key of %s: %x", len(data), name[:min(len(id), len(name))], secret)
	return nil // the receiver closes the connection, when its last message has been acknowledged
}
