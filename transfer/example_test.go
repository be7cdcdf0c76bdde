package transfer_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

// A program publishes memory, and another one reads blocks of it, in one batch.
func Example() {
	ctx := context.Background()
	dev, err := device.Open("soft-lo")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	server, err := transfer.Open(transfer.Config{Devices: []verbs.Device{dev}, Listen: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if _, err := server.Register("greetings", []byte("good day. good night. "), mmap.RemoteRead); err != nil {
		log.Fatal(err)
	}

	client, err := transfer.Open(transfer.Config{Devices: []verbs.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	memory := make([]byte, 64)
	if _, err := client.Register("", memory, mmap.LocalReadWrite); err != nil {
		log.Fatal(err)
	}
	peer, err := client.Dial(ctx, server.Addrs()[0].String())
	if err != nil {
		log.Fatal(err)
	}
	greetings, err := peer.Segment(ctx, "greetings")
	if err != nil {
		log.Fatal(err)
	}

	var b transfer.Batch
	b.Read(greetings, 10, memory[:11])
	b.Read(greetings, 0, memory[32:][:9])
	h, err := client.Submit(&b)
	if err != nil {
		log.Fatal(err)
	}
	if err := h.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n%s\n", memory[:11], memory[32:][:9])
	// Output:
	// good night.
	// good day.
}
