// This program is a gRPC server over RDMA, and its client, which makes a call and runs a stream in
// both directions. The service is an echo; its interface is one that comes with gRPC.
//
//	go run . -l :7471
//	go run . HOST:7471
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/verbena-rdma/verbena/rsocket"
)

func main() {
	listen := flag.String("l", "", "listen on `[HOST]:PORT`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once, even if a client goes on
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		err = server(ctx, *listen)
	case *listen == "" && flag.NArg() == 1:
		err = client(ctx, flag.Arg(0), os.Stdout)
	default:
		fmt.Fprintln(os.Stderr, "usage: grpc -l [HOST]:PORT, or grpc HOST:PORT")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "grpc:", err)
		os.Exit(1)
	}
}

// server serves until ctx ends.
func server(ctx context.Context, addr string) error {
	l, err := rsocket.Listen(addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	return serve(ctx, l)
}

// serve serves on a listener of any kind, until ctx ends.
func serve(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer()
	pb.RegisterTestServiceServer(s, echo{})
	defer context.AfterFunc(ctx, s.GracefulStop)()
	return s.Serve(l)
}

// newClient makes a client's connection over RDMA, which dials when the first call is made.
func newClient(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, // rsocket resolves names
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return rsocket.DialContext(ctx, "tcp", addr)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials())) // or credentials.NewTLS
}

// echo is the service.
type echo struct {
	pb.UnimplementedTestServiceServer
}

func (echo) UnaryCall(_ context.Context, request *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Payload: request.Payload}, nil
}

func (echo) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	for {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{Payload: request.Payload}); err != nil {
			return err
		}
	}
}

// client makes a call and runs a stream of messages, and compares what comes back.
func client(ctx context.Context, addr string, output io.Writer) error {
	conn, err := newClient(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	service := pb.NewTestServiceClient(conn)

	response, err := service.UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("Hello")}})
	if err != nil {
		return err
	}
	fmt.Fprintf(output, "call: %s\n", response.Payload.Body)

	stream, err := service.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { sent <- send(stream) }()
	n := 0
	for i := 0; ; i++ {
		response, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return errors.Join(err, <-sent)
		}
		if !bytes.Equal(response.Payload.Body, message(i)) {
			return fmt.Errorf("message %d has come back changed", i)
		}
		n += len(response.Payload.Body)
	}
	fmt.Fprintf(output, "stream: %d messages, %d bytes\n", messages, n)
	return <-sent
}

const messages = 100

// message is a message of the stream: of up to 64 KiB.
func message(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i*i*i%65536) }

func send(stream pb.TestService_FullDuplexCallClient) error {
	for i := range messages {
		if err := stream.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: message(i)}}); err != nil {
			return err // io.EOF: Recv says why
		}
	}
	return stream.CloseSend()
}
