package rsocket_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/rsocket"
)

func Example() {
	l, err := rsocket.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.Copy(conn, conn) // echoes
	}()

	conn, err := rsocket.Dial(context.Background(), l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "Hello")
	conn.CloseWrite()
	answer, err := io.ReadAll(conn)
	fmt.Printf("%s, %v\n", answer, err)
	// Output: Hello, <nil>
}

func ExampleNew() {
	dev, err := device.Open("soft-lo")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	stack, err := rsocket.New(rsocket.Config{Device: dev, ReceiveBuffer: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	l, err := stack.Listen("localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Addr().Network())
	// Output: rdma
}
