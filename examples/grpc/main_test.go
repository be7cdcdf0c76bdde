package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/verbena-rdma/verbena/rsocket"
)

// asProgram is an environment variable: the test is the program.
const asProgram = "VERBENA_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// An interrupt ends the server when its calls have ended. A second one ends it at once.
func TestInterruptTwice(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-l", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var addr string
	_, err = fmt.Fscanf(output, "listening on %s\n", &addr)
	require.NoError(t, err)

	conn, err := newClient(addr)
	require.NoError(t, err)
	stream, err := pb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
	_, err = stream.Recv()
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	for refused := false; !refused; { // until the first signal has had its effect
		c, err := rsocket.Dial(t.Context(), addr)
		if refused = err != nil; !refused {
			require.NoError(t, c.Close())
		}
	}
	select {
	case <-ended:
		t.Fatal("it does not wait for the client")
	default:
	}
	for over := false; !over; {
		_ = cmd.Process.Signal(os.Interrupt) // the program may not have given up its handler yet
		select {
		case err = <-ended:
			over = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	status, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, syscall.SIGINT, status.Sys().(syscall.WaitStatus).Signal())
	require.NoError(t, conn.Close())
}

// Several clients make calls and run streams at the same time, with one server.
func TestCalls(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var serving, clients sync.WaitGroup
	serving.Go(func() { assert.NoError(t, serve(ctx, l)) })
	total := 0
	for i := range messages {
		total += len(message(i))
	}
	for range 3 {
		clients.Go(func() {
			var output bytes.Buffer
			assert.NoError(t, client(context.Background(), l.Addr().String(), &output))
			assert.Equal(t, fmt.Sprintf("call: Hello\nstream: %d messages, %d bytes\n", messages, total), output.String())
		})
	}
	clients.Wait()
	stop()
	serving.Wait()
}

// Where nobody listens, a call fails with the reason.
func TestNobodyListens(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	err = client(context.Background(), l.Addr().String(), &bytes.Buffer{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "connection refused")
}
