package valkey_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/examples/valkey"
)

// A server that answers one command, and its client.
func Example() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the server got "PING\r\n"
	// the client got "+PONG\r\n"
}

func run() (err error) {
	dev, err := device.Open("soft-lo")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	stack, err := valkey.New(valkey.Config{Device: dev})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()

	l, err := stack.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error)
	go func() {
		c, err := l.Accept()
		if err == nil {
			var command string
			command, err = bufio.NewReader(c).ReadString('\n')
			fmt.Printf("the server got %q\n", command)
			_, again := c.Write([]byte("+PONG\r\n"))
			err = errors.Join(err, again, c.Close())
		}
		served <- err
	}()

	c, err := stack.DialContext(context.Background(), "rdma", l.Addr().String())
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	reply, err := bufio.NewReader(c).ReadString('\n')
	fmt.Printf("the client got %q\n", reply)
	return errors.Join(err, c.Close(), <-served)
}
